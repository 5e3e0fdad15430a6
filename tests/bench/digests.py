"""Digests of what jobs write and learn: two versions of rowmill agree where these agree.

    python -m tests.bench.digests --folder /dev/shm/digests --out digests.json
    python -m tests.bench.digests --folder /dev/shm/digests --against digests.json
    python -m tests.bench.digests --folder /dev/shm/digests --cluster '{"kind": "cuda"}' --out digests-gpu.json

Every recipe runs in all five shuffle modes, on a small sample of its own; the recipe toy also on a million rows.
`STORIES` are jobs on look-alike events of a shop: unique, splits, keys, down-sampling, text files. Refits on top of
each other and `apply` follow. Everything runs on one worker and again on four (`--cluster`, as often as wanted), and
must give the same digests on each.

The digests cover the parts byte by byte, the schema of the manifest, and the learned state as values: tables are
decoded, so that another layout of the same values has the same digest. Versions, fingerprints, paths and times are left
out; the nights have a date of their own, so that digests of different days agree. The exit status is 1 where clusters
differ, or where `--against` names a file with another digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.bench.gpu import machine, make_source

ROWS = {"toy": 200_000, "criteo": 50_000, "ecommerce": 200_000, "sessions": 50_000, "sequences": 50_000, "pca": 5_000}
MODES = ("none", "partition", "worker", "full", "key")
KEYS = {
    "toy": "id", "criteo": "C2", "ecommerce": "user_id", "sessions": "user_id_first", "sequences": "user_id",
    "pca": "y",
}  # fmt: skip
MANY, EVENTS, NIGHTS = 1_000_000, 60_000, 6
DAY = "2026-11-27"  # of all nights: values that wait for an id keep the day on which they were seen last
CLUSTERS = ('{"kind": "cpu"}', '{"kind": "cpu", "workers": 4}')

FEATURES: list[dict[str, Any]] = [
    {"columns": ["user_id", "product_id"], "ops": [{"op": "Categorify", "num_buckets": 3}]},
    {"columns": [["category_code", "brand"]], "ops": [{"op": "Categorify", "combo": True, "freq_threshold": 2}]},
    {"columns": ["price"], "ops": [{"op": "Rename", "name": "scaled"}, {"op": "NormalizeMinMax"}]},
    {"columns": ["brand"], "ops": [{"op": "TargetEncoding", "target": "price", "kfold": 3}]},
    {"columns": ["brand"], "ops": [{"op": "JoinGroupby", "cont_cols": ["price"], "stats": ["count", "mean", "std"]}]},
    {"columns": ["price"], "ops": [{"op": "FillMissing"}, {"op": "LogOp"}, {"op": "Normalize"}]},
    {"columns": ["event_time"]},
]
WEIGHTED = [*FEATURES, {"columns": ["weight"]}]
HISTORIES = [
    {"columns": ["product_id"], "ops": [{"op": "Categorify"}], "keep": False},
    {
        "columns": ["product_id"],
        "ops": [{"op": "History", "length": 5, "partition_cols": "user_id", "time_col": "event_time"}],
    },
    {"columns": ["price"], "ops": [{"op": "DifferenceLag", "partition_cols": "user_id"}]},
    {"columns": ["user_id"], "ops": [{"op": "Categorify"}]},
]
TEXT = {"csv": {}, "csv.gz": {}, "jsonl": {}, "semicolon.csv": {"delimiter": ";"}}
STORIES: dict[str, dict[str, Any]] = {
    "unique": {"source": {"unique": {"keys": ["user_session", "product_id"], "keep": "last", "by": "event_time"}}},
    "split by time": {"source": {"split": {"by": "time", "column": "event_time", "valid": 0.2, "test": 0.1}}},
    "split by keys": {"source": {"split": {"by": "hash", "together": ["user_id"], "valid": 0.2, "seed": 3}}},
    "split by last": {
        "source": {"split": {"by": "last", "column": "event_time", "together": ["user_id"], "valid": 1, "test": 1}}
    },
    "keys": {"source": {"keys": ["user_id"], "sort_by": ["event_time"]}, "features": HISTORIES},
    "downsample": {
        "source": {"downsample": {"where": "event_type == 'view'", "fraction": 0.25, "weight": "weight"}},
        "features": WEIGHTED,
    },
    "filter": {"source": {"filter": "event_type != 'view' and price > 10"}},
    **{f"text {name}": {"source": settings, "reads": name} for name, settings in TEXT.items()},
}


def digest(value: Any) -> str:
    """SHA-256 of bytes, or of a value as JSON."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha256(data).hexdigest()[:32]


