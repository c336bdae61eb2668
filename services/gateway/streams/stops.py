"""Finds stop strings in text that comes in pieces, and lets out only what can no longer be part
of one.

The first stop string to be complete, reading character by character, wins; of two that are complete
at the same character, the longer. So the answer does not depend on how the text was cut.
"""

from __future__ import annotations


class StopScanner:
    """`feed` gives the text that is safe to emit and the stop string that was met, if any; after a
    match nothing more may be fed. `include`: the stop string itself is emitted too."""

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
        """`armed=False` lets complete stop strings pass (min_tokens not yet reached)."""
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
        """The text still held when the stream ended by itself."""
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
