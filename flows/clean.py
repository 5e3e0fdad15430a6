"""The command `clean`: work in progress that nobody will go on with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.terminal import terminal


def clean(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH..", help="outputs, folders of outputs, scratch folders")],
    older_than: Annotated[str, typer.Option(metavar="AGE", help="not touched since: 7d, 12h, 30m; 0: any age")] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")] = False,
) -> None:
    """Remove what runs that were cut off left for their next start: the folders .NAME.millrace beside outputs.

    Outputs are not touched. Left alone is what a run works on, what is younger than --older-than, and any folder with
    a file that millrace did not write. A swap that was cut off is finished first. Old versions of an output are removed
    by the run that writes a new one: output.keep_versions.

    [bold]Examples[/bold]

      millrace clean out --dry-run

      millrace clean /data/out /scratch --older-than 12h
    """
    from tasks.report import amount
    from tasks.retention import leftovers, remove, seconds_of

    console, least, freed = terminal(), seconds_of(older_than), 0
    for found in leftovers(paths):
        name = found.folders[0]
        what = f"{name}, {amount(found.nbytes)}, {_age(found.seconds)} old"
        if found.seconds < least:
            console.print(f"kept     {what}: younger than {older_than}", soft_wrap=True, markup=False)
            continue
        why = "" if dry_run else remove(found)
        if why:
            console.print(f"kept     {what}: {why}", soft_wrap=True, markup=False)
        else:
            freed += found.nbytes
            console.print(f"{'would go' if dry_run else 'removed '} {what}", soft_wrap=True, markup=False)
    console.print(f"freed    {amount(0 if dry_run else freed)}", soft_wrap=True)


def _age(seconds: float) -> str:
    """In the largest unit of which there are two at least.

    >>> _age(5), _age(7200), _age(200_000)
    ('5 s', '2 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
