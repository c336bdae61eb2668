"""Prompts that crash workers, and for how long they are refused.

Theory of operation: a request that was on `deaths_max` workers of one role when their processes
died is likely what crashed them. Deaths of both roles are not added up, because a host that fails
takes workers of both roles with it. The prompt of such a request is refused for
`QUARANTINE_SECONDS`, whoever sends it, because a client that gets an error sends the same prompt
again. A prompt is known by a digest that its gateway makes; no text is kept. Both tables are
bounded: the oldest row is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from common.messages import Role

QUARANTINE_SECONDS = 300.0
SUSPECTS_MAX = 4_096
QUARANTINED_MAX = 1_024


@dataclass(slots=True)
class QuarantinedPrompt:
    #: Digest of the prompt.
    digest: bytes
    #: The request that was on the workers.
    request_id: str
    #: Identities of the workers whose processes died.
    workers: tuple[str, ...]
    #: The instant at which the quarantine ends.
    until: float
    #: How often the prompt was refused since.
    refused: int = 0


@dataclass(slots=True)
class PromptQuarantine:
    #: A request may be on fewer dying workers of one role than this.
    deaths_max: int = 2
    #: Identities of the workers that died, by role and the request that was on them.
    _suspects: OrderedDict[tuple[Role, str], set[str]] = field(default_factory=OrderedDict)
    #: Rows by digest; one whose time is over stays until its prompt is looked up.
    _quarantined: OrderedDict[bytes, QuarantinedPrompt] = field(default_factory=OrderedDict)

    def record_death(
        self, suspect: tuple[Role, str], digest: bytes, worker: str, now: float
    ) -> QuarantinedPrompt | None:
        """The process of `worker` (identity) died with this request on it. `suspect`: the worker's
        role and the request's id. Returns the row if the prompt is quarantined by this."""
        workers = self._suspects.setdefault(suspect, set())
        workers.add(worker)
        if len(self._suspects) > SUSPECTS_MAX:
            self._suspects.popitem(last=False)
        if len(workers) < self.deaths_max or not digest or digest in self._quarantined:
            return None
        del self._suspects[suspect]
        until = now + QUARANTINE_SECONDS
        row = QuarantinedPrompt(digest, suspect[1], tuple(sorted(workers)), until)
        self._quarantined[digest] = row
        if len(self._quarantined) > QUARANTINED_MAX:
            self._quarantined.popitem(last=False)
        return row

    def refuse(self, digest: bytes, now: float) -> QuarantinedPrompt | None:
        """Returns the row of a quarantined prompt and counts the refusal; None = the prompt may be
        served. A row whose time is over is removed."""
        row = self._quarantined.get(digest)
        if row is None:
            return None
        if now >= row.until:
            del self._quarantined[digest]
            return None
        row.refused += 1
        return row

    def rows(self, now: float) -> list[QuarantinedPrompt]:
        """The prompts that are refused now, oldest first."""
        return [row for row in self._quarantined.values() if now < row.until]

    def lift(self, digest: bytes | None) -> int:
        """Ends the quarantine of one prompt, or of all if `digest` is None. Returns how many rows
        were removed."""
        lifted = [known for known in self._quarantined if digest in (None, known)]
        for known in lifted:
            del self._quarantined[known]
        return len(lifted)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._suspects) <= SUSPECTS_MAX
        assert len(self._quarantined) <= QUARANTINED_MAX
