"""The HTML report of an output: one file that needs no other files and no network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa

from tasks.cluster import usage
from tasks.core.stage_results import RESOURCES, StageResult, StatisticsResult, TransformResult, resources_text
from tasks.core.strict_json import JsonObject
from tasks.core.units import amount, rate
from tasks.errors import DataError
from tasks.graph.binding import Bound
from tasks.graph.failed_casts import describe_record
from tasks.graph.learned_text import (
    count_distinct_values,
    describe_fitted,
    describe_frequent_values,
    is_vocabulary,
    select_learned_steps,
)
from tasks.manifest import describe_run_date
from tasks.ops.fitted_values import FittedSteps
from tasks.profile.output_profile import read_profile
from tasks.report import diagram, profile_section, series, svg, verdict_section
from tasks.report.growth_section import describe_growth
from tasks.sources import sampling
from tasks.sources.reading_rules import reading_lines
from tasks.storage.own_files import REPORTS
from tasks.storage.published_copy import PublishedCopy
from tasks.storage.sample_data import describe_sample_data
from tasks.storage.sidecars import Sidecar
from tasks.storage.signature import add_signature, is_signed

REPORT = REPORTS[0]
WINDOW = 700  # pixels: a picture that is not wider can be read without its full size in any window
# rows of the tables; the manifest has them all
MOST_PARTS = 500
MOST_COLUMNS = 400
MOST_WORKERS = 200


@dataclass(frozen=True)
class Facts:
    """The facts of a report on one output; all but manifest, bound and values may be missing."""

    manifest: JsonObject
    bound: Bound
    values: FittedSteps
    split: str = ""
    results: Sequence[StageResult] = ()
    samples: Mapping[str, usage.Workers] = field(default_factory=dict)  # by the title of the stage
    source: Sequence[profile_section.ColumnSummary] = ()
    source_note: str = ""
    job: str = ""
    run_page: str = ""
    target: str = ""
    performance: str = ""  # the name of Dask's performance report next to the page
    history: Sequence[str] = ()  # the batches that were learned, and sizes, in words
    batches: Sequence[JsonObject] = ()
    growth: Sequence[JsonObject] = ()  # what the last refit did with each step
    upstream: Sequence[str] = ()  # the paths that the output was made of


def render(facts: Facts, folder: Path, origin: PublishedCopy | None = None) -> str:
    """Render the page; `folder` is where the output's files are, for a sample of them. `origin` has its parts, where
    `folder` is in a copy without them."""
    origin = (origin or PublishedCopy(folder)).at(folder)
    manifest = facts.manifest
    sample, note = output_sample(origin, manifest)
    output = profile_section.columns_of(facts.bound.output, sample)
    fill_exact_nulls(output, origin, manifest)
    known = facts.source or profile_section.columns_of(facts.bound.source, None)
    # A refit has learned from the rows of other batches, too; nothing is learned from valid and test.
    if not isinstance(manifest.get("base"), Mapping) and facts.split in ("", "train"):
        profile_section.add_learned(known, facts.bound, facts.values)
    if (profile := read_profile(folder)) is not None:
        profile_section.add_profile(known, profile)
    of_split = f" of {facts.split}" if facts.split else ""
    size = sum(part["bytes"] for part in manifest["parts"])
    picture = diagram.draw_workflow(facts.bound)
    stages = stage_rows(facts)
    return template().render(
        facts=facts,
        manifest=manifest,
        name=Path(facts.target or folder).name,
        rows=manifest["rows"],
        size=size,
        parts=manifest["parts"][:MOST_PARTS],
        stages=stages,
        gantt=gantt(facts),
        plots=plots(facts),
        workers=by_stage(facts, series.worker_rows),
        gpus=by_stage(facts, lambda workers, _: series.gpu_rows(workers)),
        resources=resources_text(
            {name: manifest[name] for name in RESOURCES if name in manifest}, sum(row["seconds"] for row in stages)
        ),
        picture=picture,
        picture_is_wide=svg.width_of(picture) > WINDOW,
        ways=diagram.tabulate_paths(facts.bound),
        source=known[:MOST_COLUMNS],
        output=output[:MOST_COLUMNS],
        output_note=note,
        source_exact=f"of all rows{of_split} that were read"
        if profile is None
        else _describe_exact_rows(profile.rows, of_split),
        output_exact=_describe_exact_rows(manifest["rows"]["out"], of_split),
        embeddings=embeddings(facts.bound),
        gate=verdict_section.section(folder),
        growth=describe_growth(folder, folder if origin.is_copy else Path(facts.target or folder)),
        **tabulate_fitted_state(facts),
    )


def output_sample(origin: PublishedCopy, manifest: JsonObject) -> tuple[pa.Table | None, str]:
    """Sample the written files; return the rows, and a text about them. None if reading fails: the profile then goes
    without."""
    try:
        sample = sampling.of_output(origin, manifest)
    except (pa.ArrowException, OSError, DataError) as error:
        return None, f"the files could not be sampled: {error}"
    if sample is None:
        return None, "the files were too large to be sampled"
    files = sampling.files_of_sample(manifest)
    place = "" if sampling.is_random(manifest) else f"the first ones of {files} file{'s' * (files > 1)}"
    return sample, _note(sample.num_rows, manifest["rows"]["out"], place)


def _describe_exact_rows(rows: int, of_split: str) -> str:
    return f"of all {rows:,} rows{of_split}"


def _note(seen: int, rows: int, place: str) -> str:
    """Describe what a sample of `seen` rows is of: all rows, a random sample (no `place`), or the first rows of a
    place."""
    if seen >= rows:
        return f"of all {rows:,} rows"
    if place:
        return f"of {seen:,} rows, {place}, of {rows:,}; rows elsewhere may be different"
    error = profile_section.error_of(seen)
    return f"of {seen:,} rows, a random sample of {rows:,}; shares within {error:g} points (two standard errors)"


def source_sample(plan: Any) -> tuple[list[profile_section.ColumnSummary], str]:
    """Profile a source's columns from a few thousand rows; return the profiles, and a text about these rows."""
    try:
        sample = sampling.of_source(plan)
    except Exception as error:  # of any reader or remote storage: the report goes without a sample
        return [], f"the source could not be sampled: {type(error).__name__}"
    if sample is None:
        return [], "the source was not sampled: it cannot be read in small pieces"
    schema = profile_section.columns_of(plan.schema, sample)
    places = sampling.places_of_sample(plan)
    place = f"the first ones of {places} place{'s' * (places > 1)}"
    return [p for p in schema if p.name != "__row__"], _note(sample.num_rows, plan.rows, place)


