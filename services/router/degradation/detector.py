"""Detects silent degradation: every answer is right, but disaggregation does not work.

Decode computes again what should have been handed over; no prompt reaches a prefill worker; a
handoff has other bytes than its blocks; digests do not match; KV is held until its lease ends.
Clients notice none of this except by the time it takes, so the router must raise an alarm.

The detector is pure: observations go in with their instant, and `update_alarms` raises and clears
each alarm once. Raising an alarm takes more than keeping it (`DegradationConfig`), so that a value
at its limit does not make the alarm flap. Windows consist of `SLOTS` slots, each of which names at
most `BLAMED_MAX` culprits, so the cost does not depend on the size of the fleet.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from common.config.degradation import DegradationConfig

SLOTS = 30
BLAMED_MAX = 16


class Cause(enum.StrEnum):
    """What an alarm is about, in the order in which alarms are shown."""

    RECOMPUTED = "recomputed"
    UNREACHED = "unreached"
    BYTES = "bytes"
    DIGEST = "digest"
    LEASE = "lease"


FIXES = {
    Cause.RECOMPUTED: "see `baton ctl pairs`, and `baton ctl workers` for who is missing",
    Cause.UNREACHED: "`baton ctl workers` says why no prefill worker serves",
    Cause.BYTES: "their versions or layouts differ: restart both from one version",
    Cause.DIGEST: "no token was computed on it; `baton ctl pairs`, then look at their link",
    Cause.LEASE: "`baton ctl kv` shows who waits for whom; if decode is merely slow, raise "
    "[kv] lease_ms",
}


@dataclass(slots=True)
class _Slot:
    """The sums of one slot of time."""

    #: The slot's number since the clock's zero.
    number: int
    #: Things observed, and those of them that were bad.
    of: int = 0
    bad: int = 0
    #: Bad things by culprit.
    blamed: dict[str, int] = field(default_factory=dict)


class Window:
    """Sums over the latest `seconds`, with the precision of one slot."""

    def __init__(self, seconds: float) -> None:
        self._slot_seconds = seconds / SLOTS
        self._slots: deque[_Slot] = deque()

    def add(self, now: float, of: int, bad: int, culprit: str) -> None:
        number = int(now / self._slot_seconds)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(_Slot(number))
            self.forget(now)
        slot = self._slots[-1]
        slot.of += of
        slot.bad += bad
        if bad and (culprit in slot.blamed or len(slot.blamed) < BLAMED_MAX):
            slot.blamed[culprit] = slot.blamed.get(culprit, 0) + bad

    def forget(self, now: float) -> None:
        oldest = int(now / self._slot_seconds) - SLOTS
        while self._slots and self._slots[0].number <= oldest:
            self._slots.popleft()

    @property
    def of(self) -> int:
        return sum(slot.of for slot in self._slots)

    @property
    def bad(self) -> int:
        return sum(slot.bad for slot in self._slots)

    def worst(self) -> str:
        """The culprit with most bad things, the lower name of equals; empty = there is none."""
        sums: dict[str, int] = {}
        for slot in self._slots:
            for culprit, bad in slot.blamed.items():
                sums[culprit] = sums.get(culprit, 0) + bad
        return min(sums, key=lambda culprit: (-sums[culprit], culprit), default="")

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._slots) <= SLOTS + 1
        for slot in self._slots:
            assert len(slot.blamed) <= BLAMED_MAX


@dataclass(slots=True)
class Alarm:
    """A standing alarm."""

    cause: Cause
    #: When it was raised.
    since: float
    #: The state at the last update, and what to do about it.
    sentence: str


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """An alarm was raised or cleared."""

    cause: Cause
    #: False: it was cleared.
    raised: bool
    #: The state at the change.
    sentence: str


class DegradationDetector:
    """Counts observations by cause, and keeps the standing alarms."""

    def __init__(self, config: DegradationConfig) -> None:
        self.config = config
        #: The standing alarms.
        self.alarms: dict[Cause, Alarm] = {}
        #: How often each alarm was raised.
        self.raised = dict.fromkeys(Cause, 0)
        #: Things observed since the start, and those of them that were bad. For RECOMPUTED: prompts
        #: meant for a handoff, and those of them that decode computed itself.
        self.observed = dict.fromkeys(Cause, 0)
        self.failed = dict.fromkeys(Cause, 0)
        seconds = config.window_ms / 1000
        self._windows: dict[Cause, Window] = {
            cause: Window(seconds) for cause in Cause if cause is not Cause.UNREACHED
        }
        self._waiting_since: float | None = None
        self._waiting = 0

    def count(self, cause: Cause, now: float, *, of: int, bad: int, culprit: str) -> None:
        """Of `of` things, `bad` were bad. `culprit`: the worker or pair to blame."""
        self.observed[cause] += of
        self.failed[cause] += bad
        self._windows[cause].add(now, of, bad, culprit)

    def record_expected_handoff(self, now: float) -> None:
        """A prompt was placed that a prefill worker should compute."""
        self.observed[Cause.UNREACHED] += 1
        self._waiting += 1
        if self._waiting_since is None:
            self._waiting_since = now

    def record_prefill(self) -> None:
        """A prefill worker computed a prompt, or prompts are not meant for prefill workers now."""
        self._waiting, self._waiting_since = 0, None

    def unreached_seconds(self, now: float) -> float:
        """Seconds for which prompts have reached no prefill worker; 0 while they reach one."""
        return 0.0 if self._waiting_since is None else now - self._waiting_since

    def update_alarms(self, now: float) -> list[AlarmChange]:
        """Raises and clears alarms; returns the changes."""
        changes = [self._update(cause, now) for cause in Cause]
        return [change for change in changes if change is not None]

    def _update(self, cause: Cause, now: float) -> AlarmChange | None:
        standing = self.alarms.get(cause)
        wrong, sentence = self._state(cause, now, standing=standing is not None)
        if wrong:
            sentence = f"{sentence}: {FIXES[cause]}"
            if standing is not None:
                standing.sentence = sentence
                return None
            self.alarms[cause] = Alarm(cause, now, sentence)
            self.raised[cause] += 1
            return AlarmChange(cause, True, sentence)
        if standing is None:
            return None
        del self.alarms[cause]
        return AlarmChange(cause, False, sentence)

    def _state(self, cause: Cause, now: float, *, standing: bool) -> tuple[bool, str]:
        """Whether this cause degrades the fleet now, and a sentence about its state."""
        if cause is Cause.UNREACHED:
            return self._unreached(now, standing=standing)
        window, config = self._windows[cause], self.config
        window.forget(now)
        of, bad, within = window.of, window.bad, f"in the last {config.window_ms / 1000:g} s"
        worst = f", most by {window.worst()}" if bad else ""
        if cause is Cause.RECOMPUTED:
            limit = config.recomputed_share * (config.clear_share if standing else 1.0)
            enough = standing or of >= config.handoffs_min
            what = f"{bad} of the last {of} handoffs were recomputed by decode"
            sentence = f"{what} {within}{worst}"
            return bool(bad) and enough and bad > limit * of, sentence
        least = 1 if standing else self._least(cause)
        return bad >= least, f"{bad} {_WHAT[cause]} {within}{worst}"

    def _least(self, cause: Cause) -> int:
        if cause is Cause.DIGEST:
            return self.config.digest_mismatches
        return self.config.leases_expired if cause is Cause.LEASE else 1

    def _unreached(self, now: float, *, standing: bool) -> tuple[bool, str]:
        if self._waiting_since is None:
            return False, "prompts reach prefill workers again, or are not meant to"
        seconds = self.unreached_seconds(now)
        long = seconds * 1000 >= self.config.prefill_idle_ms
        sentence = (
            f"none of {self._waiting} prompts meant for it reached a prefill worker in "
            f"{seconds:.0f} s"
        )
        return standing or (long and self._waiting >= self.config.prompts_min), sentence

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert (self._waiting_since is None) == (self._waiting == 0)
        for window in self._windows.values():
            window.check_invariants()


_WHAT = {
    Cause.BYTES: "handoffs were not as heavy as their blocks",
    Cause.DIGEST: "KV messages did not match their digest",
    Cause.LEASE: "leases on KV ended before decode took it",
}
