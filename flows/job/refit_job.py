"""A refit: new rows on top of what an output has learned, by its own features; the parameters of the flow `refit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr, field_validator, model_validator

from flows.job.access import check_access, check_base
from flows.job.dates import DateOf, date_of_run_now
from flows.job.job import (
    CHECKS_HELP,
    CLUSTER_HELP,
    OUTPUT_HELP,
    REFIT_HELP,
    RUN_HELP,
    Application,
    CheckedJob,
    Job,
    check_filter,
    check_refit,
    check_size,
    exchange_on,
    flat,
    local_base,
    make_application,
    make_job,
    overlay_job,
    refuse_source_inside,
    validate_job,
)
from infra.clusters.model import Cluster
from tasks.core.settings import NO_BASE, TABLES, Checks, Output, Refitting, Run, Section, Source, some_path
from tasks.core.strict_json import JsonObject
from tasks.core.wings import check_keys
from tasks.errors import JobError
from tasks.graph.node import graph_from_json
from tasks.job.base_version import BaseVersion, explain_no_base, find_newest_good
from tasks.job.refitting import refitting_request
from tasks.job.request import Request
from tasks.job.run_date import is_pattern
from tasks.storage.output_mirror import address_of


class Refit(CheckedJob):
    """New rows on top of a base, whose features, types and reading they follow: which base, where the rows come from,
    where they go (a version beside the base, if nothing is said), and on which workers."""

    refused_of_source: ClassVar[tuple[str, ...]] = ("valid", "split", "sample")

    base: str = Field(description="output of earlier runs; its newest good version is learned on top of")
    source: Source = Field(description="where the new rows come from; what is not given is as in the base")
    output: Output = Field(
        description=f"{OUTPUT_HELP}; a new version of the base if empty, in the order and the files of the base"
    )
    refit: Refitting = Field(Refitting(), description=REFIT_HELP)
    cluster: Cluster = Field(Cluster(), description=CLUSTER_HELP)
    contract: JsonObject | str | None = Field(
        None, description="types, nulls and domains of the source's columns, as in a job; that of the base if empty"
    )
    checks: Checks = Field(Checks(), description=f"{CHECKS_HELP}; what is not given is as in the base")
    run: Run = Field(Run(), description=RUN_HELP)

    _base_is_not_empty = field_validator("base", mode="before")(some_path)
    _inherited: tuple[str, ...] = PrivateAttr(())

    @property
    def inherited(self) -> str:
        """The settings that the refit leaves to its base: `checks.on_finding: stop, output.files: 2`."""
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
        """The folder of the base."""
        return local_base(self.base, self)

    def request(self, engine: str, base: BaseVersion | None = None) -> Request:
        """Make the request of the stages, on top of `base`, or else of what `find_newest_base` finds.

        Raises a JobError if no version is published.
        """
        base = base or find_newest_base(self.base_path)
        source, output, run = self.resolve_paths()
        return self.with_checks(refitting_request(source, base, self.refit, output, run, engine))


AnyJob = Job | Application | Refit


def find_newest_base(root: Path) -> BaseVersion:
    """Find the newest version that its JSON files show to be good; a JobError if nothing is published.

    Checksums are not verified.
    """
    version = find_newest_good(root, thorough=False).version
    if version is None:
        raise JobError(
            "there is no base",
            where=f"base: {address_of(root)}",
            why=explain_no_base(root),
            do="correct the path; or make a first version with rowmill run, whose job may already name this base",
        )
    return version


def make_refit(data: JsonObject, date_of: DateOf = date_of_run_now) -> Refit:
    """Make a refit of plain values; a JobError if it is not valid, or if its base does not exist.

    `date_of` says which date its patterns mean.
    """
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
            takes_it = "leave it out; a job for rowmill run with `base` takes it"
            do = "leave it out: a job with a base is not split" if name == "split" else takes_it
            raise JobError(f"source.{name} is not for refit", do=do)
    if refit.refit.learn_from is not None:
        raise JobError(
            "refit.learn_from is not for refit",
            why="the features are those of the base: no step is new",
            do="run the job that has the new features: rowmill run JOB.yaml --learn-from DATA",
        )
    check_filter(refit.source)
    check_access(refit)
    base_version = find_newest_base(refit.base_path)
    check_refit(refit.base, refit.refit, graph_from_json(base_version.data["graph"]))
    refit = inherit_from_base(refit, base_version.settings)
    refuse_source_inside(refit)
    exchange_on(refit.run, refit.cluster)  # a check: raises a JobError
    return refit


def inherit_from_base(refit: Refit, base_settings: Mapping[str, JsonObject]) -> Refit:
    """Return the refit with what it leaves out taken from its base.

    `checks` and `output` are inherited key by key, `contract` as a whole. `output.path` and `output.on_existing` are
    never inherited.
    """
    own = refit.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    output = {
        name: value
        for name, value in base_settings.get("output", {}).items()
        if name in Output.model_fields and name not in ("path", "on_existing") and value is not None
    }
    if {"rows_per_file", "files_per_worker"} & output.keys():
        output.pop("files", None)  # not a setting: the number that resulted from the rule
    wanted = overlay_job({"output": output, "checks": base_settings.get("checks", {})}, own)
    output = wanted["output"]
    same_format = output.get("format", "parquet") == base_settings.get("output", {}).get("format", "parquet")
    # An inherited key is dropped if keys of the refit make it invalid: keep in step with the validators of Output.
    may_inherit = {
        "compression": same_format,
        "row_group_size": same_format,
        "shuffle_groups": output.get("shuffle") == "worker",
        "keys": output.get("shuffle") == "key",
        "sort_by": output.get("shuffle") == "key",
        "metadata_file": output.get("format", "parquet") == "parquet",
        "keep_versions": output.get("on_existing") == "version",
        **dict.fromkeys((*TABLES, "mode"), output.get("on_existing") == "version"),
    }
    output = {name: value for name, value in output.items() if name in own["output"] or may_inherit.get(name, True)}
    sections = {"checks": validate_job(Checks, wanted["checks"]), "output": validate_job(Output, output)}
    base_contract = base_settings.get("contract") if refit.contract is None else None
    contract = {"contract": dict(base_contract)} if base_contract else {}
    merged = refit.model_copy(update=sections | contract)
    merged._inherited = (*_list_inherited(sections, own), *contract)
    return merged


def _list_inherited(sections: Mapping[str, Section], own: JsonObject) -> list[str]:
    """List the keys of sections that are not in the refit's `own` values, with their values."""
    lines = []
    for name, section in sections.items():
        own_places = {place for place, _ in flat({name: own.get(name, {})})}
        places = flat({name: section.model_dump(mode="json", exclude_defaults=True)})
        lines += [f"{'.'.join(place)}: {value}" for place, value in places if place not in own_places]
    return lines


def maker_of(flow: str) -> Callable[..., Any]:
    """Return the function that makes the job of a flow (preprocess, fit, apply, refit) of plain values."""
    makers: dict[str, Callable[..., Any]] = {"apply": make_application, "refit": make_refit}
    return makers.get(flow, make_job)