def fill_exact_nulls(
    profiles: Sequence[profile_section.ColumnSummary], origin: PublishedCopy, manifest: JsonObject
) -> None:
    """Put the exact shares of nulls into profiles, if the files' footers have them."""
    try:
        counts = sampling.null_counts(origin, manifest)
    except (pa.ArrowException, OSError, DataError):
        return
    for one in profiles:
        if one.name in counts:
            one.nulls = counts[one.name] / max(manifest["rows"]["out"], 1)
            one.exact.add("nulls")


def stage_rows(facts: Facts) -> list[JsonObject]:
    """Tabulate the stages: of the run, else as the manifest keeps them."""
    results = facts.results or [_make_manifest_row(name, numbers) for name, numbers in facts.manifest["stages"].items()]
    rows = []
    for result in results:
        seconds = max(result.seconds, 1e-9)
        notes = ["already done, not run again"] if result.reused else []
        notes += [f"{result.halved:,} partitions halved for lack of memory"] if result.halved else []
        notes += [resources_text(result.resources, seconds)] if result.resources else []
        notes += [describe_record(dict(failed)) for failed in result.failed_casts]
        if isinstance(result, StatisticsResult) and result.decoded:
            notes.append(f"{amount(result.decoded)} stay decoded for transform")
        if isinstance(result, TransformResult):
            notes.append(f"exchange in {result.exchange}: {result.because}")
        moved = usage.sum_sent_bytes(facts.samples.get(result.title, {}))
        notes += [f"{amount(nbytes)} between workers by {how}" for how, nbytes in moved.items()]
        notes += _describe_local_bytes(result, results, sum(moved.values()))
        rows.append(
            {
                "title": result.title,
                "rows": result.rows,
                "seconds": result.seconds,
                "bytes": amount(result.nbytes),
                "rate": rate(result.rows, seconds),
                "bytes_rate": f"{amount(result.nbytes / seconds)}/s",
                "retries": result.retries,
                "notes": "; ".join(notes),
            }
        )
    return rows


def _make_manifest_row(stage: str, numbers: JsonObject) -> StageResult:
    """Make the row of a stage from the manifest."""
    more = {name: value for name, value in numbers.items() if name not in ("rows", "bytes", "seconds", *RESOURCES)}
    more["resources"] = {name: numbers[name] for name in RESOURCES if name in numbers}
    return StageResult(stage=stage, rows=numbers["rows"], nbytes=numbers["bytes"], seconds=numbers["seconds"], **more)


def _describe_local_bytes(result: StageResult, every: Sequence[StageResult], sent: float) -> list[str]:
    """Describe the bytes of pieces that shuffle_write read on the worker that had them in memory."""
    if result.stage != "shuffle_write" or result.reused:
        return []
    of_split = [one for one in every if isinstance(one, TransformResult) and one.split == result.split]
    here = max(of_split[0].nbytes - sent, 0) if of_split and of_split[0].exchange == "memory" else 0
    return [f"{amount(here)} of pieces were where they were written, in process"] if here else []


