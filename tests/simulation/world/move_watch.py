"""Moves of running streams, watched in the router: who is told to leave, when and for whom, where
the next attempt goes, and what an eviction leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.blocks import streams_can_move
from common.errors import Code
from common.identity import AttemptKey
from common.messages import Decode, DecodeStarted, Failed, HandOver, Move
from services.router.events import Action, Event, Received, Send, Tick, WorkerEvicted
from services.router.records.attempt import Attempt
from services.router.records.move import MoveOrder, MoveOutcome, MoveReason
from services.router.records.states import AttemptState, WorkerState
from services.router.rules import moves
from services.router.tables import Tables

if TYPE_CHECKING:
    from tests.simulation.world.router import RouterProcess

LATE_SECONDS = 0.5


class MoveWatch:
    """One for each model."""

    def __init__(self, router: RouterProcess, tables: Tables) -> None:
        self._router = router
        self._tables = tables
        #: Which attempt of each request was last told to move, and when.
        self._told: dict[str, tuple[int, float]] = {}
        #: When each request was last parked.
        self._parks: dict[str, float] = {}
        #: The orders that were given, by attempt.
        self._orders: dict[AttemptKey, MoveOrder] = {}
        #: Workers of which an eviction will drop the rest.
        self._dropping: set[str] = set()

    @property
    def _now(self) -> float:
        return self._router.clock.now

    def after(self, event: Event, actions: list[Action]) -> None:
        sends = [action for action in actions if isinstance(action, Send)]
        workers = self._tables.workers
        for send in sends:
            if send.peer in workers or send.peer in self._tables.gateways:
                self._sent(send, sends)
        for key, attempt in self._tables.leaving.items():
            if attempt.moving and key not in self._orders:
                self._violate(f"did not send the order that {key} moves")
        if isinstance(event, WorkerEvicted) and event.worker in workers:
            if event.worker not in self._dropping:
                self._evicted(event.worker, sends)
            self._dropping.add(event.worker)
        if isinstance(event, Tick):
            self._judge_evictions()
            self._judge_copies()
        elif isinstance(event, Received) and isinstance(event.message, DecodeStarted):
            self._arrived((event.message.request_id, event.message.attempt))

    def _sent(self, send: Send, sends: list[Send]) -> None:
        match send.message:
            case Move() as move:
                self._told_to_move(send.peer, (move.request_id, move.attempt), sends)
            case HandOver() as order:
                self._handed_over(send.peer, order, sends)
            case Decode() as decode:
                self._placed(send.peer, (decode.request_id, decode.attempt))
            case Failed() as failed if failed.code == Code.PREEMPTED:
                self._parked((failed.request_id, failed.attempt))

    def _told_to_move(self, peer: str, key: tuple[str, int], sends: list[Send]) -> None:
        """What waits may take the room of an evicted worker's stream in the same step."""
        tables, (request_id, _) = self._tables, key
        attempt = tables.attempts.get(key)
        if attempt is None or attempt.decode != peer or attempt.state is not AttemptState.DECODING:
            self._violate(f"told {peer} to let {key} go, which does not stream there")
            return
        if not attempt.resumable:
            self._violate(f"moves {key}, which cannot go on elsewhere")
        source, order = tables.workers[peer], attempt.leaves_by
        if order is not None and order.parks:
            self._orders[key] = order
            return
        if not streams_can_move(source.capacity.kv_groups):
            self._violate(f"moves {key}, whose KV does not move")
        if not self._takers(attempt, sends):
            self._violate(f"moves {key}, for which nobody has room")
        number, last = self._told.get(request_id, (0, -moves.COOLDOWN_SECONDS))
        room = order is not None and order.reason is MoveReason.ROOM
        recent = self._now - last < moves.COOLDOWN_SECONDS
        if room and recent and self._has_left(request_id, number):
            self._violate(f"moves {key} again after {self._now - last:.1f} s to make room")
        self._told[request_id] = key[1], self._now
        if order is not None:
            self._orders[key] = order

    def _has_left(self, request_id: str, number: int) -> bool:
        """Whether this attempt, which was told to leave, did. One that was lost or cancelled before
        it could has not moved."""
        tables, after = self._tables, (request_id, number + 1)
        row = tables.history.find((request_id, number))
        next_one = tables.attempts.get(after) or tables.history.find(after)
        came = next_one is not None and bool(next_one.moved_from)
        return row is None or row.outcome == Code.MOVED or came

    def _evicted(self, worker: str, sends: list[Send]) -> None:
        """The first order drops only what cannot move."""
        for send in sends:
            if not isinstance(send.message, Failed):
                continue
            key = (send.message.request_id, send.message.attempt)
            attempt, row = self._tables.history.find(key), self._tables.workers[worker]
            if attempt is None or row.state is not WorkerState.READY or row.health_verdict:
                continue
            able = streams_can_move(row.capacity.kv_groups) and attempt.resumable
            streams = attempt.decode_started is not None and not attempt.trial
            if (
                able
                and streams
                and self._takers(attempt)
                and not self._tables.quarantine.trials.rows
            ):
                self._violate(f"drops {key}, which could have moved")

    def _takers(self, attempt: Attempt, sends: Sequence[Send] = ()) -> list[str]:
        """Counted here, and not as the router counts. A worker that is set aside for a suspected
        prompt takes nothing else. `sends`: what they placed is not counted yet."""
        total, found = attempt.request.promised_tokens, []
        aside = {attempt.decode, *self._tables.quarantine.trials.rows}
        for view in self._tables.snapshots.decodes():
            if not view.suits(attempt.request):
                continue
            new = [
                self._tables.attempts[send.message.request_id, send.message.attempt]
                for send in sends
                if isinstance(send.message, Decode) and send.peer == view.identity
            ]
            taken = sum(view.kv_need(other.request.promised_tokens) for other in new)
            free = view.kv_tokens_max - view.kv_tokens + taken
            if view.identity not in aside and view.requests - len(new) < view.requests_max:
                found += [view.identity] if view.kv_need(total) <= free else []
        return found

    def _handed_over(self, peer: str, order: HandOver, sends: list[Send]) -> None:
        ticket = order.ticket
        attempt = self._tables.attempts.get((ticket.request_id, ticket.attempt))
        if attempt is None or attempt.moved_from != peer:
            self._violate(f"lets {peer} hand over {ticket.request_id}, which did not leave it")
        elif order.kept_attempt != ticket.attempt - 1:
            self._violate(f"asks {peer} for attempt {order.kept_attempt} for {attempt.key}")
        tickets = [send.message.ticket for send in sends if isinstance(send.message, Decode)]
        if ticket not in tickets:
            self._violate(f"told only {peer} of the ticket for {ticket.request_id}")

    def _placed(self, peer: str, key: tuple[str, int]) -> None:
        """A move that names a worker goes there if it has room. No stream goes back while another
        worker has room for it. Where a pair is barred, there may be no prefill worker for that, and
        one for the other, or none needed."""
        attempt = self._tables.attempts.get(key)
        before = (key[0], key[1] - 1)
        order, row = self._orders.get(before), self._tables.history.find(before)
        left = row is not None and row.outcome == Code.MOVED and order is not None
        faultless = self._router.fleet.judge.faultless
        if attempt is not None and left and faultless and not attempt.moved_from:
            self._violate(f"was not told that {key} left its worker with its KV")
        if attempt is None or not attempt.moved_from:
            return
        if left and attempt.came_by is not order:
            self._violate(f"forgot the order by which {key} moved")
        by = attempt.came_by
        if by is not None and by.parks:
            return
        target = by.target or by.copy_to if by is not None else ""
        room = self._takers(attempt)
        barred = self._tables.placement_memory.pairs.refresh_excluded(self._now)
        doubted = barred or self._tables.unhealthy or self._tables.quarantine.trials.rows
        if target and peer != target and target in room and not doubted:
            self._violate(f"placed {key} on {peer}, and it was to go to {target}")
        if peer == attempt.moved_from and room and not doubted:
            self._violate(f"placed {key} where it came from, though {room} have room")

    def _parked(self, key: tuple[str, int]) -> None:
        """Only what could not move and make room by it."""
        victim, last = self._tables.attempts.get(key), self._parks.get(key[0])
        lately = last is not None and self._now - last < moves.COOLDOWN_SECONDS
        if lately and victim is not None and not victim.abandoned:
            self._violate(f"parks {key} a second time")
        self._parks[key[0]] = self._now
        if victim is None or not len(self._tables.waiting) or not victim.resumable:
            return
        source = self._tables.workers.get(victim.decode)
        first = self._tables.waiting.head()
        if source is None or victim.decode_started is None or not source.ready:
            return
        need = source.view().kv_need(first.request.promised_tokens)
        free = source.kv_tokens_max - source.view().kv_tokens + source.held.get(key, 0)
        able = streams_can_move(source.capacity.kv_groups) and not victim.trial
        able = able and not moves.is_recent(victim.moved_at, self._now) and last is None
        if able and need <= free and self._takers(victim):
            self._violate(f"parks {key}, which could have moved")

    def _judge_evictions(self) -> None:
        rows = self._tables.workers
        self._dropping = {name for name, worker in rows.items() if worker.drop_at is not None}
        for worker in rows.values():
            if worker.drop_at is not None and self._now > worker.drop_at + LATE_SECONDS:
                self._violate(f"does not drop what evicted {worker.name} still holds")

    def _judge_copies(self) -> None:
        """What is copied ahead of its move leaves in the end."""
        longest = self._tables.settings.copy_ahead_seconds
        for key, attempt in self._tables.leaving.items():
            order = attempt.leaves_by
            if order is None or order.told is not None:
                continue
            until = order.due + longest if order.copy_until is None else order.copy_until
            if self._now > until + LATE_SECONDS:
                self._violate(f"copies {key} and does not let it go")

    def _arrived(self, key: tuple[str, int]) -> None:
        """Where nothing goes wrong, the KV comes with a stream that was placed in time."""
        attempt = self._tables.attempts.get(key)
        if attempt is None or not attempt.moved_from or not self._router.fleet.judge.faultless:
            return
        if attempt.came_by is not None and attempt.came_by.parks:
            return
        report, placed = attempt.decode_report, attempt.placed or 0.0
        kept = moves.KEPT_SHARE * self._tables.settings.keep_seconds
        left = attempt.received if attempt.moved_at is None else attempt.moved_at
        if attempt.decode == attempt.moved_from or placed - left > kept:
            return
        if report is None or report.kv is None or not report.kv.complete:
            self._violate(f"{key} was computed again, though nothing went wrong")
        if (attempt.move_reason, MoveOutcome.MOVED) not in self._tables.counts.moves:
            self._violate(f"did not count the move of {key}")

    def _violate(self, sentence: str) -> None:
        self._router.clock.violate(f"{self._router.name} {sentence}")
