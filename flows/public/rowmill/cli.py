"""The `rowmill` command. Everything heavy is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows.commands.arguments import Output, OutputOrWorkflow, StorageOptions
from flows.commands.backfill import backfill
from flows.commands.clean import clean
from flows.commands.console import (
    DAMAGED,
    NO_OUTPUT,
    ascii_prototext,
    ascii_yaml,
    escape_what_cannot_be_printed,
    is_debugging,
    print_document,
    report_failures,
    say_error,
    say_failure,
    terminal,
)
from flows.commands.diff import contract, diff
from flows.commands.discard import discard
from flows.commands.preview import preview
from flows.commands.publish import publish
from flows.commands.serve import deploy, serve
from flows.commands.status import status, stop

# the panels of --help
FIRST = "First steps"
JOBS = "Jobs"
NIGHTS = "Nights"
OUTPUTS = "Outputs"
SERVER = "Server"
# The commands in the order of --help, which is that of flows/README.md.
ORDER = (
    "demo", "sample", "new",
    "run", "preview", "fit", "apply", "refit", "ops", "schema",
    "backfill", "publish", "discard", "contract", "trigger",
    "inspect", "versions", "verify", "diff", "report", "lineage", "clean",
    "status", "serve", "deploy", "stop",
)  # fmt: skip

Sampled = Annotated[
    bool, typer.Option("--sample", help="make the look-alike data of the job or recipe where nothing is at its paths")
]


Dated = Annotated[
    str | None,
    typer.Option(
        "--date", help="the date that {date} and {hour} stand for in paths and filters: 2026-11-22; now if left out"
    ),
]


class Commands(TyperGroup):
    """The commands, by panel; `--debug` may stand before or after the command's name."""

    def list_commands(self, ctx: typer.Context) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        flag = ["--debug"] if "--debug" in args else []
        return list(super().parse_args(ctx, [*flag, *(arg for arg in args if arg != "--debug")]))


def _preprocess() -> Callable[..., Any]:
    from flows.preprocess import preprocess

    return preprocess


def _fit() -> Callable[..., Any]:
    from flows.fit import fit

    return fit


def _apply() -> Callable[..., Any]:
    from flows.apply import apply

    return apply


def _refit() -> Callable[..., Any]:
    from flows.refit import refit

    return refit


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class SampleName(StrEnum):
    toy = "toy"
    ecommerce = "ecommerce"
    criteo = "criteo"
    wide = "wide"


class SampleFormat(StrEnum):
    parquet = "parquet"
    csv = "csv"
    tsv = "tsv"


def main() -> None:
    """The console script: every failure is a message and an exit status that is not 0."""
    escape_what_cannot_be_printed()
    try:
        app()
    except Exception as error:  # outside of any command
        sys.exit(say_failure(error, "rowmill"))


@app.callback()
def rowmill(
    debug: Annotated[bool, typer.Option("--debug", help="also show the traceback of an error")] = False,
) -> None:
    """Raw interaction logs to training-ready Parquet: learned features, a true global shuffle, on CPUs and GPUs.

    Begin with [bold]rowmill demo[/bold], look at what it wrote with [bold]rowmill inspect rowmill-demo/out[/bold],
    then write a job of your own: [bold]rowmill ops[/bold] lists what can be done to columns.
    """
    if debug:
        os.environ["ROWMILL_DEBUG"] = "1"


@app.command(rich_help_panel=FIRST)
@report_failures
def demo(
    path: Annotated[Path, typer.Option(help="folder for data/ and out/")] = Path("rowmill-demo"),
    rows: Annotated[int, typer.Option(min=1, help="rows of the toy data set")] = 1_000_000,
) -> None:
    """See everything work: make a million rows, preprocess them in a Prefect run, and write shuffled Parquet.

    Starts a Prefect server on this host if none is configured, and uses the GPUs if there are any. A second run
    replaces the output of the first.

    [bold]Examples[/bold]

      rowmill demo

      rowmill demo --rows 10000000 --path /data/demo
    """
    from flows.commands.launch import begin, launch

    console = terminal()
    with begin(console, str(path), "flows.preprocess"):
        data = path / "data"
        out = path / "out"
        with console.status(f"making {rows:,} rows"):
            from flows.sample import make_sample

            sample = make_sample("toy", data, rows)
        console.print(
            f"data     {sample.rows:,} rows in {sample.files} file(s), {data.resolve()}", soft_wrap=True, markup=False
        )
        job = {"recipe": "toy", "source": {"path": str(data)}, "output": {"path": str(out), "on_existing": "replace"}}
        launch(job, "flows.preprocess", _preprocess, console, is_debugging())


