"""A flow whose gate is judged by a function of these tests: a share of nulls is a finding of the level on_finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from prefect import flow

from flows.preprocess import preprocess
from flows.run import gate
from flows.run.gate import PROFILES, Judged
from flows.run.session import on_cluster
from tasks.gate.profile import ColumnProfile, Profile
from tasks.gate.verdict import Finding, Verdict, outcome
from tasks.storage.atomic import write_json


def judge_nulls(job: Any, request: Any, stage: gate.GateStage) -> Judged | None:
    """The verdict on the nulls of the source's columns: up to 10 % pass. After statistics only `x` is known."""
    files = sorted(Path(job.source.path).glob("*.parquet"))
    table = pq.read_table(files)
    names = ["x"] if stage == "statistics" else table.column_names
    columns = {}
    for name in names:
        column, nulls = table[name], table[name].null_count
        top = [(str(value), 1) for value in column.drop_null().unique().to_pylist()[:3]]
        columns[name] = ColumnProfile(
            name, {"x": "float64", "day": "string"}[name], table.num_rows, nulls, top=top, top_exact=True
        )
    profile = Profile(table.num_rows, columns)
    write_json(request.staging.folder / PROFILES[stage], profile.to_json())
    findings = []
    for name, one in columns.items():
        share = one.nulls / one.rows
        if share > 0.1:
            text = f"{name}: {share:.0%} of {one.rows} rows are null (0 % before)"
            level = job.checks.on_finding
            findings.append(Finding(name, "nulls", share, 0.0, share, 0.1, level, text, (files[0].name,)))
    return Judged(Verdict(outcome(findings), tuple(findings), ["v0001"]), profile)


@flow(name="gated", task_runner=on_cluster, persist_result=False, validate_parameters=False)
def gated(
    source: Any = None,
    features: Any = None,
    output: Any = None,
    cluster: Any = None,
    checks: Any = None,
    run: Any = None,
) -> Any:
    gate.judge_run = judge_nulls
    return preprocess.fn(source=source, features=features, output=output, cluster=cluster, checks=checks, run=run)
