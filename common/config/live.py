"""What a daemon that reads its fleet file again may change while it runs, and what it may not.

Pure. A key is compared with what the daemon runs on, not with what it read last, so that a change
which needs a restart is named at every reading until the restart has happened.
"""

from __future__ import annotations

from dataclasses import dataclass

LOG_LEVEL = "fleet.log_level"


@dataclass(frozen=True, slots=True)
class Reading:
    """`applied`: keys that are new in force. `needs_restart`: keys of this daemon's sections that
    differ and wait for a restart."""

    applied: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        applied = ", ".join(self.applied) or "nothing to change"
        waits = f"; after a restart: {', '.join(self.needs_restart)}" if self.needs_restart else ""
        return f"{applied}{waits}"


def compare(
    running: dict[str, object],
    read: dict[str, object],
    *,
    live: frozenset[str],
    sections: tuple[str, ...],
) -> Reading:
    """Both by dotted path (`flatten`). `live`: keys that can be applied. `sections`: prefixes of
    the keys that concern this daemon; all others are other daemons' to apply."""
    keys = sorted(key for key in running.keys() | read.keys() if running.get(key) != read.get(key))
    ours = [key for key in keys if f"{key}.".startswith(tuple(f"{name}." for name in sections))]
    return Reading(
        tuple(key for key in keys if key in live),
        tuple(key for key in ours if key not in live),
    )