@app.command(rich_help_panel=JOBS)
@report_failures
def run(
    job: Annotated[str, typer.Argument(metavar="JOB.yaml|RECIPE", help="a job file, or the name of a shipped recipe")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change the job: --set output.seed=1; may be given many times"),
    ] = None,
    sample: Sampled = False,
    date: Dated = None,
    learn_from: Annotated[
        list[str] | None,
        typer.Option(help="older rows, from which new steps learn first; may be given many times"),
    ] = None,
) -> None:
    """Run a job: read, learn statistics, transform, shuffle and write, as a Prefect run with its own page.

    If a job is interrupted, rerun the same command; it resumes where it stopped. Paths in a job are relative to the
    current folder. Functions named in a job are looked up next to the job file and in the current folder.

    [bold]Examples[/bold]

      rowmill run job.yaml

      rowmill run job.yaml --set output.seed=1 --set output.path=out/seed-1

      rowmill run ecommerce --set source.sample.rows=100000 --set output.on_existing=replace

      rowmill run ecommerce --set source.path=/scratch/shop --sample
    """
    from flows.commands.launch import begin, job_of, launch

    console = terminal()
    changes = [*(set_ or []), *([f"refit.learn_from={json.dumps(learn_from)}"] if learn_from else [])]
    with begin(console, job, "flows.preprocess", job, changes):
        launch(job_of(job, changes, sample, date), "flows.preprocess", _preprocess, console, is_debugging())


@app.command(rich_help_panel=JOBS)
@report_failures
def fit(
    job: Annotated[str, typer.Argument(metavar="JOB.yaml|RECIPE", help="a job file, or the name of a shipped recipe")],
    path: Annotated[str, typer.Option(help="folder or URL of the fitted workflow", show_default=False)],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change the job: --set output.on_existing=replace"),
    ] = None,
    sample: Sampled = False,
    date: Dated = None,
    storage_options: StorageOptions = None,
) -> None:
    """Only learn: read what the statistics need, learn, and save a fitted workflow; no rows are written.

    The job is one for [bold]rowmill run[/bold]; its section output is ignored, except on_existing and
    storage_options. The fitted workflow is a folder of readable files; [bold]rowmill apply[/bold] and Workflow.load
    take it, on the CPU or a GPU, also after it was moved.

    [bold]Examples[/bold]

      rowmill fit job.yaml --path fitted/toy

      rowmill fit ecommerce --path fitted/shop --set source.sample.rows=100000 --set output.on_existing=version
    """
    from flows.commands.launch import begin, job_of, launch

    console = terminal()
    place = f"output.path={json.dumps(path)}"
    changes = [*_choose_storage(storage_options), *(set_ or [])]
    with begin(console, job, "flows.fit", job, changes):
        launch(job_of(job, [*changes, place], sample, date), "flows.fit", _fit, console, is_debugging())


