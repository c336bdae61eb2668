"""What a daemon does for its supervisor: watchdog beats, and reading its fleet file again.

Theory of operation: a task of the event loop sends the beats, so a loop that hangs sends none and
the supervisor kills the process. A service may declare further conditions, such as a worker's
engine that makes steps. Beats are sent every third of the watchdog's time, so that one may be late.
A fleet file that cannot be used is refused as a whole and changes nothing, so that a typing error
does not take a running fleet down.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.config import Config, flatten
from common.config.live import LOG_LEVEL, Reading, compare
from common.errors import ConfigError
from common.process.notify import Notifier
from common.telemetry.log import Logger

BEATS_PER_WATCHDOG = 3.0


@dataclass(frozen=True, slots=True)
class Source:
    """Where a daemon's configuration comes from."""

    #: The configuration at the start of the daemon.
    running: Config
    #: Reads the fleet file again. Raises ConfigError.
    read: Callable[[], Config]
    #: Prefixes of the keys that the daemon reads.
    sections: tuple[str, ...]


class WatchdogAndReload:
    """The watchdog and the reload of one process. Without `source` a reload changes nothing."""

    def __init__(self, notifier: Notifier, log: Logger, source: Source | None = None) -> None:
        self._notifier = notifier
        self._log = log
        self._source = source
        self._running = dict(flatten(source.running)) if source is not None else {}
        self._sound: list[Callable[[], bool]] = []
        self._live: frozenset[str] = frozenset({LOG_LEVEL})
        self._appliers: list[Callable[[Config, tuple[str, ...]], None]] = []
        self._refreshes: list[Callable[[], None]] = []
        self._status = ""

    @property
    def watchdog_seconds(self) -> float:
        return self._notifier.watchdog_seconds

    def beat_while(self, sound: Callable[[], bool]) -> None:
        """No beats are sent while `sound` returns False."""
        self._sound.append(sound)

    def on_reload(
        self, live: frozenset[str], apply: Callable[[Config, tuple[str, ...]], None]
    ) -> None:
        """Declares keys that can change while the daemon runs. `apply` gets a checked configuration
        and the keys that changed, and puts those of `live` in force."""
        self._live |= live
        self._appliers.append(apply)

    def refresh_on_sighup(self, refresh: Callable[[], None]) -> None:
        """Declares what is read anew at each SIGHUP, whether or not the fleet file has changed."""
        self._refreshes.append(refresh)

    def ready(self, status: str) -> None:
        self._status = status
        self._notifier.ready(status)

    def stopping(self) -> None:
        self._notifier.stopping()

    def sound(self) -> bool:
        """Whether a beat may be sent."""
        return all(check() for check in self._sound)

    async def beat(self) -> None:
        """Sends beats until it is cancelled."""
        silent = False
        while True:
            sound = self.sound()
            if sound:
                self._notifier.beat()
            elif not silent:
                sentence = (
                    f"no step for {self.watchdog_seconds:g} s; the supervisor will restart it"
                )
                self._log.error("watchdog.withheld", sentence=sentence)
            silent = not sound
            await asyncio.sleep(self.watchdog_seconds / BEATS_PER_WATCHDOG)

    def on_sighup(self) -> None:
        """Reads the fleet file again, as `systemctl reload` asks for; the outcome is one log line.
        Before `ready` the signal is ignored, because a daemon that starts reads the file anyway."""
        if not self._status:
            return
        self._notifier.reloading(time.monotonic_ns())
        for refresh in self._refreshes:
            refresh()
        try:
            self.reload()
        except ConfigError as error:
            sentence = f"{error.message}; nothing was changed"
            self._log.error("config.refused", key=error.param, sentence=sentence)
        self._notifier.ready(self._status)

    def reload(self) -> Reading:
        """Reads the fleet file and applies what can change. Raises ConfigError if the file cannot
        be used; nothing has changed then."""
        if self._source is None:
            return Reading()
        config = self._source.read()
        read = dict(flatten(config))
        reading = compare(self._running, read, live=self._live, sections=self._source.sections)
        if reading.applied:
            logging.getLogger().setLevel(config.fleet.log_level.upper())
            for apply in self._appliers:
                apply(config, reading.applied)
            self._running |= {key: read[key] for key in reading.applied if key in read}
        self._log.info("config.reloaded", sentence=reading.sentence)
        return reading
