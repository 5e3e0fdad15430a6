"""The commands that let rowmill run by itself: `serve` from one process, `deploy` for the worker of a pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tasks.core.strict_json import JsonObject

FileOption = Annotated[
    Path | None, typer.Option("--file", help="a prefect.yaml of your own; infra/prefect.yaml if left out")
]
NotifyOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="ROWMILL_NOTIFY",
        help="webhook notified of failed runs (Slack, Mattermost, ..); stored on the server",
    ),
]
NotifyOutputsOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="ROWMILL_NOTIFY_OUTPUTS",
        help="webhook notified of outputs: published, discarded, refused, waiting for an answer; stored on the server",
    ),
]


def serve(
    file: FileOption = None,
    limit: Annotated[int, typer.Option(min=1, help="runs at once on this host; the others wait")] = 1,
    notify: NotifyOption = None,
    notify_outputs: NotifyOutputsOption = None,
) -> None:
    """Offer the flows with the form and their schedules from this process, until Ctrl-C.

    Uses the configured Prefect server, otherwise one on this host, which it starts if needed. Each run is a separate
    process, in this folder. Ctrl-C and SIGTERM cancel the runs and pause the schedules; finished work is kept, and the
    next start resumes the schedules.

    [bold]Examples[/bold]

      rowmill serve

      rowmill serve --limit 2 --notify https://hooks.slack.com/services/T0/B0/xyz

      rowmill serve --file deployments.yaml
    """
    from flows.commands.console import terminal
    from flows.commands.launch import say_dead_runs
    from flows.job.access import serving_limits
    from infra.orchestration import deployments
    from infra.orchestration.deployment_file import FILE, full_name, read_file
    from infra.orchestration.server import ensure_server

    console = terminal()
    path = file or FILE
    deployments.check_notify(notify)
    deployments.check_notify(notify_outputs, "--notify-outputs")
    data = read_file(path)
    lines = [f"{full_name(spec)}: {_describe_start(spec)}" for spec in data["deployments"]]
    lines += [f"check    {line}" for line in describe_doubtful_jobs(data)]
    server = ensure_server(console.print)
    say_dead_runs(console)  # an earlier serve that was killed left its runs as running
    if notify_outputs:
        deployments.ensure_webhook(deployments.OUTPUTS_WEBHOOK, notify_outputs)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    for name in deployments.update_served_note(path):
        how = f"it stays on the server, but nothing runs it; `prefect deployment delete '{name}'` removes it"
        console.print(f"left     {name} is no longer in the file: {how}", markup=False, soft_wrap=True)
    console.print(f"forms    {server.ui_url}/deployments", soft_wrap=True)
    for line in serving_limits():
        console.print(f"limits   {line}", soft_wrap=True)
    console.print("press Ctrl-C to stop", soft_wrap=True)
    deployments.serve(path, limit, notify)
    console.print("stopped serving; the schedules are paused until the next start")


def deploy(
    pool: Annotated[str, typer.Option(help="work pool; made as a process pool if there is none")] = "rowmill",
    file: FileOption = None,
    limit: Annotated[int, typer.Option(min=1, help="jobs at once in the pool; the others wait in their order")] = 1,
    notify: NotifyOption = None,
    notify_outputs: NotifyOutputsOption = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="remove deployments that this file no longer has for this pool")
    ] = False,
) -> None:
    """Register the flows with a Prefect server, for a worker that runs them on this (or another) host.

    Creates the work pool, the deployments with their schedules and triggers, and the automations; a second call updates
    them. Runs start in the folder in which you call this, unless the file names another one. Settings that the file
    leaves out (pull, environment, tag) are filled in. By default a pool runs one job at a time (--limit): give each GPU
    host its own pool.

    [bold]Examples[/bold]

      rowmill deploy && PREFECT_API_URL=http://127.0.0.1:4200/api prefect worker start --pool rowmill

      rowmill deploy --pool gpu-2 --notify https://hooks.slack.com/services/T0/B0/xyz

      rowmill deploy --file deployments.yaml --prune
    """
    from flows.commands.console import terminal
    from flows.job.access import serving_limits
    from infra.orchestration import deployments
    from infra.orchestration.deployment_file import FILE, read_file
    from infra.orchestration.server import ensure_server

    console = terminal()
    path = file or FILE
    deployments.check_notify(notify)
    deployments.check_notify(notify_outputs, "--notify-outputs")
    data = read_file(path)
    count = len(data["deployments"])
    doubts = list(describe_doubtful_jobs(data))
    server = ensure_server(console.print)
    if notify_outputs:
        deployments.ensure_webhook(deployments.OUTPUTS_WEBHOOK, notify_outputs)
    console.print(f"registering {count} deployment(s) of {path} for the pool {pool}", soft_wrap=True, markup=False)

    def say(name: str) -> None:
        console.print(f"deployed {name}", soft_wrap=True, markup=False)

    with console.status("registering, some seconds for each"):
        deployed = deployments.deploy(pool, path, limit, notify, say)
    for name, before in deployed.moved.items():
        why = "a deployment is in one pool; for both, give one of them another name"
        console.print(f"moved    {name} from the pool {before}: {why}", soft_wrap=True, markup=False)
    for line in doubts:
        console.print(f"check    {line}", soft_wrap=True, markup=False)
    if prune:
        deployments.prune(deployed.dropped)
    for name in deployed.dropped:
        how = "removed" if prune else "it stays, and keeps to its schedule; --prune removes it"
        console.print(f"left     {name} is no longer in the file: {how}", soft_wrap=True, markup=False)
    if deployed.others:
        console.print(
            f"also     {', '.join(deployed.others)} of other files in this pool", soft_wrap=True, markup=False
        )
    console.print(f"folder   {Path.cwd()}, unless the file names another", soft_wrap=True, markup=False)
    console.print(f"pool     {server.ui_url}/work-pools/work-pool/{pool}", soft_wrap=True)
    console.print(f"forms    {server.ui_url}/deployments", soft_wrap=True)
    if deployed.warning:
        console.print(f"warning  {deployed.warning}", soft_wrap=True, markup=False)
    for line in serving_limits():
        console.print(f"limits   {line}; where the worker runs", soft_wrap=True)
    next_ = f'PREFECT_API_URL={server.api_url} prefect worker start --pool {pool} --name "$(hostname)"'
    console.print(f"next     {next_}", soft_wrap=True, markup=False)


def describe_doubtful_jobs(data: JsonObject) -> Iterator[str]:
    """Yield a line for each deployment whose job is not valid, whose job file is not in the current folder, or whose
    schedule does not go with the job.

    Deployments that run in another folder, or whose parameters hold Prefect's templates, can only be checked by the
    run itself.
    """
    from infra.orchestration.deployment_file import FOLDER, flow_of, full_name

    for spec in data["deployments"]:
        parameters = spec.get("parameters") or {}
        runs_elsewhere = data.get("pull") or spec.get("pull") or FOLDER in str(spec)
        has_templates = "{{" in str(parameters)
        if runs_elsewhere or has_templates:
            continue
        if flow_of(spec["entrypoint"]).name in ("preprocess", "fit"):  # the flows whose parameters are a whole job
            doubts = _find_doubts(parameters, spec.get("schedules") or [])
            yield from (f"{full_name(spec)}: {doubt}" for doubt in doubts)


def _find_doubts(parameters: JsonObject, schedules: Sequence[JsonObject]) -> Iterator[str]:
    """Yield what is doubtful about a job, if the parameters have one, and about its schedules."""
    from flows.job.dates import date_of_run_now
    from flows.job.parameters import job_maker
    from infra.paths import expand_home
    from tasks.errors import RowmillError

    file = str(parameters.get("job", ""))
    if file.endswith((".yaml", ".yml")) and not Path(expand_home(file)).exists():
        yield f"{file} is not here; a run looks for it in this folder of the worker's host"
        return
    if not {"job", "recipe", "source"} & set(parameters):
        return
    try:
        job = job_maker(parameters)(date_of_run_now)
    except RowmillError as error:
        yield f"every run will fail: {error}"
        return
    written = job.as_written()
    if schedules and job.output.on_existing == "fail" and "{" not in written["output"]["path"]:
        do = "set output.on_existing to version or replace, or put {date} into output.path"
        yield f"it has a schedule, and every run after the first fails at the output: {do}"
    zones = {str(one.get("timezone") or "UTC") for one in schedules if "cron" in one} - {job.run.timezone}
    if zones and "{" in str(written["source"]["path"]):
        schedule_zones = ", ".join(sorted(zones))
        date_zone = f"run.timezone, {job.run.timezone}: set it"
        yield f"its hours are those of {schedule_zones}, its dates those of {date_zone}"


def _describe_start(spec: Any) -> str:
    """Say in words when a deployment runs."""
    events = [", ".join(trigger.get("expect", ["an event"])) for trigger in spec.get("triggers") or []]
    schedules = map(_describe_schedule, spec.get("schedules") or [])
    return "; ".join([*schedules, *(f"on {event}" for event in events)]) or "by hand"


def _describe_schedule(schedule: Any) -> str:
    """Say in words when a schedule starts runs.

    >>> _describe_schedule({"cron": "0 2 * * *", "active": False}), _describe_schedule({"interval": 60})
    ('0 2 * * * UTC (not active)', 'every 60 s')
    """
    text = str(schedule.get("rrule"))
    if "cron" in schedule:
        text = f"{schedule['cron']} {schedule.get('timezone', 'UTC')}"
    elif "interval" in schedule:
        text = f"every {schedule['interval']} s"
    return text if schedule.get("active", True) else f"{text} (not active)"