@app.command(rich_help_panel=JOBS)
@report_failures
def apply(
    fitted: OutputOrWorkflow,
    source: Annotated[
        list[str] | None, typer.Option(help="new rows: path, folder, glob or URL; may be given many times")
    ] = None,
    output: Annotated[str | None, typer.Option(help="folder or URL to write")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="source, output, cluster, run: --set output.shuffle=none"),
    ] = None,
    date: Dated = None,
    storage_options: StorageOptions = None,
) -> None:
    """Transform new data with a fitted workflow, shuffle and write them; nothing is learned.

    Columns are found by name and read in the types of the fit; others are not looked at. Values not seen during the fit
    get what their operator gives unknown values (Categorify: an out-of-vocabulary id). Label columns that the new data
    lack are left out and named; any other missing column is an error. The source is read as that of the fit, unless it
    is set otherwise: null_values, schema, explode, filter, strict, keys and sort_by; delimiter, header and columns
    where the files have the format of the fit. An interrupted run resumes where it stopped when the same command is
    given again.

    [bold]Examples[/bold]

      rowmill apply fitted/toy --source new/data --output out/new

      rowmill apply s3://shop/fitted --source 's3://shop/new/*.parquet' --output out/new --storage-options shop

      rowmill apply out/ecommerce --source 'data/december/*.csv' --output out/december --set source.filter=null
    """
    from flows.commands.launch import application_of, begin, launch

    console = terminal()
    changes = [*_choose_storage(storage_options), *(set_ or [])]
    with begin(console, fitted, "flows.apply", None, changes):
        data = application_of(fitted, source or [], output, changes, date)
        launch(data, "flows.apply", _apply, console, is_debugging())


@app.command(rich_help_panel=JOBS)
@report_failures
def refit(
    base: Annotated[
        str,
        typer.Argument(
            help="the output whose newest good version is learned on top of: its folder or URL", show_default=False
        ),
    ],
    source: Annotated[
        list[str] | None, typer.Option(help="the new rows: path, folder, glob or URL; may be given many times")
    ] = None,
    output: Annotated[str | None, typer.Option(help="folder to write; a new version of the base if left out")] = None,
    again: Annotated[bool, typer.Option("--again", help="also files that the base has learned already")] = False,
    refit_all: Annotated[
        bool,
        typer.Option("--refit-all", help="learn again, from these rows alone, all but frozen steps; ids stay"),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="source, output, refit, run: --set refit.Normalize=freeze"),
    ] = None,
    date: Dated = None,
    storage_options: StorageOptions = None,
) -> None:
    """Learn from new rows on top of an output, and write these rows as its next version.

    Reads the new rows only. Every value that had an id keeps it, new values are appended; counts, means and other sums
    are those of all nights; what cannot be merged stays as it is, and the log says why. The base is the newest version
    that is whole and not discarded; its features and types hold, and its checks, contract, order and files unless
    --set says otherwise. A file that it has learned already is refused. What changed is in
    [bold]_workflow/changes.json[/bold]. An interrupted run resumes where it stopped when the same command is given
    again.

    [bold]Examples[/bold]

      rowmill refit out/nightly --source 'logs/{date-1}/'

      rowmill refit out/nightly --source logs/2026-11-22/ --date 2026-11-23 --set refit.forget=365d
    """
    from flows.commands.launch import begin, launch, refit_of

    console = terminal()
    ways = [f"refit.{key}=true" for key, wanted in (("again", again), ("all", refit_all)) if wanted]
    changes = [*_choose_storage(storage_options), *(set_ or [])]
    with begin(console, base, "flows.refit", None, changes):
        data = refit_of(base, source or [], output, [*changes, *ways], date)
        launch(data, "flows.refit", _refit, console, is_debugging())


def _choose_storage(storage_options: str | None) -> list[str]:
    """The changes of a job that name the options of its storage, for what it reads and for what it writes."""
    if storage_options is None:
        return []
    return [f"{section}.storage_options={json.dumps(storage_options)}" for section in ("source", "output")]


