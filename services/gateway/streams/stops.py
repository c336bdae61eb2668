"""Finds stop strings in text that comes in pieces, and holds back what may be part of one.

Read character by character, the first stop string that is complete ends the text; of two that are
complete at the same character it is the longer one. So the answer does not depend on how the text
was cut.
"""

from __future__ import annotations


class StopScanner:
    """Nothing more may be fed after a match. `include`: the stop string itself is emitted too."""

    __slots__ = ("_firsts", "_held", "_include", "_stops", "_width")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        if not stops or not all(stops):
            raise ValueError("stop strings must be given and not be empty")
        self._stops = stops
        self._include = include
        self._firsts = frozenset(stop[0] for stop in stops)
        self._width = max(map(len, stops)) - 1
        self._held = ""

    def feed(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Returns the text that is safe to emit, and the stop string that was met, if any. Unless
        `armed` (min_tokens is not reached yet), complete stop strings pass."""
        if not self._held and self._firsts.isdisjoint(text):
            return text, None
        text = self._held + text
        if armed and (match := self._first(text)) is not None:
            end, stop = match
            self._held = ""
            return text[: end if self._include else end - len(stop)], stop
        kept = self._partial(text)
        cut = len(text) - kept
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """The text that is still held back when the stream has ended by itself."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, str] | None = None
        for stop in self._stops:
            at = text.find(stop)
            if at < 0:
                continue
            end = at + len(stop)
            if best is None or end < best[0] or (end == best[0] and len(stop) > len(best[1])):
                best = (end, stop)
        return best

    def _partial(self, text: str) -> int:
        """Length of the longest tail that begins a stop string without completing it."""
        size = len(text)
        for start in range(max(0, size - self._width), size):
            if text[start] not in self._firsts:
                continue
            tail = text[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return size - start
        return 0
