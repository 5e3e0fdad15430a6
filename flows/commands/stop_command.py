"""How a command that runs a flow in its own process is stopped: by Ctrl-C, by SIGTERM, or by a cancel at the server.

All three end the run in order, before the process exits.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from prefect import get_client
from prefect.states import Cancelled, State

from infra.orchestration.server import expect_answers

log = logging.getLogger("rowmill")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLL_SECONDS = 2.0  # between two looks at whether the run was cancelled


class Terminated(BaseException):
    """SIGTERM ends the command."""


@contextmanager
def stoppable(on_started: list[Callable[[Any], None]]) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a cancel at the server end the flow run of this process in order.

    A worker cancels the runs that it executes. A run in this process has no worker, so the process itself has to look
    for the cancel: `on_started`, whose callbacks get the id of the run, gets one that begins to look. The block ends
    with KeyboardInterrupt or with SystemExit, whose status is 143 as after any SIGTERM, or 1 for a cancelled run.
    """
    from flows.commands.console import FAILED, TERMINATED, say_error

    watch = CancelWatch()
    is_main_thread = threading.current_thread() is threading.main_thread()  # others cannot set signal handlers
    handler_before = signal.signal(signal.SIGTERM, _raise_terminated) if is_main_thread else None
    on_started.append(watch.begin)
    recorder = SignalRecorder() if is_main_thread else None
    try:
        yield
    except BaseException as error:
        received = recorder.find_stop_signal() if recorder else None
        if received == signal.SIGINT:
            raise KeyboardInterrupt from None
        if received is None and not isinstance(error, Terminated):
            raise
        what = "the run was cancelled" if watch.cancelled else "stopped by SIGTERM"
        say_error(f"{what}; give the same command again to go on")
        raise SystemExit(FAILED if watch.cancelled else TERMINATED) from None
    finally:
        watch.finished.set()
        if recorder:
            recorder.close()
            signal.signal(signal.SIGTERM, handler_before or signal.SIG_DFL)
        if watch.cancelled:
            state: State = Cancelled(message="the run was cancelled; what is done is kept for the next start")
            with suppress(Exception), get_client(sync_client=True) as client:
                client.set_flow_run_state(watch.flow_run_id, state, force=True)


class SignalRecorder:
    """The signals that this process gets from now on, whichever handler takes them. For the main thread.

    A handler of our own would not do: Prefect installs others, and a library may turn the exception that a handler
    raises inside it into an error of its own. Python writes each signal to the wakeup file descriptor all the same.
    """

    def __init__(self) -> None:
        self._reads, self._writes = socket.socketpair()
        self._reads.setblocking(False)
        self._writes.setblocking(False)
        self._descriptor_before = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)

    def find_stop_signal(self) -> int | None:
        """Return the first signal that stops the command; None if none came."""
        with suppress(BlockingIOError):
            return next((number for number in self._reads.recv(4096) if number in STOP_SIGNALS), None)
        return None

    def close(self) -> None:
        signal.set_wakeup_fd(self._descriptor_before)
        self._reads.close()
        self._writes.close()


class CancelWatch:
    """A look at the run every few seconds, in a thread: whether it was cancelled at the server."""

    def __init__(self) -> None:
        self.finished = threading.Event()  # ends the watch
        self.cancelled = False
        self.flow_run_id: Any = None

    def begin(self, flow_run_id: object) -> None:
        """Begin to watch a run; later runs of the same command, which are runs inside it, are not watched."""
        if self.flow_run_id is None:
            self.flow_run_id = flow_run_id
            threading.Thread(target=self._watch, name="rowmill-cancel", daemon=True).start()

    def _watch(self) -> None:
        is_server_away = False
        with suppress(Exception), get_client(sync_client=True) as client:
            while not self.finished.wait(POLL_SECONDS):
                try:
                    state = client.read_flow_run(self.flow_run_id).state
                except Exception as error:  # a server that is away for a while is no reason to stop
                    if not is_server_away:
                        log.warning("the Prefect server does not answer (%s); the run goes on without it", error)
                        expect_answers(False)  # clients do not repeat their requests while it is away
                    is_server_away = True
                    continue
                if is_server_away:
                    expect_answers(True)
                is_server_away = False
                if state is not None and state.is_cancelling():
                    self.cancelled = True
                    os.kill(os.getpid(), signal.SIGTERM)
                    return


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated
