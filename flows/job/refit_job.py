"""A refit: new rows on top of what an output has learned, by its own features; the parameters of the flow `refit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr, field_validator, model_validator

from flows.job.access import check_access, check_base
from flows.job.dates import DateOf, date_of_run_now
from flows.job.job import (
    GO_ON,
    WHAT_FOLLOWS,
    WHERE_TO,
    WHICH_DATE,
    WORKERS,
    Application,
    CheckedJob,
    Job,
    absolute,
    check_filter,
    check_refit,
    check_size,
    exchange_on,
    flat,
    make_application,
    make_job,
    overlay_job,
    refuse_source_inside,
    validate_job,
)
from infra.clusters.model import Cluster
from tasks.core.settings import NO_BASE, Checks, Output, Refitting, Run, Source, some_path
from tasks.core.strict_json import JsonObject
from tasks.core.wings import check_keys
from tasks.errors import JobError
from tasks.graph.node import Node, graph_from_json
from tasks.job.base_version import BaseVersion, explain_no_base, find_newest_good
from tasks.job.refitting import refitting_request
from tasks.job.request import Request
from tasks.job.run_date import is_pattern


class Refit(CheckedJob):
    """New rows on top of a base, whose features, types and reading they follow: which base, where the rows come from,
    where they go (a version beside the base, if nothing is said), and on which workers."""

    refused_of_source: ClassVar[tuple[str, ...]] = ("valid", "split", "sample")

    base: str = Field(description="output of earlier runs; its newest good version is learned on top of")
    source: Source = Field(description="where the new rows come from; what is not given is as in the base")
    output: Output = Field(
        description=f"{WHERE_TO}; a new version of the base if empty, in the order and the files of the base"
    )
    refit: Refitting = Field(Refitting(), description=GO_ON)
    cluster: Cluster = Field(Cluster(), description=WORKERS)
    contract: JsonObject | str | None = Field(
        None, description="types, nulls and domains of the source's columns, as in a job; that of the base if empty"
    )
    checks: Checks = Field(Checks(), description=f"{WHAT_FOLLOWS}; what is not given is as in the base")
    run: Run = Field(Run(), description=WHICH_DATE)

    _some = field_validator("base", mode="before")(some_path)
    _inherited: tuple[str, ...] = PrivateAttr(())

    @property
    def inherited(self) -> str:
        """What holds since the base says it, and the refit does not: `checks.on_finding: stop, output.files: 2`."""
        return ", ".join(self._inherited)

    @model_validator(mode="before")
    @classmethod
    def _beside_the_base(cls, data: object) -> object:
        """Without output.path the rows go to a new version of the base."""
        if not isinstance(data, Mapping) or not isinstance(data.get("base"), str):
            return data
        output = data.get("output") or {}
        if not isinstance(output, Mapping) or output.get("path") is not None:
            return data
        return {**data, "output": {"on_existing": "version", **output, "path": data["base"]}}

    @property
    def base_path(self) -> Path:
        """Where the base is."""
        return Path(absolute(self.base))

    def request(self, engine: str, base: BaseVersion | None = None) -> Request:
        """The request of the stages; without a `base` that of the newest version, which is not read whole. A JobError
        where there is none."""
        base = base or find_newest_base(self.base_path)
        source, output, run = self.resolve_paths()
        return self.with_checks(refitting_request(source, base, self.refit, output, run, engine))


AnyJob = Job | Application | Refit


def find_newest_base(root: Path) -> BaseVersion:
    """Find the newest good version as far as its JSON says; a JobError where nothing is published."""
    version = find_newest_good(root, thorough=False).version
    if version is None:
        raise JobError(
            "there is no base",
            where=f"base: {root}",
            why=explain_no_base(root),
            do="correct the path; or make a first version with rowmill run, whose job may already name this base",
        )
    return version


def make_refit(data: JsonObject, date_of: DateOf = date_of_run_now) -> Refit:
    """Make the refit of plain values; its base is there. `date_of` says which date its patterns mean."""
    check_size(data)
    check_keys(data)
    base = data.get("base")
    if isinstance(base, str) and base.strip() and not is_pattern(base):
        check_base(base)
    refit: Refit = validate_job(Refit, data).with_date(date_of)
    if refit.base == NO_BASE:
        raise JobError("a refit needs a base", where="base", do="name an output; rowmill run learns without one")
    for name in Refit.refused_of_source:
        if getattr(refit.source, name) is not None:
            do = "leave it out; a job for rowmill run with `base` takes it"
            if name == "split":
                do = "leave it out: a job with a base is not split"
            raise JobError(f"source.{name} is not for refit", do=do)
    if refit.refit.learn_from is not None:
        raise JobError(
            "refit.learn_from is not for refit",
            why="the features are those of the base: no step is new",
            do="run the job that has the new features: rowmill run JOB.yaml --learn-from DATA",
        )
    check_filter(refit.source)
    check_access(refit)
    check_refit(refit.base, refit.refit, graph_of(refit))
    refit = like_base(refit, find_newest_base(refit.base_path).settings)
    refuse_source_inside(refit)
    exchange_on(refit.run, refit.cluster)
    return refit


def like_base(refit: Refit, known: Mapping[str, JsonObject]) -> Refit:
    """The refit with the order and the files of its base, its checks and its contract, where it says nothing itself.

    Of checks and output key by key; a contract that is given replaces the whole one. Where the rows go, and over what,
    the refit alone says.
    """
    own = refit.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    output = {
        name: value
        for name, value in known.get("output", {}).items()
        if name in Output.model_fields and name not in ("path", "on_existing") and value is not None
    }
    if {"rows_per_file", "files_per_worker"} & output.keys():
        output.pop("files", None)  # how many there were
    wanted = overlay_job({"output": output, "checks": known.get("checks", {})}, own)
    output = wanted["output"]
    same_format = output.get("format", "parquet") == known.get("output", {}).get("format", "parquet")
    fits = {
        "compression": same_format,
        "row_group_size": same_format,
        "shuffle_groups": output.get("shuffle") == "worker",
        "keys": output.get("shuffle") == "key",
        "sort_by": output.get("shuffle") == "key",
        "metadata_file": output.get("format", "parquet") == "parquet",
        "keep_versions": output.get("on_existing") == "version",
    }
    output = {name: value for name, value in output.items() if name in own["output"] or fits.get(name, True)}
    sections = {"checks": validate_job(Checks, wanted["checks"]), "output": validate_job(Output, output)}
    texts = [
        f"{'.'.join(place)}: {value}"
        for name, section in sections.items()
        for place, value in flat({name: section.model_dump(mode="json", exclude_defaults=True)})
        if place not in {place for place, _ in flat({name: own.get(name, {})})}
    ]
    contract = {"contract": dict(known["contract"])} if refit.contract is None and known.get("contract") else {}
    like = refit.model_copy(update=sections | contract)
    like._inherited = (*texts, *contract)
    return like


def graph_of(refit: Refit) -> Node:
    """Return the features of the base."""
    return graph_from_json(find_newest_base(refit.base_path).data["graph"])


def maker_of(flow: str) -> Callable[..., Any]:
    """Return the function that makes the job of a flow (preprocess, fit, apply, refit) of plain values."""
    makers: dict[str, Callable[..., Any]] = {"apply": make_application, "refit": make_refit}
    return makers.get(flow, make_job)
