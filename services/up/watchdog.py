"""Which children have hung: they sent beats, and send none any more.

Pure. Time counts only as far as the supervisor itself was awake, so that one which was stopped, or
got no processor, does not take all its children for hung when it goes on.
"""

from __future__ import annotations

#: What one look may add to a child's silence.
STEP_SECONDS_MAX = 2.0


class Watchdog:
    """`seconds`: the silence of a child that has hung; 0: none ever has."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        #: By child: seconds without a beat.
        self._silent: dict[str, float] = {}

    def heard(self, name: str) -> None:
        """A beat; the first one comes when the child is ready."""
        self._silent[name] = 0.0

    def ended(self, name: str) -> None:
        self._silent.pop(name, None)

    def passed(self, seconds: float) -> list[str]:
        """Call it about every second. Returns the children that have hung, each once."""
        hung = []
        for name, silent in list(self._silent.items()):
            self._silent[name] = silent + min(seconds, STEP_SECONDS_MAX)
            if self._seconds and self._silent[name] > self._seconds:
                hung.append(name)
                del self._silent[name]
        return hung
