"""False alarms and detections of the gate by week, for nights of three made-up shops.

    python -m tests.bench.gate_nights [--seeds 20] [--full] [--forty] [--out gate-nights.json]

Each shop has 60 clean nights: one with a weekly pattern, one that grows and has a night that comes late, one of which
the nights at weekends have half of the rows. Each night of the first four weeks is planted with each fault of the
check `rows` as well, and judged against the clean nights before it.

`--full` judges whole profiles of about 5,000 rows, in which any check may raise a false alarm, in place of numbers of
rows alone. It also plants each kind of fault that the tests of the gate know (`OWN`, `TWELVE`, `FURTHER`,
`OF_LABELLED`, and those of `rows`) into two nights of each of the first four weeks of each shop, whose seeds differ. By
week it counts in how many of these six nights the gate stops the run, in how many it only warns, and in how many it
finds nothing that it does not find in the clean night. Until seven good nights are there, only a contract and rows that
came twice stop a run. That takes 10 minutes, and a minute more for each seed of the clean nights.

`--forty` judges whole clean nights, too, and plants forty kinds of faults into a night of about 20,000 rows after
thirty clean ones, by seed, of which the shops take turns. Each is to stop the run, and a finding is to name a column in
which the fault is. That takes two minutes for each seed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.bench.vocabulary import machine
from tests.tasks.gate.simulated import (
    FAULTS_OF_ROWS,
    FURTHER,
    OF_LABELLED,
    SHOPS_OF_ROWS,
    Fault,
    Found,
    LabelledShop,
    Nights,
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
    **OF_LABELLED,
    # its rows are in the order of time: there are fewer of them, and the late ones are missing
    "a truncated file": Fault(", event_time", TWELVE["a truncated file"][0]),
}
ROWS, HISTORY = 20_000, 30  # of the nights in which the forty kinds are planted
# At least one of each check but `contract`, which looks at one night alone.
FORTY = (
    "half of the rows", "twice the rows", "a truncated file",
    "duplicated delivery", "the rows of the night before", "a tenth delivered again",
    "a column missing", "a column added", "retyped column", "an unread column missing", "an unread column added",
    "a constant column", "nulls in a tenth", "a column all null", "a few nulls where there were none",
    "another unit", "prices in cents", "another sign", "another time zone", "a column shifted by an hour",
    "seconds to milliseconds", "twice the scatter", "1970 as the default of 1 %", "one huge value",
    "truncated ids", "rounded prices",
    "half of a category lost", "two categories exchanged", "a default in a twentieth of the rows", "ids re-hashed",
    "two hours at noon missing", "a new country", "upper case", "a country of 1.5 % lost",
    "a swapped pair of columns", "a label shuffled", "a key shuffled",
    "ids out of the vocabulary in a twentieth", "ids without a match in a twentieth", "casts that fail in 2 %",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--forty", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "command": " ".join(["python -m tests.bench.gate_nights", *(arguments or sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine("pandas"),
        "seeds": options.seeds,
        "nights": options.nights,
    }
    if options.forty:
        report["forty kinds"] = forty_faults(range(options.seeds))
    report |= nights_by_week(options.seeds, options.nights, options.full or options.forty)
    if options.full:
        report["kinds"] = kinds_of_faults()
    if options.out:
        text = json.dumps(report, indent=1)
        options.out.write_text(re.sub(r"\[\s+([\d\s,]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n")
    return 0


def nights_by_week(seeds: int, nights: int, full: bool) -> dict[str, Any]:
    """By shop: false alarms of clean nights by week, and the share of nights in which each fault of `rows` is found."""
    report: dict[str, Any] = {}
    for name, shop in SHOPS_OF_ROWS.items():
        alarms: Counter[int] = Counter()
        of_shop: dict[str, Any] = {"false alarms": {}, "alarms": []}
        for seed in range(seeds):
            whole = LabelledShop(seed, rows=5_000, nights=nights) if full else None
            found = clean_alarms(shop, seed, nights, whole)
            alarms.update(night // 7 + 1 for night, _ in found)
            of_shop["alarms"] += [f"seed {seed}, night {night + 1}: {text}" for night, text in found]
        for text in of_shop["alarms"]:
            print(f"{name}, {text}", file=sys.stderr)
        weeks = range(1, -(-nights // 7) + 1)
        of_shop["false alarms"] = {week: alarms[week] for week in weeks}
        print(f"{name}: false alarms in {7 * seeds} nights of each week: "
              + ", ".join(f"week {week} {alarms[week]}" for week in weeks))  # fmt: skip
        for fault in FAULTS_OF_ROWS:
            shares = found_by_week(shop, fault, range(seeds))
            of_shop[fault] = shares
            print(f"  {fault:>16}: found in " + ", ".join(f"week {week} {share:.0%}" for week, share in shares.items()))
        report[name] = of_shop
    return report


def forty_faults(seeds: Iterable[int]) -> dict[str, Any]:
    """By seed, of which the shops take turns: how many of the forty kinds are stopped and named after thirty clean
    nights, and which are missed."""
    shops, kinds = list(SHOPS_OF_ROWS.values()), {name: KINDS[name] for name in FORTY if name in KINDS}
    outcomes = {}
    for seed in seeds:
        shop = shops[seed % len(shops)]
        whole = LabelledShop(seed, rows=ROWS, nights=HISTORY + 1)
        tables = [whole.table(night, count) for night, count in enumerate(shop.rows(seed, HISTORY + 1))]
        found = Nights(whole, shop, tables).planted(HISTORY, kinds)
        missed = [name for name in FORTY if found[name] != Found("stop", is_named=True)]
        outcomes[f"seed {seed}"] = {"stopped and named": len(FORTY) - len(missed), "missed": missed}
        print(f"seed {seed}: {len(FORTY) - len(missed)} of {len(FORTY)} kinds are stopped and named" + "".join(
            f"\n  not {name}" for name in missed))  # fmt: skip
    return {"kinds": FORTY, "rows": ROWS, "nights before": HISTORY, **outcomes}


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
