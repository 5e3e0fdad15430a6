"""Makes a preview in its own process: if a file makes a native reader end that process, the error names the file."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tasks.core.settings import FlowName
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError, GiveUpError, RowmillError

if TYPE_CHECKING:
    from flows.preview.preview_content import Preview
    from tasks.job.run_date import RunDate

# Not by -m: this would look for a flows/ in the current folder.
CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from flows.preview.own_process import look; look(sys.argv[2])"
)
KILLED = signal.SIGKILL


class PreviewProcess:
    """The process that will look at a job, from its start on.

    It imports what it needs while the process that started it still reads the job. A block that ends, ends it.
    """

    def __init__(self) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="rowmill-preview-")
        self.place = Path(self._files.name)
        command = [sys.executable, "-P", "-c", CODE, json.dumps(sys.path), str(self.place)]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stderr):
            if pipe is not None:
                pipe.close()
        self._files.cleanup()

    def make_preview(self, data: JsonObject, flow: FlowName = "preprocess", run_date: RunDate | None = None) -> Preview:
        """Return `flows.preview.job_preview.preview` of a job of plain values on a date, by default the job's
        own or that of this moment; its errors are raised here.

        If a signal ends the process, a DataError names the files that it was reading.
        """
        request: dict[str, Any] = {"data": dict(data), "flow": flow, "run_date": run_date}
        request["blocks"] = "tasks.stages.task" in sys.modules
        request["path"] = sys.path  # which has grown, if the job named a folder
        (self.place / "unfinished-request").write_bytes(pickle.dumps(request))
        (self.place / "unfinished-request").replace(self.place / "request")
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):
            self.child.stdin.close()  # the sign to begin
        self.child.stdin = None
        _load()  # meanwhile: the modules that unpickling the preview needs
        _, stderr = self.child.communicate()
        if not (self.place / "answer").exists():
            raise _make_exit_error(self.child.returncode, self.place, stderr.decode(errors="replace"))
        kind, content = pickle.loads((self.place / "answer").read_bytes())  # noqa: S301  # this very program wrote it
        if kind == "error":
            raise content
        result: Preview = content
        return result


def make_preview(data: JsonObject, flow: FlowName = "preprocess", run_date: RunDate | None = None) -> Preview:
    """The same in a process that starts now."""
    with PreviewProcess() as process:
        return process.make_preview(data, flow, run_date)


def _load() -> None:
    import flows.preview.job_preview
    import flows.preview.preview_text  # noqa: F401


def _make_exit_error(status: int, place: Path, stderr: str) -> RowmillError:
    """Make the error for a process that ended without an answer."""
    from tasks.storage.files_being_read import FOLDER, format_files, notes_left

    files = notes_left(place / FOLDER)
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = (stderr.strip().splitlines() or [""])[-1][:300]
    if status == -KILLED:
        return GiveUpError(
            "the process that looked at the data was killed",
            where=format_files(files),
            why="most likely by the host, for lack of memory",
            do="look at less: a smaller source.path; or give the host more memory",
        )
    return DataError(
        f"the process that looked at the data was ended by {name}",
        where=format_files(files),
        why=f"a native reader does so when data are damaged as nothing foresaw{f': {last}' if last else ''}",
        do="leave these files out of source.path, or write them again; report it with one of them: it is a bug",
    )


def look(folder: str) -> None:
    """Run in the preview's process: wait for the request, answer with the preview or the error."""
    from tasks.storage import files_being_read

    place = Path(folder)
    not_imported = _import_all()
    sys.stdin.read()
    if not (place / "request").exists():  # the job was refused
        os._exit(0)
    request = pickle.loads((place / "request").read_bytes())  # noqa: S301
    sys.path[:] = request["path"]
    files_being_read.note_into(place / files_being_read.FOLDER)
    answer: tuple[str, Any]
    try:
        if not_imported:
            raise not_imported
        if request["blocks"]:
            import tasks.stages.task  # noqa: F401  # storage options in blocks of the Prefect server
        from flows.job.dates import date_of_run_now
        from flows.job.refit_job import maker_of
        from flows.preview.job_preview import preview

        run_date = request["run_date"]
        date_of = date_of_run_now if run_date is None else lambda _: run_date
        job = maker_of(request["flow"])(request["data"], date_of=date_of)
        answer = "preview", preview(job, request["flow"])
    except Exception as error:
        answer = "error", _portable(error)
    unfinished = place / "unfinished"
    unfinished.write_bytes(pickle.dumps(answer))
    unfinished.replace(place / "answer")
    os._exit(0)  # does not wait for threads of readers


def _import_all() -> Exception | None:
    """Import what the preview needs; the error where that fails."""
    try:
        import flows.job.dates
        import flows.job.refit_job
        import flows.preview.job_preview  # noqa: F401
    except Exception as error:
        return error
    return None


def _portable(error: Exception) -> Exception:
    """Return the error as a RowmillError, which can be pickled."""
    from tasks.core.unforeseen_errors import defect

    if isinstance(error, RowmillError):
        return error
    if isinstance(error, MemoryError):
        return GiveUpError(
            "there is not enough memory to look at the data",
            why=str(error),
            do="look at less: a smaller source.path; or give the host more memory",
        )
    return defect(error, "the preview")