@app.command(rich_help_panel=FIRST)
@report_failures
def sample(
    name: Annotated[SampleName, typer.Argument(help="which data set to imitate")],
    path: Annotated[Path, typer.Option(help="folder to fill", show_default=False)],
    rows: Annotated[int, typer.Option(min=1)] = 1_000_000,
    seed: Annotated[int, typer.Option(help="the same rows and seed give the same data, everywhere")] = 0,
    files: Annotated[int | None, typer.Option(min=1, help="how many files; one per 4 million rows if left out")] = None,
    format: Annotated[SampleFormat, typer.Option(help="csv has a header, tsv has none")] = SampleFormat.parquet,
    drift: Annotated[bool, typer.Option("--drift", help="ecommerce: the next month, with other shares")] = False,
    columns: Annotated[int | None, typer.Option(min=1, help="wide: how many columns; 100 if left out")] = None,
    nights: Annotated[int | None, typer.Option(min=1, help="ecommerce: that many days, each in its own folder")] = None,
    start: Annotated[str | None, typer.Option(help="with --nights: the first day; 2026-10-01 if left out")] = None,
    new_ids: Annotated[
        float | None, typer.Option(min=0.02, max=1, help="with --nights: new users per row; 0.048 if left out")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="with --nights: only this day; repeatable")] = None,
) -> None:
    """Make look-alike data: a data set with the cardinalities, skew and nulls of a known one, reproducible by seed.

    toy: timestamp, id, name, x, y, label. ecommerce: what visitors of a shop viewed, put into the cart and bought.
    criteo: label, 13 counts and 26 categories of advertising clicks. wide: float columns x0000 .. of a few hidden
    factors, and a target y.

    With --nights, ecommerce fills a folder for each day (PATH/2026-10-01 ..) with about --rows rows. They drift
    as real days do: weekdays, a trend, new products and users, and noise.

    [bold]Examples[/bold]

      rowmill sample toy --rows 1000000 --path data/toy

      rowmill sample criteo --rows 5000000 --seed 7 --path data/criteo --files 8 --format tsv

      rowmill sample ecommerce --nights 31 --rows 100000 --path data/shop
    """
    from flows.sample import make_batches, make_sample
    from tasks.core.units import amount

    console = terminal()
    of_nights: dict[str, Any] = {"start": start, "new_ids": new_ids, "only": only}
    options: dict[str, Any]
    with console.status(f"making {rows:,} rows" + (" for each night" if nights else "")):
        if nights:
            _check_batch_options(name.value, drift or columns is not None)
            options = _parse_batch_options(**of_nights)
            written = make_batches(path, nights, rows, seed, files=files, format=format.value, **options)
        elif lone := [key for key, value in of_nights.items() if value]:
            from tasks.errors import JobError

            raise JobError(f"--{lone[0].replace('_', '-')} is for nights", do="give --nights, or leave it out")
        else:
            options = {"drift": drift, "columns": columns}
            written = make_sample(name.value, path, rows, seed, files=files, format=format.value, **options)
    size = f"{amount(written.bytes)}, {written.seconds:.1f} s"
    days = f"{written.batches} night(s) of " if nights else ""
    text = f"{written.rows:,} rows of {days}{name.value} in {written.files} file(s), {size}"
    console.print(f"{text}: {path}", soft_wrap=True, markup=False)


def _check_batch_options(name: str, is_other: bool) -> None:
    """Raise a JobError for nights of another sample than the shop; `is_other`: with options of those."""
    from tasks.errors import JobError

    if name != "ecommerce" or is_other:
        what = "--drift and --columns are not for nights" if is_other else f"{name} has no nights"
        raise JobError(what, do="rowmill sample ecommerce --nights 31 --path data/shop")


def _parse_batch_options(start: str | None, new_ids: float | None, only: list[str] | None) -> dict[str, Any]:
    """What `make_batches` is given of the options of `rowmill sample`; a JobError for a text that is not a day."""
    from datetime import date

    from tasks.errors import JobError

    def day(text: str, option: str) -> date:
        try:
            return date.fromisoformat(text)
        except ValueError:
            raise JobError(f"{text!r} is not a day", where=option, do="write it as 2026-10-01") from None

    options: dict[str, Any] = {"only": [day(text, "--only") for text in only or ()]}
    options |= {"start": day(start, "--start")} if start else {}
    return options | ({"new_ids": new_ids} if new_ids else {})


@app.command(rich_help_panel=FIRST)
@report_failures
def new(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA..", help="files, folders, globs or URLs", show_default=False)
    ],
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="what is to be predicted; by name if left out")
    ] = None,
    storage_options: StorageOptions = None,
) -> None:
    """Draft a job for data: what happens to each column, what is left out and why, as comments. It runs as it is.

    Names, types and the number of rows are exact; values, nulls and skewness come from at most 20,000 rows, and the
    draft says which. Redirect it to a file, read it, fix it. If more than one line of a hundred cannot be read, or no
    column is left, the draft is written as comments, and the command ends with status 1.

    [bold]Examples[/bold]

      rowmill new data/shop > job.yaml && rowmill preview job.yaml

      rowmill new 'logs/*.csv' --label clicked > job.yaml

      rowmill new s3://shop/logs --storage-options shop > job.yaml
    """
    from flows.draft.draft import DraftError, draft
    from tasks.storage.credentials import COMMAND, storage

    storage(storage_options, COMMAND)  # an unknown name fails here, as that of an option of the command
    try:
        print_document(draft(data[0] if len(data) == 1 else data, label, storage_options), ascii_yaml)
    except DraftError as error:
        print_document(error.draft, ascii_yaml)
        raise


