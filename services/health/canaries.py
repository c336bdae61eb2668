"""What the canaries of this host's workers say of them; pure.

A worker that does not answer its canary is degraded, after the second time in a row down. Workers
of one fingerprint are to make the same tokens: who differs from most of them is degraded, and where
as many say one thing as another, who differs from what was agreed before, or else all of them. Only
answers count for this that the engine gave while it had nothing else to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from common.messages import CanaryAnswer
from services.health.merge import Daemon
from services.health.verdict import Probe

SKIPS_MAX = 3
"""In a row, until what a worker answered before is too old to hold against it."""
Tokens = tuple[int, ...]


@dataclass(slots=True)
class _Flown:
    """`failures`, `skips`: in a row. `tokens`: what the engine made last when it was alone."""

    failures: int = 0
    skips: int = 0
    sentence: str = ""
    fingerprint: str = ""
    tokens: Tokens | None = None


class Canaries:
    """`heard` for every answer, `keep` every round."""

    def __init__(self) -> None:
        self._flown: dict[Daemon, _Flown] = {}
        self._agreed: dict[str, Tokens] = {}

    @property
    def failing(self) -> bool:
        """Somebody owes an answer: worth asking again soon."""
        return any(each.failures for each in self._flown.values())

    def keep(self, workers: Collection[Daemon]) -> None:
        """Forgets all others."""
        self._flown = {who: each for who, each in self._flown.items() if who in workers}
        there = {each.fingerprint for each in self._flown.values()}
        self._agreed = {of: tokens for of, tokens in self._agreed.items() if of in there}

    def heard(self, worker: Daemon, answer: CanaryAnswer) -> None:
        each = self._flown.setdefault(worker, _Flown())
        if answer.outcome == "skipped":
            each.skips += 1
            if each.skips >= SKIPS_MAX:
                self._flown[worker] = _Flown(skips=each.skips)
            return
        each.skips = 0
        if answer.outcome == "failed":
            each.failures, each.sentence = each.failures + 1, answer.sentence
            return
        each.failures = 0
        if answer.alone:
            each.fingerprint, each.tokens = answer.fingerprint, answer.tokens

    def probes(self) -> list[Probe]:
        found: list[Probe] = []
        odd = self._odd()
        for worker, each in self._flown.items():
            name = worker[1]
            silent = f"canary on {name}: {each.sentence}"
            differs = f"canary tokens of {name} {odd.get(worker, 'are right')}"
            found += [
                Probe(f"canary:{name}", float(each.failures), 0.5, 1.5, silent, worker),
                Probe(f"canary_tokens:{name}", float(worker in odd), 0.5, 2.0, differs, worker),
            ]
        return found

    def _odd(self) -> dict[Daemon, str]:
        """Who differs, with the end of the sentence that says from whom."""
        said: dict[str, dict[Daemon, Tokens]] = {}
        for worker, each in self._flown.items():
            if each.tokens is not None:
                said.setdefault(each.fingerprint, {})[worker] = each.tokens
        odd: dict[Daemon, str] = {}
        for fingerprint, answers in said.items():
            right = _right(answers, self._agreed.get(fingerprint))
            if right is not None:
                self._agreed[fingerprint] = right
            unsure = "" if right is not None else "; one of them computes wrongly"
            for worker, tokens in answers.items():
                others = [other[1] for other, said in answers.items() if said != tokens]
                if tokens != right and others:
                    odd[worker] = f"differ from {min(others)}'s{unsure}"
        return odd


def _right(answers: Mapping[Daemon, Tokens], agreed: Tokens | None) -> Tokens | None:
    """What most say; None when that is not to be known."""
    counts = Counter(answers.values())
    most = max(counts.values())
    leading = [tokens for tokens, count in counts.items() if count == most]
    if len(leading) == 1:
        return leading[0]
    return agreed if agreed in leading else None
