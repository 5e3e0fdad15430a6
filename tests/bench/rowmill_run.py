"""One run of a recipe through the Prefect flow, as a contender of the comparison: prints one JSON line."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--recipe", default="toy")
    parser.add_argument("--set", nargs="*", default=[])
    args = parser.parse_args()

    from infra.orchestration.server import ensure_server

    ensure_server()
    import quiet

    from flows.job.job import load_job
    from flows.preprocess import preprocess
    from tasks.manifest import Manifest

    logging.getLogger("prefect").setLevel(logging.WARNING)
    changes = [
        f"source.path={args.input}",
        f"output.path={args.output}",
        "output.files_per_worker=null",
        f"output.files={args.files}",
        "output.on_existing=replace",
        *args.set,
    ]
    job = load_job(args.recipe, changes).model_dump(mode="json", by_alias=True, exclude_unset=True)
    window = quiet.Window()
    (folder,) = preprocess(**{k: v for k, v in job.items() if v is not None})
    others = window.others()
    data = Manifest.load(folder).data
    print(
        json.dumps(
            {
                "peer": "rowmill",
                "seconds": data["seconds"],
                "rows": data["rows"]["out"],
                "stages": data["stages"],
                "engine": data["engine"],
                "others_cpu_share": round(others, 3),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