def gantt(facts: Facts) -> str:
    """Draw the stages on a time axis; empty if it is not known when they ran."""
    rows = []
    for result, began, ended in _select_timed_results(facts.results):
        if not result.reused:
            began = max(began, ended - result.seconds)
        rows.append((result.title, began, ended, f"{ended - began:.2f} s"))
    return svg.draw_stages(rows) if rows else ""


def _select_timed_results(results: Iterable[StageResult]) -> list[tuple[StageResult, float, float]]:
    """Select (result, began, ended) of the stages whose times are known."""
    return [(r, r.began, r.ended) for r in results if r.began is not None and r.ended is not None]


def plots(facts: Facts) -> list[str]:
    """Throughput, memory, computing, spill over the whole run, the stages as bands."""
    timed = _select_timed_results(result for result in facts.results if not result.reused)
    if not timed:
        return []
    zero = min(began for _, began, _ in timed)
    last = max(ended for _, _, ended in timed)
    bands = [(result.title, began - zero, ended - zero) for result, began, ended in timed]
    return series.plots(_join_samples(facts.samples, zero), zero, (0.0, last - zero), bands)


def _join_samples(samples: Mapping[str, usage.Workers], zero: float) -> dict[str, JsonObject]:
    """Every worker with its samples of all stages since `zero`, in the order of time."""
    merged: dict[str, JsonObject] = {}
    for workers in samples.values():
        for address, worker in workers.items():
            earlier = merged.get(address, {"samples": []})["samples"]
            both = {s.at: s for s in [*earlier, *worker["samples"]] if s.at >= zero}
            merged[address] = {**worker, "samples": [both[at] for at in sorted(both)]}
    return {address: worker for address, worker in merged.items() if worker["samples"]}


def by_stage(facts: Facts, rows_of: Callable[..., list[JsonObject]]) -> list[JsonObject]:
    """Tabulate what each worker, or each GPU, did in each stage."""
    rows = []
    for result in facts.results:
        workers = facts.samples.get(result.title, {})
        rows += [{"stage": result.title} | row for row in rows_of(workers, result.seconds)]
    return rows[:MOST_WORKERS]


def tabulate_fitted_state(facts: Facts) -> JsonObject:
    """Tabulate vocabularies and whatever else was learned."""
    vocabularies = []
    others = []
    for key, step in select_learned_steps(facts.bound, facts.values).items():
        fitted = facts.values[key]
        columns = diagram.names_text(step.unit, 8)
        if is_vocabulary(fitted):
            size = fitted["size"]
            counts = {"values": size, "left": count_distinct_values(fitted) - size, "nulls": fitted.get("nulls", 0)}
            vocabularies.append({"columns": columns, "frequent": describe_frequent_values(fitted, 8), **counts})
        else:
            others.append({"operator": type(step.op).__name__, "columns": columns, "what": describe_fitted(fitted)})
    return {"vocabularies": vocabularies[:MOST_COLUMNS], "others": others[:MOST_COLUMNS]}


def embeddings(bound: Bound) -> list[JsonObject]:
    """Output columns of ids with the size of their embedding tables."""
    return [
        {
            "name": c.name,
            "ids": c.properties["cardinality"],
            "dimension": c.properties["embedding"]["dimension"],
            "size": amount(4 * c.properties["embedding"]["rows"] * c.properties["embedding"]["dimension"]),
        }
        for c in bound.output.columns
        if c.properties.get("embedding")
    ]


@functools.cache
def template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"amount": amount, "n": "{:,}".format, "share_text": share, "bars": svg.bars, "rate": rate}
    environment.filters["moment"] = moment
    environment.filters |= {"reading": reading_lines, "made_up": describe_sample_data, "dated": describe_run_date}
    return environment.get_template("page.html.j2")


def moment(written: str) -> str:
    """
    >>> moment("2026-11-28T17:38:51.598329+00:00"), moment("")
    ('2026-11-28 17:38:51 UTC', '')
    """
    return f"{datetime.fromisoformat(written).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if written else ""


def share(part: float | None) -> str:
    """
    >>> share(0.12345), share(0.0), share(None), share(0.00001)
    ('12.3 %', '0', '', '< 0.1 %')
    """
    if part is None:
        return ""
    return "0" if part == 0 else "< 0.1 %" if part < 0.001 else f"{100 * part:.1f} %"


def write(facts: Facts, folder: Path) -> Path:
    """Write the report into the output's folder, in the place of an earlier one; return its path."""
    return write_report(folder / REPORT, render(facts, folder))


def write_report(path: Path, text: str) -> Path:
    """Write an HTML report with a signature; a JobError where something else than an earlier report is at the path."""
    otherwise = "move it away: a report that was changed by hand is not replaced"
    with Sidecar(path, "report", is_signed, otherwise).replace() as file:
        file.write(add_signature(text.rstrip("\n").encode("utf-8") + b"\n", b"<!--", b" -->"))
    return path
