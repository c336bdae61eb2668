"""Drives the fault run: two P and two D as processes, thousands of handoffs, kills in between.

The driver gives every handoff its ticket as the router would, notes what every side reports,
replaces a killed worker by a new incarnation, and gives the handoffs of a killed D to another one
as a new attempt. Checks are in `verdict`.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from common.identity import AttemptKey
from common.messages import Ticket
from tests.faults import peer
from tests.faults.content import CONFIG
from tests.faults.plan import CORRUPTIONS, DATA, Spec, draw

OPEN_MAX = 28
"""Handoffs a worker holds at once, so that its blocks suffice."""
FETCHING_MAX = 40
KILL_AT_LEAST = 3
QUIET_S = 15.0
STUCK_S = 30.0
DRIVEN = frozenset({"case:old-incarnation", "case:release-d", "case:release-p"})
"""Cases that happen in every handoff that is drawn for them."""


@dataclass(slots=True)
class Member:
    role: str
    name: str
    incarnation: str
    process: SpawnProcess
    pipe: Connection
    address: str = ""
    open: set[AttemptKey] = field(default_factory=set)
    holdings: dict[str, int] | None = None


@dataclass(slots=True)
class Attempt:
    """One attempt at one handoff; `waiting`: the sides whose end was not reported."""

    spec: Spec
    ticket: Ticket
    p: Member
    d: Member
    waiting: set[str]
    again: bool = False


@dataclass
class Notes:
    """What was seen; `verdict` judges it."""

    seed: int
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    bent: Counter[str] = field(default_factory=Counter)
    corrupted: set[tuple[int, int]] = field(default_factory=set)
    caught: set[tuple[int, int]] = field(default_factory=set)
    accepted_wrong: int = 0
    wrong_blocks: int = 0
    ends: int = 0
    unexpected_ends: list[str] = field(default_factory=list)
    used_tickets_served: int = 0
    retries: int = 0
    kills: list[tuple[str, int]] = field(default_factory=list)
    redone: int = 0
    held: Counter[str] = field(default_factory=Counter)
    quiet_rounds: int = 0
    done: int = 0
    seconds: float = 0.0


class World:
    """`loans`: workers read each other's staging memory; else every message is sent.
    `secrets_file`: as in `WorkerIdentity`."""

    def __init__(
        self,
        seed: int,
        *,
        fault_share: float,
        kill_every: int,
        control: str = "",
        loans: bool = True,
        secrets_file: str = "",
    ) -> None:
        os.environ.setdefault("UCXX_LOG_LEVEL", "FATAL")  # every lost link would be a line
        self.notes = Notes(seed)
        self._fault_share = fault_share
        self._kill_every = kill_every
        self._arguments = (control, "tcp,sm,self" if loans else "tcp,self", secrets_file)
        self._rng = random.Random(seed)
        self._context = multiprocessing.get_context("spawn")
        self._born: Counter[str] = Counter()
        self._members = {name: self._spawn(name) for name in ("p0", "p1", "d0", "d1")}
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._todo: deque[tuple[Spec, int]] = deque()

    def run(self, first: int, count: int) -> None:
        """Handoffs [first, first + count) to their end, then what each worker still holds."""
        start = time.monotonic()
        target = self.notes.done + count
        self._todo.extend(
            (draw(self.notes.seed, n, self._fault_share), 0) for n in range(first, first + count)
        )
        kill_at = self.notes.done + self._kill_every if self._kill_every else target + 1
        last_end_at = time.monotonic()
        while self.notes.done < target or self._attempts:
            self._dispatch()
            done = self.notes.done
            self._listen(1.0)
            if self.notes.done >= kill_at and self._kill():
                kill_at += self._kill_every
            if self.notes.done > done:
                last_end_at = time.monotonic()
            elif time.monotonic() - last_end_at > STUCK_S:
                raise AssertionError(f"nothing ended for {STUCK_S} s: {list(self._attempts)[:20]}")
        self._check_quiet()
        self.notes.seconds += time.monotonic() - start

    def warm(self, count: int) -> None:
        """Faultless handoffs until all connections are made; their outcomes do not count."""
        share, self._fault_share = self._fault_share, 0.0
        self.run(-count, count)
        self._fault_share = share
        self.notes.outcomes.clear()

    def close(self) -> None:
        for member in self._members.values():
            member.process.kill()
            member.process.join()

    # ------------------------------------------------------------ processes

    def _spawn(self, name: str) -> Member:
        self._born[name] += 1
        incarnation = f"{name}-{self._born[name]}"
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=peer.main, args=(theirs, name, incarnation, *self._arguments), daemon=True
        )
        process.start()
        theirs.close()
        return Member(name[0], name, incarnation, process, ours)

    def _kill(self) -> bool:
        busy = [m for m in self._members.values() if len(m.open) >= KILL_AT_LEAST and m.address]
        if not busy:
            return False
        victim = self._rng.choice(sorted(busy, key=lambda member: member.name))
        victim.process.kill()
        self.notes.kills.append((victim.incarnation, len(victim.open)))
        return True

    def _died(self, member: Member) -> None:
        member.process.join()
        if (member.incarnation) not in {who for who, _ in self.notes.kills}:
            raise AssertionError(f"{member.incarnation} died by itself; seed {self.notes.seed}")
        for key in list(member.open):
            attempt = self._attempts[key]
            side = "send" if member.role == "p" else "receive"
            if side == "receive" and side in attempt.waiting and not attempt.again:
                self.notes.redone += 1
                self._todo.appendleft((attempt.spec, attempt.ticket.attempt + 1))
            self._closed(key, side)
        self._members[member.name] = self._spawn(member.name)

    # ------------------------------------------------------------ handoffs

    def _dispatch(self) -> None:
        while self._todo:
            fetching = sum("receive" in attempt.waiting for attempt in self._attempts.values())
            p, d = self._least("p"), self._least("d")
            if fetching >= FETCHING_MAX or p is None or d is None:
                return
            spec, attempt = self._todo.popleft()
            self._begin(spec, attempt, p, d)

    def _least(self, role: str) -> Member | None:
        able = [
            member
            for member in self._members.values()
            if member.role == role and member.address and len(member.open) < OPEN_MAX
        ]
        return min(able, key=lambda member: len(member.open), default=None)

    def _begin(self, spec: Spec, attempt: int, p: Member, d: Member) -> None:
        ticket = Ticket(
            secret=random.Random(f"{self.notes.seed}:{spec.number}:{attempt}").randbytes(16),
            request_id=spec.name,
            attempt=attempt,
            fingerprint="f",
            prefill=p.name,
            prefill_incarnation=p.incarnation,
            decode=d.name,
            decode_incarnation=d.incarnation,
            kv_address=p.address,
            lease_ms=CONFIG.lease_ms,
        )
        key = (spec.name, attempt)
        self._attempts[key] = Attempt(spec, ticket, p, d, {"send", "receive"})
        p.open.add(key)
        d.open.add(key)
        late = spec.gap_ms / 1000
        self._send(p, "serve", spec, ticket, late if spec.fetch_first else 0.0)
        ticket_of_d = ticket
        if spec.old_incarnation:
            ticket_of_d = _with(ticket, prefill_incarnation=f"{p.name}-0")
        self._send(d, "fetch", spec, ticket_of_d, 0.0 if spec.fetch_first else late)

    def _send(self, member: Member, *what: object) -> None:
        try:
            member.pipe.send(what)
        except (BrokenPipeError, ConnectionResetError):
            return  # it was killed; its pipe's end of file shows it

    def _listen(self, seconds: float) -> None:
        pipes = {member.pipe: member for member in self._members.values()}
        for ready in wait(list(pipes), seconds):
            member = pipes[ready]  # type: ignore[index]
            try:
                while member.pipe.poll():
                    self._on_event(member, member.pipe.recv())
            except (EOFError, ConnectionResetError):
                self._died(member)

    def _on_event(self, member: Member, event: tuple[Any, ...]) -> None:
        match event:
            case ("up", address):
                member.address = address
            case ("bent", kind, _, transfer, index):
                self.notes.bent[kind] += 1
                target, _, what = kind.partition(":")
                if target == DATA and what in CORRUPTIONS:
                    self.notes.corrupted.add((transfer, index))
            case ("verdict", transfer, index, wrongly_accepted):
                if wrongly_accepted:
                    self.notes.accepted_wrong += 1
                else:
                    self.notes.caught.add((transfer, index))
            case ("end", side, name, attempt, error, retries, wrong):
                self._ended(side, (name, attempt), error, retries, wrong)
            case ("holdings", counts):
                member.holdings = counts
            case _:
                raise AssertionError(f"unknown event: {event}")

    def _ended(self, side: str, key: AttemptKey, error: str, retries: int, wrong: int) -> None:
        notes = self.notes
        attempt = self._attempts.get(key)
        notes.ends += 1
        notes.wrong_blocks += wrong
        if attempt is None or side not in attempt.waiting:
            notes.unexpected_ends.append(f"{side} {key}")
            return
        if side == "receive" and attempt.again:
            notes.used_tickets_served += not error
        elif side == "receive":
            kind = attempt.spec.kind
            notes.done += 1
            notes.retries += retries
            notes.outcomes[kind, _outcome(error, retries)] += 1
            notes.bent[kind] += kind in DRIVEN
        self._closed(key, side)

    def _closed(self, key: AttemptKey, side: str) -> None:
        attempt = self._attempts[key]
        attempt.waiting.discard(side)
        member = attempt.p if side == "send" else attempt.d
        member.open.discard(key)
        if attempt.waiting:
            return
        if attempt.spec.used_ticket and not attempt.again and attempt.d.process.is_alive():
            self._try_used(key, attempt)
        else:
            del self._attempts[key]

    def _try_used(self, key: AttemptKey, attempt: Attempt) -> None:
        """Both sides have ended: nobody may be served with this ticket any more."""
        attempt.again = True
        attempt.waiting.add("receive")
        attempt.d.open.add(key)
        self.notes.bent[attempt.spec.kind] += 1
        self._send(attempt.d, "fetch", attempt.spec, attempt.ticket, 0.0)

    def _check_quiet(self) -> None:
        """Everyone alive holds nothing, at the latest when the last owed receive has given up."""
        deadline = time.monotonic() + QUIET_S
        left: Counter[str] = Counter()
        while True:
            members = list(self._members.values())
            if all(member.address for member in members):
                for member in members:
                    member.holdings = None
                    self._send(member, "holdings")
                while any(member.holdings is None for member in members):
                    self._listen(1.0)
                counts = {m.name: m.holdings or {} for m in members}
                left = Counter(
                    {
                        f"{what} of {name}": count
                        for name, held in counts.items()
                        for what, count in held.items()
                        if count > 0
                    }
                )
            else:
                self._listen(1.0)
                continue
            if not left or time.monotonic() > deadline:
                break
            self._listen(0.1)
        self.notes.quiet_rounds += 1
        self.notes.held += left


def _with(ticket: Ticket, *, prefill_incarnation: str) -> Ticket:
    fields = {name: getattr(ticket, name) for name in ticket.__struct_fields__}
    return Ticket(**{**fields, "prefill_incarnation": prefill_incarnation})


def _outcome(error: str, retries: int) -> str:
    if error == "cancelled":
        return "cancelled"
    if error:
        return "recomputed"
    return "fetched again" if retries else "delivered"