def learned_values(value: Any, folder: Path) -> Any:
    """A value of `state.json` with the contents of the files that it names in place of their names and digests."""
    if isinstance(value, list):
        return [learned_values(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    if "table" in value:
        table = pq.read_table(folder / value["table"])
        return {"schema": [str(field.type) for field in table.schema], "rows": digest(table.to_pydict())}
    if set(value) == {"file", "sha256"}:
        content = json.loads((folder / value["file"]).read_text())
        return learned_values({key: one for key, one in content.items() if key != "format"}, folder)
    return {key: learned_values(one, folder) for key, one in value.items()}


def output_digests(folder: Path) -> dict[str, str]:
    """The digests of one committed output folder."""
    manifest = json.loads((folder / "_manifest.json").read_text())
    workflow = folder / "_workflow"
    if not workflow.is_dir():
        workflow = folder.parent / "_workflow"  # of train and valid together
    state = json.loads(path.read_text()) if (path := workflow / "state.json").is_file() else {}
    learned = {name: learned_values(state.get(name), workflow) for name in ("fitted", "partials")}
    return {
        "parts": digest([[part["path"], part["rows"], part["xxh3_128"]] for part in manifest["parts"]]),
        "schema": digest(manifest["schema"]),
        "state": digest(learned),
    }


def flow_outputs(flow: Any, job: dict[str, Any], target: Path) -> dict[str, dict[str, str]]:
    """Run a flow; the digests of every folder that it commits, by its path below `target`."""
    folders = flow(**{key: value for key, value in job.items() if value is not None})
    return {str(Path(f).relative_to(target)): output_digests(Path(f)) for f in folders}


def recipe_outputs(recipe: str, mode: str, rows: int, folder: Path, where: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The digests of one recipe; `where` is its section `cluster`."""
    from flows.job.job import load_job
    from flows.preprocess import preprocess

    _, changes = make_source(recipe, folder, rows, 60 if recipe == "pca" else None)
    target = folder / f"out-{recipe}-{mode}"
    shutil.rmtree(target, ignore_errors=True)
    changes += [f"output.path={target}", f"output.shuffle={mode}", "output.files_per_worker=null", "output.files=4"]
    changes += [f"cluster.{key}={json.dumps(value)}" for key, value in where.items()] + ["run.report=false"]
    if mode == "key":
        changes.append(f"output.keys=[{KEYS[recipe]}]")
    job = load_job(recipe, changes).model_dump(mode="json", by_alias=True, exclude_unset=True)
    digests = flow_outputs(preprocess, job, target)
    shutil.rmtree(target)
    return digests


def make_events(folder: Path) -> Path:
    """Events of a shop in order of time: a Parquet file of each night, and all of them in each kind of text."""
    from flows.sample import make_sample

    made = folder / f"events-{EVENTS}"
    if made.is_dir():
        return made
    source = folder / "events-source"
    make_sample("ecommerce", source, EVENTS)
    table = pq.read_table(source).drop_columns(["category_id"]).sort_by("event_time")
    (made / "nights").mkdir(parents=True)
    for night in range(NIGHTS):
        part = table.slice(night * EVENTS // NIGHTS, EVENTS // NIGHTS)
        pq.write_table(part, made / "nights" / f"{night}.parquet", row_group_size=2_000)
    for name, settings in TEXT.items():
        (made / name).mkdir()
        write_text(table, made / name / f"events.{name.removeprefix('semicolon.')}", settings.get("delimiter", ","))
    return made


def write_text(table: pa.Table, path: Path, delimiter: str) -> None:
    with pa.output_stream(str(path), compression="detect") as stream:
        if "jsonl" in path.name:
            for row in table.to_pylist():
                stream.write(json.dumps(row, default=str).encode() + b"\n")
        else:
            pyarrow.csv.write_csv(table, stream, pyarrow.csv.WriteOptions(delimiter=delimiter))


def story_outputs(name: str, folder: Path, where: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The digests of one job of `STORIES`."""
    from flows.preprocess import preprocess

    story, events, target = STORIES[name], make_events(folder), folder / "out-story"
    shutil.rmtree(target, ignore_errors=True)
    job = {
        "source": {"path": str(events / story.get("reads", "nights"))} | story["source"],
        "features": story.get("features", FEATURES),
        "label": ["event_type"],
        "output": {"path": str(target), "files": 3, "seed": 1},
        "cluster": where,
        "run": {"report": False},
    }
    return flow_outputs(preprocess, job, target)


def nightly_outputs(folder: Path, where: dict[str, Any]) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """The digests of a first night, of five refits on top of each other, and of `apply` of the last to the first."""
    from flows.apply import apply
    from flows.preprocess import preprocess
    from flows.refit import refit

    nights, target = make_events(folder) / "nights", folder / "out-nights"
    shutil.rmtree(target, ignore_errors=True)
    output = {"path": str(target), "files": 3, "seed": 1, "on_existing": "version"}
    common = {"cluster": where, "run": {"report": False, "date": DAY}}
    first = {"source": {"path": str(nights / "0.parquet")}, "features": FEATURES, "label": ["event_type"]}
    yield "night 0", flow_outputs(preprocess, first | {"output": output} | common, target)
    for night in range(1, NIGHTS):
        job = {"base": str(target), "source": {"path": str(nights / f"{night}.parquet")}, "output": output} | common
        yield f"refit {night}", flow_outputs(refit, job, target)
    applied = folder / "out-applied"
    shutil.rmtree(applied, ignore_errors=True)
    job = {"fitted": str(target), "source": first["source"], "output": {"path": str(applied), "files": 2}} | common
    yield "apply", flow_outputs(apply, job, applied)


def all_outputs(folder: Path, where: dict[str, Any]) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """The digests of every job, by its name."""
    for recipe, rows in ROWS.items():
        for mode in MODES:
            yield f"{recipe} {mode}", recipe_outputs(recipe, mode, rows, folder, where)
    yield f"toy {MANY}", recipe_outputs("toy", "full", MANY, folder, where)
    for name in STORIES:
        yield name, story_outputs(name, folder, where)
    yield from nightly_outputs(folder, where)


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Each output whose digests differ, with what of it differs."""
    return [
        f"{job} {split or '.'}: {', '.join(what for what in made if made[what] != there.get(split, {}).get(what))}"
        for job, splits in one.items()
        for there in [other.get(job, {})]
        for split, made in splits.items()
        if made != there.get(split)
    ] + [f"{job}: only on one side" for job in sorted(other.keys() - one.keys())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cluster", action="append", help="keys of the section cluster, as JSON; may be repeated")
    parser.add_argument("--commit", default="", help="which version this is, for the record")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    args = parser.parse_args()

    from infra.clusters.model import Cluster
    from infra.orchestration.server import ensure_server, stop_server
    from tests.clusters import make_cluster
    from tests.running import section_of

    logging.getLogger("prefect").setLevel(logging.WARNING)
    args.folder.mkdir(parents=True, exist_ok=True)
    ensure_server()
    digests: dict[str, Any] = {}
    different: list[str] = []
    start = time.perf_counter()
    try:
        for text in args.cluster or CLUSTERS:
            with make_cluster(Cluster.model_validate(json.loads(text))) as cluster:
                made = {}
                for name, outputs in all_outputs(args.folder, section_of(cluster)):
                    made[name] = outputs
                    print(name, json.dumps(outputs), flush=True)
            different += [f"{text}: {line}" for line in differences(made, digests)] if digests else []
            digests = digests or made
    finally:
        stop_server()
    result = {
        "what": "digests of parts, schema and state of every recipe in every mode, and of the stories",
        "commit": args.commit,
        "command": " ".join(["python -m tests.bench.digests", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "rows": ROWS | {"toy full": MANY, "events": EVENTS},
        "seconds": round(time.perf_counter() - start, 1),
        "digests": digests,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.against:
        different += differences(digests, json.loads(args.against.read_text())["digests"])
    print("\n".join(different) or f"all {len(digests)} jobs have the same digests")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
