"""The life of a daemon: one `run`, named tasks, a written order of shutdown.

Theory of operation: `run` starts the loop (uvloop), makes and starts the service, and reports READY
to the supervisor. It then waits for a signal, or for a task that ended although it should not have.
The service's own `stop` runs within a time limit, the remaining tasks are cancelled, and those that
did not end are named. A second signal skips the drain. The exit status is 0 after a signal and 1
after a failure, which is always one log line `daemon.failed` with the task's name. SIGHUP makes a
daemon read its fleet file again; it still ends `baton up`, whose terminal may close.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import structlog
import uvloop

from common.errors import BatonError
from common.process.notify import Notifier
from common.process.watchdog_and_reload import Source, WatchdogAndReload
from common.telemetry.log import Logger

CANCEL_SECONDS = 3.0


class Tasks:
    """Named tasks of one process; the only place that creates tasks.

    A task started with `ends=False`, the default, must run until it is cancelled. The first such
    task that returns, and the first task of any kind that raises, resolves `failed`. With
    `watchdog_and_reload` the service declares what it can reload and what its watchdog depends on.
    """

    def __init__(self, watchdog_and_reload: WatchdogAndReload | None = None) -> None:
        self.watchdog_and_reload = watchdog_and_reload or WatchdogAndReload(
            Notifier({}), structlog.get_logger("baton")
        )
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self.failed: asyncio.Future[tuple[str, BaseException | None]] = (
            asyncio.get_running_loop().create_future()
        )

    def start(
        self, name: str, work: Coroutine[Any, Any, None], *, ends: bool = False
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = name
        task.add_done_callback(lambda done: self._ended(done, ends))
        return task

    def _ended(self, task: asyncio.Task[None], may_end: bool) -> None:
        name = self._tasks.pop(task, task.get_name())
        if task.cancelled() or self.failed.done():
            return
        error = task.exception()
        if error is not None or not may_end:
            self.failed.set_result((name, error))

    async def cancel_all(self, seconds: float = CANCEL_SECONDS) -> list[str]:
        """Cancels the remaining tasks. Returns the names of those that did not end in time."""
        if not self.failed.done():
            self.failed.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return []
        _, hung = await asyncio.wait(tasks, timeout=seconds)
        return sorted(task.get_name() for task in hung)


class Service(Protocol):
    """What `run` drives. `start` returns once the service can do its work."""

    async def start(self, tasks: Tasks) -> str:
        """Binds, connects, starts tasks. Returns the status line for the supervisor."""
        ...

    async def stop(self) -> None:
        """Stops admitting, drains, settles leases and closes, in that order, within
        `stop_seconds`."""
        ...

    @property
    def stop_seconds(self) -> float:
        """The time that `stop` may take."""
        ...


def run(make: Callable[[], Service], log: Logger, source: Source | None = None) -> int:
    """Runs one service to its end. Returns the exit status of the process. `source` is the
    service's fleet file; without one it cannot reload."""
    return uvloop.run(_run(make, log, source))


async def _run(make: Callable[[], Service], log: Logger, source: Source | None) -> int:
    watchdog_and_reload = WatchdogAndReload(Notifier(), log, source)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(signum: signal.Signals) -> None:
        if stopped.is_set():
            log.warning("daemon.killed", sentence="second signal: leaving without a drain")
            os._exit(1)
        log.info("daemon.stopping", signal=signum.name)
        stopped.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_signal, signum)
    if source is not None:
        loop.add_signal_handler(signal.SIGHUP, watchdog_and_reload.on_sighup)
    tasks = Tasks(watchdog_and_reload)
    service = make()
    exit_code = await _start(service, tasks, stopped, log)
    if exit_code is None:
        exit_code = await _until_stopped(stopped, tasks, log)
    watchdog_and_reload.stopping()
    await _bounded(service.stop, service.stop_seconds, log)
    hung = await tasks.cancel_all()
    if hung:
        log.error("daemon.hung", tasks=hung, sentence="these tasks did not end when cancelled")
    log.info("daemon.stopped", exit_code=exit_code)
    return exit_code


async def _start(service: Service, tasks: Tasks, stopped: asyncio.Event, log: Logger) -> int | None:
    """Returns None once the service is ready, or an exit status if a signal or a failure came
    first."""
    loop = asyncio.get_running_loop()
    starting = loop.create_task(service.start(tasks), name="start")
    signalled = loop.create_task(stopped.wait(), name="signal")
    await first_of(starting, signalled)
    signalled.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return 0
    try:
        status = starting.result()
    except BatonError as error:
        log.error("daemon.failed", code=error.code, sentence=error.message)
        return 1
    log.info("daemon.ready", sentence=status)
    tasks.watchdog_and_reload.ready(status)
    if tasks.watchdog_and_reload.watchdog_seconds:
        tasks.start("watchdog", tasks.watchdog_and_reload.beat())
    return None


async def first_of(*waits: asyncio.Future[Any]) -> None:
    """Returns when any of these is done. Cancels none."""
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


async def _until_stopped(stopped: asyncio.Event, tasks: Tasks, log: Logger) -> int:
    waiter = asyncio.get_running_loop().create_task(stopped.wait(), name="signal")
    await first_of(waiter, tasks.failed)
    waiter.cancel()
    if stopped.is_set():
        return 0
    name, error = tasks.failed.result()
    sentence = f"task {name} ended" + (f": {error}" if error else " though it must not")
    unexpected = error is not None and not isinstance(error, BatonError)
    log.error("daemon.failed", task=name, sentence=sentence, exc_info=error if unexpected else None)
    return 1


async def _bounded(stop: Callable[[], Awaitable[None]], seconds: float, log: Logger) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop()
    except TimeoutError:
        log.error("shutdown.expired", seconds=seconds, sentence="the drain did not end in time")
    except BatonError as error:
        log.error("shutdown.failed", code=error.code, sentence=error.message)
