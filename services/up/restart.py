"""When a child that died is started again, and when the whole run is given up.

Theory of operation: a child that dies is started again after a pause, which doubles with each death
in a row. One that has been ready for `STEADY_SECONDS` begins anew. The others go on meanwhile, for
a fleet serves with what it has. The run is given up for two reasons. All children of a role died
without ever having been ready: the same start would fail again. That counts only while the fleet
cannot serve without them, or does not yet. Or a role without which nothing can be served has had no
ready child for `give_up_seconds`. A child that only takes long to become ready is waited for,
because the second reason is looked at when a child has died.

Pure: instants are arguments (seconds, monotonic).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.messages import Role
from services.up.plan import Child

PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 60.0
STEADY_SECONDS = 120.0
FLAPPING_DEATHS = 3
#: Without these nothing can be served. Decode workers compute prompts themselves where no prefill
#: worker is.
NECESSARY = frozenset({Role.ROUTER, Role.GATEWAY, Role.DECODE})


@dataclass(slots=True)
class _Life:
    role: Role
    was_ready: bool = False
    #: When it became ready; None while it is not.
    ready_since: float | None = None
    #: Deaths in a row.
    deaths: int = 0
    #: Why it died last.
    reason: str = ""


class Restarts:
    """The deaths of one fleet's children. `now`: when the fleet was started."""

    def __init__(self, fleet: Iterable[Child], give_up_seconds: float, now: float) -> None:
        self._lives = {child.label: _Life(child.role) for child in fleet}
        self._give_up_seconds = give_up_seconds
        #: When the last of a role's children ceased to be ready.
        self._gone_since = dict.fromkeys(NECESSARY, now)

    def ready(self, name: str, now: float) -> None:
        life = self._lives[name]
        life.was_ready, life.ready_since = True, now

    def died(self, name: str, reason: str, now: float) -> float:
        """Seconds to wait before `give_up` is asked and the child is started again."""
        life = self._lives[name]
        if life.ready_since is not None:
            if self._is_steady(life, now):
                life.deaths = 0
            life.ready_since = None
            self._gone_since[life.role] = now
        life.deaths += 1
        life.reason = reason
        pause = min(PAUSE_SECONDS * 2.0 ** min(life.deaths - 1, 16), PAUSE_SECONDS_MAX)
        return max(0.0, min(pause, self._seconds_left(life.role, now)))

    def give_up(self, name: str, now: float) -> str:
        """Why the run ends, now that this child is dead; empty if it goes on."""
        role = self._lives[name].role
        peers = [life for life in self._lives.values() if life.role is role]
        serves = role not in NECESSARY and all(map(self._serves, NECESSARY))
        if not serves and all(peer.deaths and not peer.was_ready for peer in peers):
            return (
                "it never was ready, and would fail again"
                if len(peers) == 1
                else (f"no {role} worker ever was ready, and they would fail again")
            )
        if self._seconds_left(role, now) <= 0:
            return f"no {role} has been ready for {self._give_up_seconds:g} s ([up] give_up_s)"
        return ""

    def flapping(self, now: float) -> dict[str, str]:
        """The children that keep dying, with a sentence each."""
        return {
            name: f"died {life.deaths} times in a row; the last time it {life.reason}"
            for name, life in self._lives.items()
            if life.deaths >= FLAPPING_DEATHS and not self._is_steady(life, now)
        }

    def _serves(self, role: Role) -> bool:
        return any(
            life.role is role and life.ready_since is not None for life in self._lives.values()
        )

    def _seconds_left(self, role: Role, now: float) -> float:
        """Until the run is given up because of this role."""
        if role not in NECESSARY or self._serves(role):
            return float("inf")
        return self._gone_since[role] + self._give_up_seconds - now

    @staticmethod
    def _is_steady(life: _Life, now: float) -> bool:
        return life.ready_since is not None and now - life.ready_since >= STEADY_SECONDS
