"""Compares a fleet file that was read again with the configuration that a daemon runs on.

Pure. A key is compared with the value in force, not with the value read last. A change that needs a
restart is therefore named at each reload until the restart has happened.
"""

from __future__ import annotations

from dataclasses import dataclass

LOG_LEVEL = "fleet.log_level"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reload changed."""

    applied: tuple[str, ...] = ()
    """Keys whose new value can be put in force."""
    needs_restart: tuple[str, ...] = ()
    """Keys of this daemon's sections that differ and wait for a restart."""

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
    """Both mappings are by dotted path (`flatten`). `live` are the keys that can be applied while
    the daemon runs. `sections` are prefixes of the keys that this daemon reads; other keys are
    applied by other daemons."""
    keys = sorted(key for key in running.keys() | read.keys() if running.get(key) != read.get(key))
    ours = [key for key in keys if f"{key}.".startswith(tuple(f"{name}." for name in sections))]
    return Reading(
        tuple(key for key in keys if key in live),
        tuple(key for key in ours if key not in live),
    )