@app.command(rich_help_panel=JOBS)
@report_failures
def schema() -> None:
    """Print the JSON Schema of a job, with which editors complete keys, operators and choices, and mark mistakes.

    A job names it in its first line, as a draft of rowmill new does.

    [bold]Examples[/bold]

      rowmill schema > job.schema.json && head -1 job.yaml    # yaml-language-server: $schema=job.schema.json
    """
    import json

    from flows.job.json_schema import job_schema

    print(json.dumps(job_schema(), indent=1))


@app.command(rich_help_panel=OUTPUTS)
@report_failures
def verify(out: Output, storage_options: StorageOptions = None) -> None:
    """Check an output against its manifest: every part exists with its size and checksum, and there are no others.

    Exit status: 0 whole, 1 damaged (every damaged part is named), 2 not an output of rowmill.

    [bold]Examples[/bold]

      rowmill verify out/toy

      rowmill verify out/toy && python train.py

      rowmill verify s3://shop/out/nightly
    """
    from flows.commands.inspect import verify_output
    from tasks.errors import DataError

    try:
        lines, damages, remedy = verify_output(out, storage_options)
    except DataError as error:
        say_error(str(error))
        raise typer.Exit(NO_OUTPUT) from None
    console = terminal(soft_wrap=True)
    for line in lines:
        console.print(line, markup=False)
    if damages:
        for line in damages:
            console.print(f"damaged: {line}", markup=False)
        say_error(f"{len(damages)} problem(s) in {out}\n  do: {remedy}")
        raise typer.Exit(DAMAGED)


@app.command(rich_help_panel=OUTPUTS)
@report_failures
def inspect(
    out: OutputOrWorkflow,
    rows: Annotated[int, typer.Option(min=0, help="first rows to show")] = 5,
    values: Annotated[int, typer.Option(min=1, help="most frequent values to show of a vocabulary")] = 5,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="only the embedding table sizes, as JSON")] = False,
    merlin: Annotated[bool, typer.Option("--merlin", help="only the schema, as schema.pbtxt of NVIDIA Merlin")] = False,
    storage_options: StorageOptions = None,
) -> None:
    """Show the contents of an output: schema, parts, learned values (vocabularies, means), embedding sizes, first rows.

    [bold]Examples[/bold]

      rowmill inspect out/toy

      rowmill inspect out/ecommerce/_workflow --values 20

      rowmill inspect out/toy --embeddings > embeddings.json

      rowmill inspect out/toy --merlin > schema.pbtxt

      rowmill inspect s3://shop/out/nightly --storage-options shop
    """
    from flows.commands import inspect as commands_inspect

    if embeddings:
        print(commands_inspect.embeddings_json(out, storage_options))
    elif merlin:
        print_document(commands_inspect.merlin_schema(out, storage_options), ascii_prototext)
    else:
        commands_inspect.show_folder(out, rows, values, storage_options=storage_options)


@app.command(rich_help_panel=OUTPUTS)
@report_failures
def lineage(
    out: OutputOrWorkflow,
    column: Annotated[str | None, typer.Option(help="only this column", show_default=False)] = None,
    storage_options: StorageOptions = None,
) -> None:
    """Show what an output was made of, from its folder alone: the versions it builds on, the files they learned from
    with their digests, and for each column its source columns and the operators in between.

    [bold]Examples[/bold]

      rowmill lineage out/nightly

      rowmill lineage out/toy --column TE_item_y
    """
    from flows.commands.inspect import lineage_lines
    from tasks.errors import visible

    for line in lineage_lines(out, column, storage_options):
        print(visible(line))


