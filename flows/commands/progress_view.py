"""The progress of a run in the terminal: a moving line for each stage on a screen, plain lines everywhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flows.run.listeners import folder_of_work, listening
from tasks.core.stage_results import StageResult
from tasks.core.units import rate
from tasks.manifest import Manifest
from tasks.storage.atomic import read_json

POLL_SECONDS = 0.1
PLAIN_SECONDS = 15.0
SPLIT_STAGES = ("transform", "shuffle_write")


@dataclass
class Line:
    """A stage of a run as last heard of; `state` is waiting, running or done."""

    title: str
    state: str = "waiting"
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    per_second: float = 0.0
    left: float | None = None


class ProgressView:
    """The progress of the stages of a run, read from `<staging>/progress.json`, as lines."""

    def __init__(self, path: Path, splits: Sequence[str], console: Console, learns: bool = True) -> None:
        self.path = path
        self.console = console
        self.began = time.time()
        whole = [("ingest", ""), ("statistics", "")] if learns else [("ingest", "")]
        keys = [*whole, *((stage, split) for split in splits for stage in SPLIT_STAGES)]
        self.lines = {key: Line(" ".join(filter(None, key))) for key in keys}
        self.printed: dict[str, float] = {}  # when a line was printed last; infinity once it is done
        self.reported: set[tuple[str, str]] = set()  # stages whose own figures are known
        self.spinner = Spinner("dots")
        self.started = False

    def start(self) -> None:
        """The flow runs: workers are being started for the first stage."""
        self.started = True
        first = next(iter(self.lines.values()))
        if first.state == "waiting":
            first.state = "running"

    def look(self) -> None:
        """Read the progress file once; stages before the one it names are done."""
        folder = folder_of_work()
        progress = read_json(folder / self.path.name if folder else self.path)
        if not isinstance(progress, dict) or progress.get("at", 0) < self.began:
            return
        key = (progress.get("stage"), progress.get("split", ""))
        if key not in self.lines or key in self.reported:
            return
        place = list(self.lines).index(key)  # type: ignore[arg-type]
        for number, line in enumerate(self.lines.values()):
            if number < place and line.state != "done":
                line.state = "done"
                line.done = max(line.done, line.total)
            elif number == place:
                line.done = progress["done"]
                line.total = progress["total"]
                line.seconds = progress["seconds"]
                line.per_second = progress["rows_per_second"]
                line.left = progress["seconds_left"]
                line.state = "done" if line.done >= line.total else "running"
            elif number == place + 1 and self.lines[key].state == "done" and line.state == "waiting":  # type: ignore[index]
                line.state = "running"

    def hear(self, result: StageResult) -> None:
        """The figures of a stage that is done. The last file of a short one may be gone before anybody looked at it."""
        key = (result.stage, result.split)
        if key in self.lines:
            self.reported.add(key)
            line = self.lines[key]
            line.done = line.total = result.rows
            line.seconds = result.seconds
            line.state = "done"
            following = next((other for other in self.lines.values() if other.state == "waiting"), None)
            if following:
                following.state = "running"

    def finish(self, manifests: dict[str, Manifest]) -> None:
        """All stages with the exact figures of the committed manifests, as far as there are any."""
        for (stage, split), line in self.lines.items():
            manifest = manifests.get(split) or next(iter(manifests.values()), None)
            numbers = manifest.data["stages"].get(stage, {}) if manifest else {}
            line.state = "done"
            line.seconds = numbers.get("seconds", line.seconds)
            line.done = line.total = numbers.get("rows", line.done)

    def table(self) -> Table:
        """The lines for a screen."""
        table = Table.grid(padding=(0, 2))
        for line in self.lines.values():
            if line.state == "waiting":
                table.add_row("  ", Text(line.title, style="dim"), "", "", "")
                continue
            mark = Text("✓ ", style="green") if line.state == "done" else self.spinner
            bar = ProgressBar(line.total or None, line.done, width=24, pulse=line.state == "running" and not line.total)
            table.add_row(mark, line.title, bar if line.state == "running" else "", *_format_progress(line))
        return table

    def plain(self, last: bool = False) -> Iterator[str]:
        """New lines for a log: each stage when it is done, and now and then how far a long one is."""
        for key, line in self.lines.items():
            if line.state == "running" and line.total and not last:
                if line.title not in self.printed:
                    self.printed[line.title] = time.monotonic()
                elif time.monotonic() - self.printed[line.title] > PLAIN_SECONDS:
                    self.printed[line.title] = time.monotonic()
                    yield f"{line.title}: {' '.join(filter(None, _format_progress(line)))}"
            elif line.state == "done" and self.printed.get(line.title) != float("inf") and (line.seconds or last):
                if key not in self.reported and not last and not self._has_begun_after(key):
                    continue  # its own figures, which are those of the manifest, come in a moment
                self.printed[line.title] = float("inf")
                yield f"{line.title}: {' '.join(filter(None, _format_progress(line)))}"

    def _has_begun_after(self, key: tuple[str, str]) -> bool:
        """Tell whether a stage after this one has made progress."""
        following = list(self.lines)[list(self.lines).index(key) + 1 :]
        return any(self.lines[other].total for other in following)


def _format_progress(line: Line) -> tuple[str, str]:
    """Rows, and rows per second with the seconds taken or left."""
    if line.state == "done" and line.done:
        return f"{line.done:,} rows", f"{line.seconds:.1f} s, {rate(line.done, line.seconds)}"
    if not line.total or line.state == "done":
        return "", ""
    left = f", {line.left:,.0f} s left" if line.left is not None else ""
    rows = f"{line.done:,} of {line.total:,} rows ({line.done / line.total:.0%})"
    return rows, f"{line.per_second:,.0f} rows/s{left}"


@contextmanager
def show_progress(watch: ProgressView) -> Iterator[None]:
    """Keep the lines moving while the body runs."""
    stop = threading.Event()
    live: Any = Live(get_renderable=watch.table, console=watch.console, refresh_per_second=8, transient=False)
    screen = watch.console.is_terminal

    def follow() -> None:
        while not stop.wait(POLL_SECONDS):
            watch.look()
            if not screen:
                say(watch)

    thread = threading.Thread(target=follow, name="rowmill-watch", daemon=True)
    thread.start()
    try:
        with listening(watch.hear):
            if screen:
                with live:
                    yield
            else:
                yield
                say(watch, last=True)
    finally:
        stop.set()
        thread.join()


def say(watch: ProgressView, last: bool = False) -> None:
    for text in watch.plain(last):
        watch.console.print(text, markup=False, highlight=False, soft_wrap=True)
