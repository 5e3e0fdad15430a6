"""Digests of what every recipe writes and learns, in all five shuffle modes: two versions of millrace agree where
these agree.

    python -m tests.bench.digests --folder /dev/shm/digests --cluster '{"kind": "cpu"}' --out digests.json
    python -m tests.bench.digests --folder /dev/shm/digests --against digests.json

A recipe reads a small sample of its own. The digests cover the parts byte by byte, the schema of the manifest and the
learned state with its tables; versions, fingerprints, paths and times are left out. With `--against` the exit status is
1 where a digest differs from that file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.gpu import machine, make_source

ROWS = {"toy": 200_000, "criteo": 50_000, "ecommerce": 200_000, "sessions": 50_000, "sequences": 50_000, "pca": 5_000}
MODES = ("none", "partition", "worker", "full", "key")
KEYS = {
    "toy": "id", "criteo": "C2", "ecommerce": "user_id", "sessions": "user_id_first", "sequences": "user_id",
    "pca": "y",
}  # fmt: skip


def digest(value: Any) -> str:
    """SHA-256 of bytes, or of a value as JSON."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:32]


def output_digests(folder: Path) -> dict[str, str]:
    """The digests of one committed output folder."""
    manifest = json.loads((folder / "_manifest.json").read_text())
    workflow = folder / "_workflow"
    if not workflow.is_dir():
        workflow = folder.parent / "_workflow"  # of train and valid together
    state = {p.name: digest(p.read_bytes()) for p in sorted(workflow.glob("*.vocab"))}
    if (workflow / "state.json").is_file():
        state["state.json"] = digest((workflow / "state.json").read_bytes())
    return {
        "parts": digest([[part["path"], part["rows"], part["xxh3_128"]] for part in manifest["parts"]]),
        "schema": digest(manifest["schema"]),
        "state": digest(state),
    }


def run(recipe: str, mode: str, folder: Path, where: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Digests of every folder that one job commits; `where` is its section `cluster`."""
    from flows.job.job import load_job
    from flows.preprocess import preprocess

    _, changes = make_source(recipe, folder, ROWS[recipe], 60 if recipe == "pca" else None)
    target = folder / f"out-{recipe}-{mode}"
    shutil.rmtree(target, ignore_errors=True)
    changes += [f"output.path={target}", f"output.shuffle={mode}", "output.files_per_worker=null", "output.files=4"]
    changes += [f"cluster.{key}={json.dumps(value)}" for key, value in where.items()] + ["run.report=false"]
    if mode == "key":
        changes.append(f"output.keys=[{KEYS[recipe]}]")
    job = load_job(recipe, changes).model_dump(mode="json", by_alias=True, exclude_unset=True)
    folders = preprocess(**{key: value for key, value in job.items() if value is not None})
    digests = {str(Path(f).relative_to(target)): output_digests(Path(f)) for f in folders}
    shutil.rmtree(target)
    return digests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cluster", default="{}", help="keys of the section cluster, as JSON")
    parser.add_argument("--commit", default="", help="which version this is, for the record")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    args = parser.parse_args()

    from infra.clusters.model import Cluster
    from infra.orchestration.server import ensure_server, stop_server
    from tests.clusters import make_cluster
    from tests.running import section_of

    logging.getLogger("prefect").setLevel(logging.WARNING)
    ensure_server()
    digests: dict[str, Any] = {}
    start = time.perf_counter()
    try:
        with make_cluster(Cluster.model_validate(json.loads(args.cluster))) as cluster:
            for recipe in ROWS:
                for mode in MODES:
                    digests[f"{recipe} {mode}"] = run(recipe, mode, args.folder, section_of(cluster))
                    print(recipe, mode, json.dumps(digests[f"{recipe} {mode}"]), flush=True)
    finally:
        stop_server()
    result = {
        "what": "digests of parts, schema and state of every recipe in every mode",
        "commit": args.commit,
        "command": " ".join(["python -m tests.bench.digests", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "rows": ROWS,
        "seconds": round(time.perf_counter() - start, 1),
        "digests": digests,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.against:
        before = json.loads(args.against.read_text())["digests"]
        different = [
            f"{job} {split or '.'}: {', '.join(k for k in made if made[k] != before[job].get(split, {}).get(k))}"
            for job, splits in digests.items() for split, made in splits.items()
            if made != before[job].get(split)
        ]  # fmt: skip
        print("\n".join(different) or f"all {len(digests)} jobs have the same digests")
        sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
