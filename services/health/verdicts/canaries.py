"""Evaluates the canary answers of this host's workers; pure.

A worker that does not answer its canary is degraded, and down after the second failure in a row.
Workers with the same fingerprint must generate the same tokens. A worker that differs from the
majority is degraded. Without a majority, the tokens that were agreed on before decide; if there are
none, all are degraded. Only answers count that the engine made while it had no other request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from common.messages import CanaryAnswer
from services.health.metrics.merge import Daemon
from services.health.verdicts.host_verdict import Probe

SKIPS_MAX = 3
"""Skipped canaries in a row after which the earlier answer of a worker is too old to count."""
Tokens = tuple[int, ...]


@dataclass(slots=True)
class _CanaryRecord:
    """What is known of one worker from its canaries."""

    #: Canaries in a row that failed.
    failures: int = 0
    #: Canaries in a row that were skipped.
    skips: int = 0
    #: Why the latest canary failed.
    sentence: str = ""
    #: The fingerprint of the worker when it made `tokens`.
    fingerprint: str = ""
    #: What the engine last generated while it had no other request.
    tokens: Tokens | None = None


class Canaries:
    """Call `record_answer` for every answer and `retain` in every round."""

    def __init__(self) -> None:
        self._records: dict[Daemon, _CanaryRecord] = {}
        self._agreed: dict[str, Tokens] = {}

    @property
    def failing(self) -> bool:
        """True if a worker failed its last canary; the next one is then sent sooner."""
        return any(record.failures for record in self._records.values())

    def retain(self, workers: Collection[Daemon]) -> None:
        """Forgets all other workers."""
        self._records = {
            worker: record for worker, record in self._records.items() if worker in workers
        }
        fingerprints = {record.fingerprint for record in self._records.values()}
        self._agreed = {of: tokens for of, tokens in self._agreed.items() if of in fingerprints}

    def record_answer(self, worker: Daemon, answer: CanaryAnswer) -> None:
        record = self._records.setdefault(worker, _CanaryRecord())
        if answer.outcome == "skipped":
            record.skips += 1
            if record.skips >= SKIPS_MAX:
                self._records[worker] = _CanaryRecord(skips=record.skips)
            return
        record.skips = 0
        if answer.outcome == "failed":
            record.failures, record.sentence = record.failures + 1, answer.sentence
            return
        record.failures = 0
        if answer.alone:
            record.fingerprint, record.tokens = answer.fingerprint, answer.tokens

    def probes(self) -> list[Probe]:
        found: list[Probe] = []
        odd = self._odd()
        for worker, record in self._records.items():
            name = worker[1]
            silent = f"canary on {name}: {record.sentence}"
            differs = f"canary tokens of {name} {odd.get(worker, 'are right')}"
            found += [
                Probe(f"canary:{name}", float(record.failures), 0.5, 1.5, silent, worker),
                Probe(f"canary_tokens:{name}", float(worker in odd), 0.5, 2.0, differs, worker),
            ]
        return found

    def _odd(self) -> dict[Daemon, str]:
        """Workers whose tokens differ, with the end of the sentence that names the others."""
        tokens_by_fingerprint: dict[str, dict[Daemon, Tokens]] = {}
        for worker, record in self._records.items():
            if record.tokens is not None:
                tokens_by_fingerprint.setdefault(record.fingerprint, {})[worker] = record.tokens
        odd: dict[Daemon, str] = {}
        for fingerprint, answers in tokens_by_fingerprint.items():
            right = _right(answers, self._agreed.get(fingerprint))
            if right is not None:
                self._agreed[fingerprint] = right
            unsure = "" if right is not None else "; one of them computes wrongly"
            for worker, tokens in answers.items():
                others = [other[1] for other, theirs in answers.items() if theirs != tokens]
                if tokens != right and others:
                    odd[worker] = f"differ from {min(others)}'s{unsure}"
        return odd


def _right(answers: Mapping[Daemon, Tokens], agreed: Tokens | None) -> Tokens | None:
    """The tokens of the majority, or the agreed ones; None if neither decides."""
    counts = Counter(answers.values())
    most = max(counts.values())
    leading = [tokens for tokens, count in counts.items() if count == most]
    if len(leading) == 1:
        return leading[0]
    return agreed if agreed in leading else None
