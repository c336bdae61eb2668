"""Where one request's time went, as its gateway saw it. Sans-IO.

Four phases, one after the other without a gap, so that they sum to the whole:

- intake: read, checked, rendered, tokenized, until the core has it;
- queue: until the router says where it runs, its wait for a slot included;
- prefill: until the first token is here, the handoff of the KV included;
- decode: until now, pauses for a lost worker included.
"""

from __future__ import annotations

from collections.abc import Callable


def _standing() -> float:
    return 0.0


class Timing:
    """Of one HTTP request; all calls that it makes share it, and the first to get somewhere counts.
    `now`: seconds, monotonic, the core's clock; made when the request's head is complete."""

    __slots__ = ("_arrived", "_now", "_opened", "_placed", "_spoke")

    def __init__(self, now: Callable[[], float] = _standing) -> None:
        self._now = now
        self._arrived = now()
        self._opened: float | None = None
        self._placed: float | None = None
        self._spoke: float | None = None

    @property
    def arrived(self) -> float:
        return self._arrived

    def opened(self, now: float) -> None:
        if self._opened is None:
            self._opened = now

    def placed(self, now: float) -> None:
        """Tokens may overtake this word; then there was no prefill that we saw."""
        if self._placed is None:
            self._placed = now if self._spoke is None else self._spoke

    def spoke(self, now: float) -> None:
        if self._spoke is None:
            self._spoke = now

    def phases(self) -> dict[str, float]:
        """Milliseconds by name, of those that have begun."""
        marks = (
            ("intake", self._arrived),
            ("queue", self._opened),
            ("prefill", self._placed),
            ("decode", self._spoke),
        )
        begun = [(name, at) for name, at in marks if at is not None]
        ends = [at for _, at in begun[1:]] + [self._now()]
        return {name: (end - at) * 1000 for (name, at), end in zip(begun, ends, strict=True)}
