"""A command that is stopped (Ctrl-C, SIGTERM): its signals become an exception that ends the run first."""

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

ENDS = (signal.SIGINT, signal.SIGTERM)
POLL_SECONDS = 2.0  # between two looks at whether the run was cancelled


class Terminated(BaseException):
    """SIGTERM ends the command."""


@contextmanager
def stoppable(started: list[Callable[[Any], None]]) -> Iterator[None]:
    """For a command that runs a flow in this process: Ctrl-C, SIGTERM and a cancel at the server end it in order.

    A run that a worker executes is cancelled by that worker; only its own process can end this one. What is in
    `started` is told the id of the run. Ends with KeyboardInterrupt, or with SystemExit: status 143 as after any
    SIGTERM, 1 when it was cancelled.
    """
    from flows.commands.console import FAILED, TERMINATED, say_error

    stop = Stop()
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminate) if main else None
    started.append(stop.follow)
    signals = Signals() if main else None
    try:
        yield
    except BaseException as error:  # a library may have made an error of its own of what a signal raised in it
        came = signals.first() if signals else None
        if came == signal.SIGINT:
            raise KeyboardInterrupt from None
        if came is None and not isinstance(error, Terminated):
            raise
        what = "the run was cancelled" if stop.cancelled else "stopped by SIGTERM"
        say_error(f"{what}; give the same command again to go on")
        raise SystemExit(FAILED if stop.cancelled else TERMINATED) from None
    finally:
        stop.ended.set()
        if signals:
            signals.close()
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if stop.cancelled:
            state: State = Cancelled(message="the run was cancelled; what is done is kept for the next start")
            with suppress(Exception), get_client(sync_client=True) as client:
                client.set_flow_run_state(stop.flow_run_id, state, force=True)


class Signals:
    """The signals that this process gets from now on, whoever handles them. For the main thread."""

    def __init__(self) -> None:
        self._reads, self._writes = socket.socketpair()
        self._reads.setblocking(False)
        self._writes.setblocking(False)
        self._before = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)

    def first(self) -> int | None:
        """The first one that asks to end; None where there was none."""
        with suppress(BlockingIOError):
            return next((number for number in self._reads.recv(4096) if number in ENDS), None)
        return None

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._reads.close()
        self._writes.close()


class Stop:
    """Looks every few seconds whether the run was cancelled, from the moment that it is known (`follow`)."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.cancelled = False
        self.flow_run_id: Any = None

    def follow(self, flow_run_id: object) -> None:
        if self.flow_run_id is None:
            self.flow_run_id = flow_run_id
            threading.Thread(target=self._watch, name="rowmill-cancel", daemon=True).start()

    def _watch(self) -> None:
        away = False
        with suppress(Exception), get_client(sync_client=True) as client:
            while not self.ended.wait(POLL_SECONDS):
                try:
                    state = client.read_flow_run(self.flow_run_id).state
                except Exception as error:  # a server that is away for a while is no reason to stop
                    if not away:
                        log.warning("the Prefect server does not answer (%s); the run goes on without it", error)
                        expect_answers(False)
                    away = True
                    continue
                if away:
                    expect_answers(True)
                away = False
                if state is not None and state.is_cancelling():
                    self.cancelled = True
                    os.kill(os.getpid(), signal.SIGTERM)
                    return


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
