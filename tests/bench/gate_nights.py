"""False alarms and detections of the gate by week, for nights of three made-up shops.

    python -m tests.bench.gate_nights [--seeds 20] [--full] [--out gate-nights.json]

Each shop has 60 clean nights: one with a weekly pattern, one that grows and has a night that comes late, one of which
the nights at weekends have half of the rows. Each night of the first four weeks is planted with each fault of the
check `rows` as well, and judged against the clean nights before it.

`--full` judges whole profiles of about 5,000 rows, in which any check may raise a false alarm, in place of numbers of
rows alone. It also plants each kind of fault that the tests of the gate know (`OWN`, `TWELVE`, `FURTHER`, and those of
`rows`) into two nights of each of the first four weeks of each shop, whose seeds differ. By week it counts in how many
of these six nights the gate stops the run, in how many it only warns, and in how many it finds nothing that it does not
find in the clean night. Until seven good nights are there, only a contract and rows that came twice stop a run. That
takes 6 minutes, and a minute more for each seed of the clean nights.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.vocabulary import machine
from tests.tasks.gate.simulated import (
    FAULTS_OF_ROWS,
    FURTHER,
    SHOPS_OF_ROWS,
    Fault,
    Shop,
    clean_alarms,
    found_by_week,
    planted_faults,
)
from tests.tasks.gate.test_checks import OWN
from tests.tasks.gate.test_faults import TWELVE

KINDS = {
    **{name: Fault(column, plant) for name, (column, _, plant) in OWN.items()},
    **{name: Fault(columns, plant) for name, (plant, columns, _) in TWELVE.items()},
    **FURTHER,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "command": " ".join(["python -m tests.bench.gate_nights", *(arguments or sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine("pandas"),
        "seeds": options.seeds,
        "nights": options.nights,
    }
    for name, shop in SHOPS_OF_ROWS.items():
        alarms: Counter[int] = Counter()
        report[name] = {"false alarms": {}, "alarms": []}
        for seed in range(options.seeds):
            whole = Shop(seed, rows=5_000, nights=options.nights) if options.full else None
            found = clean_alarms(shop, seed, options.nights, whole)
            alarms.update(night // 7 + 1 for night, _ in found)
            report[name]["alarms"] += [f"seed {seed}, night {night + 1}: {text}" for night, text in found]
        for text in report[name]["alarms"]:
            print(f"{name}, {text}", file=sys.stderr)
        nights, weeks = options.seeds * 7, range(1, -(-options.nights // 7) + 1)
        report[name]["false alarms"] = {week: alarms[week] for week in weeks}
        print(f"{name}: false alarms in {nights} nights of each week: "
              + ", ".join(f"week {week} {alarms[week]}" for week in weeks))  # fmt: skip
        for fault in FAULTS_OF_ROWS:
            shares = found_by_week(shop, fault, range(options.seeds))
            report[name][fault] = shares
            print(f"  {fault:>16}: found in " + ", ".join(f"week {week} {share:.0%}" for week, share in shares.items()))
    if options.full:
        report["kinds"] = kinds_of_faults()
    if options.out:
        text = json.dumps(report, indent=1)
        options.out.write_text(re.sub(r"\[\s+([\d\s,]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n")
    return 0


def kinds_of_faults() -> dict[str, dict[str, list[int]]]:
    """By kind and outcome, the number of nights in weeks one to four, over all shops, each with its own seed."""
    total: dict[str, dict[str, list[int]]] = {}
    for seed, shop in enumerate(SHOPS_OF_ROWS.values()):
        for name, outcomes in planted_faults(shop, seed, KINDS).items():
            known = total.setdefault(name, {})
            for outcome, weeks in outcomes.items():
                known[outcome] = [sum(pair) for pair in zip(known.get(outcome, [0] * 4), weeks, strict=True)]
    print("stops + warnings in 6 nights of each week, one to four")
    for name, found in total.items():
        weeks = zip(found["stop"], found["warning"], strict=True)
        print(f"{name:>42}: " + "  ".join(f"{stops:>3} +{warnings:>3}" for stops, warnings in weeks))
    return total


if __name__ == "__main__":
    sys.exit(main())
