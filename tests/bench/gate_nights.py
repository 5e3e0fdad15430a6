"""False alarms and detections of the check `rows` by week, for nights of three made-up shops.

    python -m tests.bench.gate_nights [--seeds 20] [--full] [--out gate-nights.json]

Each shop has 60 clean nights: one with a weekly pattern, one that grows and has a night that comes late, one of which
the nights at weekends have half of the rows. Each night of the first four weeks is planted with each fault as well, and
judged against the clean nights before it. `--full` judges whole profiles of 5,000 rows, in which any check may raise a
false alarm, in place of numbers of rows alone; that takes minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.tasks.gate.simulated import FAULTS_OF_ROWS, SHOPS_OF_ROWS, Shop, clean_alarms, found_by_week


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"seeds": options.seeds, "nights": options.nights}
    for name, shop in SHOPS_OF_ROWS.items():
        alarms: Counter[int] = Counter()
        for seed in range(options.seeds):
            whole = Shop(seed, rows=5_000, nights=options.nights) if options.full else None
            found = clean_alarms(shop, seed, options.nights, whole)
            alarms.update(night // 7 + 1 for night, _ in found)
            for night, text in found:
                print(f"{name}, seed {seed}, night {night + 1}: {text}", file=sys.stderr)
        nights = options.seeds * 7
        print(f"{name}: false alarms in {nights} nights of each week: "
              + ", ".join(f"week {week} {alarms[week]}" for week in range(1, -(-options.nights // 7) + 1)))  # fmt: skip
        report[name] = {"false alarms": {week: alarms[week] for week in sorted(alarms)}}
        for fault in FAULTS_OF_ROWS:
            shares = found_by_week(shop, fault, range(options.seeds))
            report[name][fault] = shares
            print(f"  {fault:>16}: found in " + ", ".join(f"week {week} {share:.0%}" for week, share in shares.items()))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
