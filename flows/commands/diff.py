"""The commands `diff` (two outputs side by side) and `contract` (a first contract for a source)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.arguments import Output, StorageOptions
from flows.commands.console import ascii_yaml, print_document, terminal
from tasks.errors import DataError

if TYPE_CHECKING:
    from tasks.gate.comparison import OutputDifference, Side
    from tasks.storage.published_copy import PublishedCopy


def diff(
    before: Output,
    now: Annotated[
        str, typer.Argument(help="another one; v0007 is looked for next to the first, and in it", show_default=False)
    ],
    all_: Annotated[
        bool, typer.Option("--all", help="show every distribution whole, not only the largest changes")
    ] = False,
    storage_options: StorageOptions = None,
) -> None:
    """Show two outputs side by side: rows, columns, vocabularies, statistics and distributions of the source.

    Statistics cover all rows that a run has read, as the gate compares them. Distributions come with their
    Jensen-Shannon distance and PSI, those that moved most first; then come the pairs of columns whose association
    changed.

    [bold]Examples[/bold]

      rowmill diff out/nightly/v0006 v0007
    """
    from tasks.gate.comparison import compare_outputs
    from tasks.storage.own_files import SPLITS

    with ExitStack() as stack:
        first = stack.enter_context(_open_output(before, storage_options))
        second = stack.enter_context(_open_output(_find_second(before, now, storage_options), storage_options))
        splits = [[split for split in SPLITS if (one.folder / split).is_dir()] for one in (first, second)]
        if splits[0] != splits[1]:
            raise DataError(
                "the outputs have other splits",
                where=f"{before} and {now}",
                why=f"{', '.join(splits[0]) or 'none'} and {', '.join(splits[1]) or 'none'}",
                do="compare a split with a split: rowmill diff OUT/train OTHER/train",
            )
        for split in splits[0] or [""]:
            sides = [_load_side(one.folder / split, one) for one in (first, second)]
            _print_comparison(compare_outputs(*sides), all_)


def _find_second(before: str, now: str, storage_options: str | None) -> str:
    """The output that the second argument of `diff` means: itself, or a version next to the first one, or in it."""
    if "/" in now:
        return now
    around, _, _ = before.rstrip("/").rpartition("/")
    places = [now, f"{around}/{now}" if around else now, f"{before.rstrip('/')}/{now}"]
    # If none exists, the error is about the version next to the first output: the most likely meaning.
    return next((place for place in places if _is_output(place, storage_options)), places[1])


def _is_output(place: str, storage_options: str | None) -> bool:
    from tasks.storage.credentials import COMMAND, storage
    from tasks.storage.stores import open_store

    store = open_store(place, storage(storage_options, COMMAND))
    if store.is_local:
        return Path(place).exists()
    return any(store.list_folder(store.full_path(place)))


def contract(
    out: Output,
    storage_options: StorageOptions = None,
) -> None:
    """Print a first contract for the source of an output, as YAML with comments.

    It has the type, share of nulls, and domain or range of each column, from its profile. Read it and fix it, then name
    it in the job: contract: contract.yaml.

    [bold]Examples[/bold]

      rowmill contract out/nightly > contract.yaml
    """
    from tasks.gate.contract_values import propose_contract
    from tasks.profile.output_profile import read_profile
    from tasks.storage.own_files import SPLITS

    with _open_output(out, storage_options) as origin:
        folder = origin.folder / SPLITS[0] if (origin.folder / SPLITS[0]).is_dir() else origin.folder
        profile = read_profile(folder)
        if profile is None:
            raise DataError(
                "there is no profile of the source",
                where=str(folder),
                why="run.profile is off by default in a job without base, checks, contract and on_existing: version",
                do="run the job again with run.profile: true",
            )
        name = origin.label(folder)
        if name in SPLITS:
            name = f"{origin.label(folder.parent)}/{name}"
        print_document(propose_contract(profile, name), ascii_yaml)


@contextmanager
def _open_output(path: str, storage_options: str | None) -> Iterator[PublishedCopy]:
    """Give the folder of an output, or that of its newest version; DataError if it is not an output.

    A discarded output is reported on stderr and used all the same.
    """
    from tasks.manifest import folders_of
    from tasks.storage.discarded import make_discard_line
    from tasks.storage.own_files import current
    from tasks.storage.published_copy import open_published

    with open_published(path, storage_options, "the output", "OUT") as origin:
        folders_of(origin.folder)
        folder = current(origin.folder)
        if line := make_discard_line(folder):
            typer.echo(origin.with_urls(line), err=True)
        yield origin.at(folder)


def _load_side(folder: Path, origin: PublishedCopy) -> Side:
    """Load what is compared of one side: manifest and profile of `folder`, and vocabularies of the output around it.

    `folder` is that of a split, or of the output itself if it has no splits.
    """
    from tasks.core.schema import Schema
    from tasks.gate.comparison import Side
    from tasks.graph.learned_text import is_vocabulary, select_learned_steps
    from tasks.graph.saved_workflow import load_fitted
    from tasks.manifest import Manifest
    from tasks.profile.output_profile import read_profile

    manifest = Manifest.load(folder)
    saved = load_fitted(origin.folder, look=True)  # without importing code that users wrote
    vocabularies = {}
    for key, step in select_learned_steps(saved.bound, saved.state.values).items():
        fitted = saved.state.values[key]
        if is_vocabulary(fitted):
            vocabularies[", ".join(step.unit)] = fitted["values"].slice(0, fitted["size"])
    dated = manifest.data.get("dated") or {}
    name = origin.label(origin.folder)
    if folder != origin.folder:
        name += f"/{folder.name}"
    schema = Schema.from_json(manifest.data["schema"])
    return Side(name, manifest.rows, schema, vocabularies, read_profile(folder), dated.get("date", ""))


def _print_comparison(result: OutputDifference, every: bool) -> None:
    """Print a comparison as tables; heads that end in `>` are aligned right (see `text_table`)."""
    console = terminal()
    before = result.before
    now = result.now
    titles = [f"{side.name}{f' ({side.day})' if side.day else ''}" for side in (before, now)]
    console.print(" and ".join(titles), style="bold", markup=False, soft_wrap=True)
    _print_rows("", ("", f"{before.name}>", f"{now.name}>", "change>"), result.rows)
    _print_rows("columns of the output", ("column", before.name, now.name), result.schema)
    sizes = [
        (v.columns, f"{v.before:,}", f"{v.now:,}", f"{v.new:,}", f"{v.gone:,}", f"{v.moved:,}", v.examples)
        for v in result.vocabularies
    ]
    names = ("columns", f"{before.name}>", f"{now.name}>", "new>", "gone>", "ids moved>", "new values")
    _print_rows("vocabularies", names, sizes)
    of_columns = ("column", "", f"{before.name}>", f"{now.name}>", "change>")
    _print_rows("statistics of the source", of_columns, result.statistics)
    moves = [(moved.column, f"{moved.jensen_shannon:.3g}", f"{moved.psi:.3g}") for moved in result.distributions]
    _print_rows("distances of distributions", ("column", "Jensen-Shannon>", "PSI>"), moves)
    _print_distributions(result, every)
    _print_rows(
        "associations of columns (Cramer's V)",
        ("columns", f"{before.name}>", f"{now.name}>", "change>"),
        result.associations,
    )
    for note in result.notes:
        console.print(note, markup=False, soft_wrap=True)


def _print_distributions(result: OutputDifference, every: bool) -> None:
    """Print the cells of all distributions if `every`, else the five largest changes of the five that moved most."""
    from tasks.gate.contract_values import format_percent

    moved = [distribution for distribution in result.distributions if distribution.jensen_shannon > 0]
    for distribution in result.distributions if every else moved[:5]:
        cells = list(zip(distribution.labels, distribution.before, distribution.now, strict=True))
        if not every:
            cells = sorted(cells, key=lambda cell: -abs(cell[1] - cell[2]))[:5]
        rows = [(label, format_percent(a), format_percent(b), f"{100 * (b - a):+.3g} points") for label, a, b in cells]
        heads = ("", f"{result.before.name}>", f"{result.now.name}>", "change>")
        _print_rows(distribution.column, heads, rows)


def _print_rows(title: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    from flows.preview.preview_tables import print_table, text_table

    table = text_table(title, *heads)
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        print_table(table, terminal())