@app.command(rich_help_panel=OUTPUTS)
@report_failures
def report(
    out: Output,
    open_: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
    again: Annotated[bool, typer.Option("--again", help="make it again, from what the output holds")] = False,
    storage_options: StorageOptions = None,
) -> None:
    """Print the path of an output's HTML report, a single file that needs no network; train and valid have one each.

    If it is missing, it is made again from the manifest, the fitted workflow and the files, without the curves over
    time, which only the run had. The report of an output behind a URL is copied to this host, or made there.

    [bold]Examples[/bold]

      rowmill report out/toy --open

      rowmill report out/ecommerce
    """
    from tasks.report.html import reports_of

    for path in reports_of(out, again, storage_options):
        print(path.resolve())
        if open_:
            typer.launch(path.resolve().as_uri())


@app.command(rich_help_panel=OUTPUTS)
@report_failures
def versions(
    out: Output,
    storage_options: StorageOptions = None,
) -> None:
    """List the versions of an output: date, rows, ids added, verdict, size, and which ones were taken back.

    Also shows which events the Prefect server has received, which night waits for an answer, what the output was made
    of, and which outputs next to it were made of it. The table is Markdown if it is not printed on a terminal.

    [bold]Examples[/bold]

      rowmill versions out/nightly
    """
    from rich.markdown import Markdown

    from flows.published.versions_page import versions_text
    from tasks.core.markdown import unescape_markdown

    text = versions_text(out, storage_options)
    console = terminal()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(unescape_markdown(text))


@app.command(rich_help_panel=JOBS)
@report_failures
def ops(
    name: Annotated[
        str | None, typer.Argument(help="an operator, or module:Name of one of your own", show_default=False)
    ] = None,
) -> None:
    """List the operators, or explain one: what it computes, its parameters and their defaults, an example.

    [bold]Examples[/bold]

      rowmill ops

      rowmill ops Categorify

      rowmill ops mine:Twice    # of mine.py in the current folder
    """
    from flows.commands import inspect as commands_inspect
    from flows.commands.launch import make_importable

    make_importable(Path.cwd())
    if name is None:
        commands_inspect.show_operators()
    else:
        commands_inspect.show_operator(name)


@app.command(rich_help_panel=NIGHTS)
@report_failures
def trigger(
    paths: Annotated[list[str], typer.Argument(metavar="PATH..", help="files, folders or URLs", show_default=False)],
    pattern: Annotated[
        list[str] | None, typer.Option(help="which files of a folder are data: '*.csv'; by suffix if left out")
    ] = None,
    format: Annotated[str, typer.Option(help="the format of the data, whose suffixes alone count then")] = "auto",
    storage_options: StorageOptions = None,
) -> None:
    """Run the deployments for new data on files, including files that watch-source has announced before.

    Sends an event rowmill.data.arrived for PATH and for each folder directly in it, with its files; deployments with
    that trigger run on them. Use it for files whose run has failed, once the cause is fixed; to leave out a bad file,
    name the good ones.

    [bold]Examples[/bold]

      rowmill trigger data/incoming/day=7

      rowmill trigger data/incoming/a.csv data/incoming/b.csv
    """
    from flows.watch_source import announce
    from infra.orchestration.server import ensure_server
    from tasks.storage.credentials import COMMAND, storage

    console = terminal()
    server = ensure_server(console.print)
    sent = announce(paths, pattern or [], format, storage(storage_options, COMMAND))
    console.print(f"announced {sent} event(s) rowmill.data.arrived", soft_wrap=True)
    console.print(f"runs     {server.ui_url}/runs", soft_wrap=True)


OF_OTHER_MODULES: dict[str, tuple[Callable[..., None], ...]] = {
    JOBS: (preview,),
    NIGHTS: (backfill, publish, discard, contract),
    OUTPUTS: (diff, clean),
    SERVER: (status, serve, deploy, stop),
}
for panel, commands in OF_OTHER_MODULES.items():
    for command in commands:
        app.command(rich_help_panel=panel)(report_failures(command))


if __name__ == "__main__":
    main()
