"""Prompts that crash workers: who is suspected, who is tried alone, and who is refused for how
long.

Theory of operation: when a worker dies, every prompt that was on it may be the cause, and one death
is chance. A prompt that was on `deaths_max` workers when they died is a suspect. Its next attempt
is a trial: it runs on a decode worker that was set aside for it (`trials.py`), so that nobody else
dies with it. If that worker lives, the prompt is cleared. If it dies, the prompt is quarantined.

Something else kills workers, too, when others died lately on which the prompt never was, or when an
attempt got further than the one before it, to a token. A suspect then has up to `TRIALS_MAX`
trials. But one that has died `deaths_max` + 1 times since a token of it was last made has the one
trial that it has otherwise: a prompt that kills whatever computes it looks like that, and chance
seldom strikes that early three times in a row. From its first death without a token on, a prompt is
given to a decode worker alone, because with a prefill worker it could kill two at once. So such a
prompt kills `deaths_max` + 1 workers at most, whatever else dies.

A worker whose connection closed counts as dead, because waiting for it would cost more workers. If
the same process comes back and does not hold the prompt, it has outlived it (`survived`). Daemons
connect again within milliseconds, so the verdict falls `VERDICT_SECONDS` after the last death. Till
then the prompt is accused: it waits, and is neither tried nor refused.

Deaths of both roles count, because a prompt that kills P is then computed by D. A request that
ends, or runs for `PROOF_SECONDS` after its first token, clears its prompt of the decode workers
that died before, and of the prefill workers if one computed it this time.

The prompt of a quarantined request is refused for `QUARANTINE_SECONDS`, whoever sends it, because a
client that gets an error sends the same prompt again. A prompt is known by a digest that its
gateway makes; no text is kept. All tables are bounded: the oldest row is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from common.messages import Role
from services.router.fleet.trials import Trials

QUARANTINE_SECONDS = 300.0
VERDICT_SECONDS = 0.5
PROOF_SECONDS = 1.0
OTHERS_SECONDS = 60.0
TRIALS_MAX = 3
SUSPECTS_MAX = 4_096
QUARANTINED_MAX = 1_024
DEATHS_KEPT = 64


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
    #: How the workers died, by identity.
    deaths: dict[str, Death] = field(default_factory=dict)


class Death(NamedTuple):
    #: Of the worker.
    role: Role
    #: Whether a token was made of the prompt, by this attempt or since by another one.
    had_token: bool
    #: Whether the worker was set aside for the prompt.
    trial: bool


@dataclass(slots=True)
class Suspicion:
    #: How each worker died that had the prompt, by identity.
    deaths: dict[str, Death] = field(default_factory=dict)
    #: Whether a token was made after a death without one.
    got_further: bool = False

    @property
    def trials(self) -> int:
        return sum(death.trial for death in self.deaths.values())

    @property
    def without_token(self) -> int:
        """Deaths since a token was last made of the prompt."""
        return sum(not death.had_token for death in self.deaths.values())


@dataclass(slots=True)
class PromptQuarantine:
    #: A prompt may be on fewer dying workers than this without a trial.
    deaths_max: int = 2
    #: Decode workers that are set aside for suspects.
    trials: Trials = field(default_factory=Trials)
    #: Suspicions by digest.
    _suspicions: OrderedDict[bytes, Suspicion] = field(default_factory=OrderedDict)
    #: Of the suspicions, those that wait for their verdict: the request of the last death, and when
    #: it was, by digest; oldest first.
    _accused: dict[bytes, tuple[str, float]] = field(default_factory=dict)
    #: When the latest workers died, with their identities.
    _deaths: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=DEATHS_KEPT))
    #: Rows by digest; one whose time is over stays until its prompt is looked up.
    _quarantined: OrderedDict[bytes, QuarantinedPrompt] = field(default_factory=OrderedDict)

    def record_loss(self, worker: str, now: float) -> None:
        """This worker (identity) died, whatever was on it."""
        self._deaths.append((now, worker))

    def doubt(self, digest: bytes, worker: str, *, had_token: bool) -> None:
        """The prompt's gateway left this decode worker. Until it shows that it lives (`trust`), it
        counts as dead."""
        self._suspect(digest, worker, Death(Role.DECODE, had_token, trial=False))

    def trust(self, digest: bytes, worker: str) -> bool:
        """The worker that was left lives. Idempotent. Returns whether this counted as a death: what
        waits with this prompt may be placed now."""
        suspicion = self._suspicions.get(digest)
        if suspicion is None or suspicion.deaths.pop(worker, None) is None:
            return False
        self._reconsider(digest, suspicion)
        return True

    def survived(self, worker: str, holds: frozenset[bytes]) -> bool:
        """The worker is back, so that it did not die: its connection broke. It outlived all prompts
        that it had, save those that it still holds. A prompt that is quarantined with too few other
        deaths is a suspect again. Idempotent. Returns whether this counted as a death of a
        suspect."""
        suspected = [d for d, s in self._suspicions.items() if worker in s.deaths]
        trusted = [self.trust(digest, worker) for digest in suspected if digest not in holds]
        for digest, row in list(self._quarantined.items()):
            if worker not in row.deaths or digest in holds:
                continue
            del row.deaths[worker]
            row.workers = tuple(sorted(row.deaths))
            if len(row.deaths) <= self.deaths_max:
                del self._quarantined[digest]
                for name, death in row.deaths.items():
                    self._suspect(digest, name, death)
        return bool(trusted)

    def record_death(
        self, digest: bytes, request_id: str, worker: str, death: Death, now: float
    ) -> None:
        """The worker died with this prompt on it, which may be one death too many."""
        suspicion = self._suspect(digest, worker, death)
        chance = suspicion.without_token <= self.deaths_max and (
            suspicion.got_further or self._others_died(suspicion, now)
        )
        tried = suspicion.trials >= (TRIALS_MAX if chance else 1)
        if tried and len(suspicion.deaths) > self.deaths_max and digest not in self._quarantined:
            self._accused[digest] = request_id, now

    def verdicts(self, now: float) -> list[QuarantinedPrompt]:
        """At each Tick: quarantines the accused prompts of whose workers none came back in time.
        Returns their rows."""
        due = [d for d, (_, died) in self._accused.items() if now - died >= VERDICT_SECONDS]
        return [self._quarantine(digest, now) for digest in due]

    def postpone(self, seconds: float, now: float) -> None:
        """The router stood still for so long, and could not hear who came back."""
        late = self._accused.items()
        self._accused = {d: (request, min(now, died + seconds)) for d, (request, died) in late}

    def _quarantine(self, digest: bytes, now: float) -> QuarantinedPrompt:
        (request_id, _), suspicion = self._accused.pop(digest), self._suspicions.pop(digest)
        names = tuple(sorted(suspicion.deaths))
        until = now + QUARANTINE_SECONDS
        row = QuarantinedPrompt(digest, request_id, names, until, deaths=suspicion.deaths)
        self._quarantined[digest] = row
        if len(self._quarantined) > QUARANTINED_MAX:
            self._quarantined.popitem(last=False)
        return row

    def record_token(self, digest: bytes) -> None:
        """The first token of an attempt was made."""
        suspicion = self._suspicions.get(digest)
        if suspicion is not None:
            suspicion.got_further |= suspicion.without_token > 0
            deaths = suspicion.deaths.items()
            suspicion.deaths = {name: death._replace(had_token=True) for name, death in deaths}

    @property
    def has_suspicions(self) -> bool:
        return bool(self._suspicions)

    def is_suspect(self, digest: bytes) -> bool:
        """Whether the prompt may only be placed as a trial."""
        suspicion = self._suspicions.get(digest)
        return suspicion is not None and len(suspicion.deaths) >= self.deaths_max

    def may_be_tried(self, digest: bytes) -> bool:
        """Whether it is a suspect and does not wait for its verdict."""
        return self.is_suspect(digest) and digest not in self._accused

    def must_be_local(self, digest: bytes) -> bool:
        """Whether only one worker may have the prompt at a time."""
        suspicion = self._suspicions.get(digest)
        return suspicion is not None and suspicion.without_token > 0

    def clear(self, digest: bytes, roles: tuple[Role, ...]) -> None:
        """Workers of these roles lived with the prompt."""
        suspicion = self._suspicions.get(digest)
        if suspicion is None:
            return
        deaths = suspicion.deaths.items()
        suspicion.deaths = {name: death for name, death in deaths if death.role not in roles}
        self._reconsider(digest, suspicion)

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

    def _reconsider(self, digest: bytes, suspicion: Suspicion) -> None:
        """After some of its deaths turned out not to count."""
        if len(suspicion.deaths) <= self.deaths_max:
            self._accused.pop(digest, None)
        if not suspicion.deaths:
            del self._suspicions[digest]

    def _suspect(self, digest: bytes, worker: str, death: Death) -> Suspicion:
        suspicion = self._suspicions.setdefault(digest, Suspicion())
        suspicion.deaths[worker] = death
        self._suspicions.move_to_end(digest)
        if len(self._suspicions) > SUSPECTS_MAX:
            forgotten, _ = self._suspicions.popitem(last=False)
            self._accused.pop(forgotten, None)
        return suspicion

    def _others_died(self, suspicion: Suspicion, now: float) -> bool:
        return any(
            now - died < OTHERS_SECONDS and worker not in suspicion.deaths
            for died, worker in self._deaths
        )

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._suspicions) <= SUSPECTS_MAX
        assert len(self._quarantined) <= QUARANTINED_MAX
        assert self._accused.keys() <= self._suspicions.keys()
        assert not self._accused.keys() & self._quarantined.keys()
        assert all(suspicion.deaths for suspicion in self._suspicions.values())
