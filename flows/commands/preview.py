"""The command `preview`, and the dry run of a flow: the same look at a job."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands.console import terminal

REFUSED = 1


def preview(
    job: Annotated[str, typer.Argument(metavar="JOB.yaml|RECIPE", help="a job file, or the name of a shipped recipe")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change the job: --set output.seed=1; may be given many times"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=50, help="rows to show before and after")] = 3,
    sample: Annotated[bool, typer.Option("--sample", help="as in rowmill run")] = False,
    date: Annotated[str | None, typer.Option(help="what {date} means: 2026-11-22; today if left out")] = None,
) -> None:
    """Show what a job would do without doing it: columns, rows before and after, plan, needs, time.

    Writes nothing, and starts no cluster and no server. The rows shown are a few of the source, transformed on the CPU
    by a workflow fitted on 20,000 of them. Memory and disk space are estimated from these rows, the time from earlier
    runs on this host. Exit status: 0, or 1 if the run would be refused, with the reasons first.

    [bold]Examples[/bold]

      rowmill preview job.yaml

      rowmill preview ecommerce --set source.path=/data/shop --rows 10
    """
    from flows.preview.own_process import PreviewProcess

    console = terminal()
    with PreviewProcess() as process, console.status("looking at the job and its data"):
        from flows.commands.launch import job_of

        seen = process.make_preview(job_of(job, set_ or [], sample, date))
        from flows.preview.preview_text import show
    show(seen, rows, console)
    if seen.refused:
        raise typer.Exit(REFUSED)
