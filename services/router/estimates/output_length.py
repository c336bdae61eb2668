"""Predicts how many tokens a request will make: the 90th percentile of its class.

A class is (tenant, priority, power of two of max_tokens). If a tenant's class has fewer than
`TRUST_SAMPLES` samples, the class of all tenants is used; if that has too few, the prior.
"""

from __future__ import annotations

from collections import OrderedDict, deque

CLASSES_MAX = 1_024
SAMPLES = 64
TRUST_SAMPLES = 8
QUANTILE = 0.9

LengthClass = tuple[str | None, int, int]
"""(tenant, None for all of them; priority; bits of max_tokens)."""


class _Lengths:
    __slots__ = ("_p90", "_samples")

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=SAMPLES)
        self._p90: int | None = None

    def add(self, tokens: int) -> None:
        self._samples.append(tokens)
        self._p90 = None

    def p90(self) -> int | None:
        """None: too few samples."""
        if self._p90 is None and len(self._samples) >= TRUST_SAMPLES:
            ordered = sorted(self._samples)
            self._p90 = ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))]
        return self._p90


class OutputLength:
    """At most `CLASSES_MAX` classes are kept; the least recently used one is forgotten."""

    def __init__(self, prior_tokens: int) -> None:
        self._prior = prior_tokens
        self._classes: OrderedDict[LengthClass, _Lengths] = OrderedDict()

    def ended(self, tenant: str, priority: int, max_tokens: int, tokens: int) -> None:
        """A request ended that made `tokens`."""
        for kind in (_class(tenant, priority, max_tokens), _class(None, priority, max_tokens)):
            lengths = self._classes.get(kind)
            if lengths is None:
                lengths = self._classes[kind] = _Lengths()
                if len(self._classes) > CLASSES_MAX:
                    self._classes.popitem(last=False)
            else:
                self._classes.move_to_end(kind)
            lengths.add(tokens)

    def predict(self, tenant: str, priority: int, max_tokens: int) -> int:
        """The predicted tokens, at most `max_tokens`."""
        for kind in (_class(tenant, priority, max_tokens), _class(None, priority, max_tokens)):
            lengths = self._classes.get(kind)
            p90 = lengths.p90() if lengths is not None else None
            if p90 is not None:
                return min(max_tokens, p90)
        return min(max_tokens, self._prior)

    def known(self) -> dict[str, int]:
        """The p90 over all tenants, by `priority/smallest max_tokens`."""
        return {
            f"{priority}/{(1 << row) >> 1}": p90
            for (tenant, priority, row), lengths in self._classes.items()
            if tenant is None and (p90 := lengths.p90()) is not None
        }


def _class(tenant: str | None, priority: int, max_tokens: int) -> LengthClass:
    return (tenant, int(priority), max_tokens.bit_length())
