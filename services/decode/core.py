"""What a decode worker decides: which streams it owns, and what it sends after each engine step.

Sans-IO. A stream is in the table from its `Decode` until its one `Ended`. It ends by the engine's
own finish or error, by an `Abort` of the router or the gateway, by a `Move`, or because its gateway
is lost. What it is promised may be raised while it runs (`budget.py`). A stream that moves ends
with the step that its engine is in. Its KV stays there until the worker on which it goes on has
taken it, and a drain waits for that. All new tokens of one engine step for one gateway leave as one
`Tokens`. `index` counts the completion tokens sent before, by which the gateway refuses gaps and
duplicates. The engine's tokens and the handoff's report arrive over different channels, so
`DecodeStarted` waits for the report, at most until the end of the stream; tokens do not wait.
"""

from __future__ import annotations

import msgspec

from common.engine.port import Batch, ColdAfter, EngineRequest, Output, engine_key
from common.errors import Code
from common.identity import identity_of
from common.kv.messages import KvDone
from common.messages import (
    Abort,
    CopyAhead,
    Decode,
    DecodeStarted,
    Delta,
    Ended,
    GrantKv,
    HandOver,
    HeldAttempt,
    Move,
    Role,
)
from common.net.wire import unpack_ids
from common.worker.actions import (
    AbortInEngine,
    Action,
    AddToEngine,
    CopyInEngine,
    Dispatched,
    DrainOver,
    EngineRefused,
    Event,
    GatewayGone,
    HandOverKept,
    LeaveEngine,
    ToGateway,
    ToRouter,
)
from services.decode import budget
from services.decode.grant_limit import GrantLimit
from services.decode.late_reports import LateReports
from services.decode.stream import (
    Stream,
    copied_ahead,
    delta_of,
    held_of,
    in_frames,
    trouble_of,
    with_drafter,
)


class DecodeCore:
    """The table of streams, bounded by `limit`. A `Decode` over the limit is refused: the router
    that sent it does not know what another router placed here."""

    def __init__(
        self,
        name: str,
        incarnation: str,
        limit: GrantLimit,
        *,
        drafter_cold: ColdAfter = "none",
        step_tokens: int = 1,
    ) -> None:
        """`drafter_cold` and `step_tokens`: as in `EngineInfo`."""
        self._name = name
        self._incarnation = incarnation
        self._limit = limit
        self._drafter_cold = drafter_cold
        self._step_tokens = step_tokens
        self._promised = 0
        self._streams: dict[str, Stream] = {}
        self._current: dict[str, int] = {}
        #: Streams that were given up and whose KV the engine keeps.
        self._kept: set[str] = set()
        self._late_reports = LateReports()
        #: Frames that cannot be decoded, and events that concern no stream of the table.
        self.dropped = 0

    @property
    def active(self) -> int:
        """Streams that a drain must wait for, and KV that the next worker of a stream may still
        take."""
        return len(self._streams) + len(self._kept)

    def held_attempts(self) -> list[HeldAttempt]:
        """All streams, the oldest first."""
        return [
            msgspec.structs.replace(stream.held, started=stream.first_token is not None)
            for stream in self._streams.values()
        ]

    def held_attempt(self, request_id: str, attempt: int) -> HeldAttempt | None:
        """None if the attempt is not in the table."""
        stream = self._streams.get(engine_key(request_id, attempt))
        return None if stream is None else stream.held

    def holds(self, key: str) -> bool:
        """Whether the attempt of this engine key is in the table."""
        return key in self._streams

    def handle(self, event: Event, now: float) -> list[Action]:
        """The sole mutator of the table. `now` is in seconds, monotonic."""
        match event:
            case Dispatched(message=Decode() as message):
                return self._dispatched(event, message, now)
            case Abort():
                return self._aborted(event, now)
            case Move() | CopyAhead() | HandOver() | GrantKv():
                return self._moved(event, now)
            case Batch():
                return self._stepped(event, now)
            case EngineRefused():
                return self._refused(event, now)
            case GatewayGone():
                return self._gateway_gone(event, now)
            case DrainOver():
                return self._drain_over(event, now)
            case _:
                self.dropped += 1
                return []

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._streams) <= self._limit.streams_max
        assert self._promised == sum(stream.kv_tokens for stream in self._streams.values())
        assert self._promised <= self._limit.kv_tokens_max
        assert len(self._current) == len(self._streams)
        self._late_reports.check_invariants()
        for key, stream in self._streams.items():
            assert key == stream.key
            assert self._current[stream.request_id] == stream.attempt

    def _dispatched(self, event: Dispatched, message: Decode, now: float) -> list[Action]:
        actions: list[Action] = []
        current = self._current.get(message.request_id, 0)
        if message.attempt <= current:
            self.dropped += 1
            return []
        if current:
            actions += self._aborted(
                Abort(request_id=message.request_id, attempt=current, reason="newer attempt"), now
            )
        ticket, prompt_ids = message.ticket, unpack_ids(event.body.prompt_ids)
        mine = (self._name, self._incarnation)
        stream = Stream(
            request_id=message.request_id,
            attempt=message.attempt,
            gateway=(message.gateway, message.gateway_incarnation),
            endpoint=message.stream_endpoint,
            arrived=now,
            awaits_report=ticket is not None,
            held=held_of(message, len(prompt_ids), event.body.sampling.max_tokens, mine),
            kv_tokens=budget.promised(
                self._limit, message.kv_tokens, len(prompt_ids) + event.body.sampling.max_tokens
            ),
            tell_at=budget.tell_at(message),
        )
        if ticket is not None and (ticket.decode, ticket.decode_incarnation) != mine:
            sentence = "the ticket names another incarnation of this worker"
            return [*actions, *self._reject_dispatch(stream, Code.WORKER_LOST, sentence)]
        refusal = self._limit.why_refused(len(self._streams), self._promised + stream.kv_tokens)
        if refusal:
            return [*actions, self._declined(stream, refusal)]
        self._streams[stream.key] = stream
        self._promised += stream.kv_tokens
        self._current[stream.request_id] = stream.attempt
        request = EngineRequest(
            request_id=message.request_id,
            attempt=message.attempt,
            role=Role.DECODE,
            prompt_ids=prompt_ids,
            sampling=event.body.sampling,
            ticket=ticket,
            source=message.source,
            holder=message.holder,
            cache_salt=event.body.cache_salt,
            emitted=event.body.emitted,
            images=event.body.images,
            adapter=event.body.adapter,
            pooling=event.body.pooling,
        )
        return [*actions, AddToEngine(request)]

    def _stepped(self, batch: Batch, now: float) -> list[Action]:
        routed: dict[tuple[str, str], tuple[str, list[Delta]]] = {}
        pooled_bytes = 0
        reports = [action for done in batch.kv_done for action in self._kv_done(done, now)]
        for output in batch.outputs:
            stream = self._streams.get(output.key)
            if stream is None:
                self.dropped += 1
                continue
            delta = delta_of(stream, output)
            routed.setdefault(stream.gateway, (stream.endpoint, []))[1].append(delta)
            reports += self._advance(stream, output, now)
            pooled_bytes += len(output.pooled)
        for key in batch.left:
            reports += self._left(key, now)
        sends: list[Action] = [
            ToGateway(name, incarnation, endpoint, part)
            for (name, incarnation), (endpoint, deltas) in routed.items()
            for part in (in_frames(deltas) if pooled_bytes else (deltas,))
        ]
        return sends + reports

    def _advance(self, stream: Stream, output: Output, now: float) -> list[Action]:
        reports: list[Action] = []
        if stream.first_token is None and (output.token_ids or output.pooled):
            stream.first_token = now
            stream.started = DecodeStarted(
                request_id=stream.request_id,
                attempt=stream.attempt,
                elapsed_ms=(now - stream.arrived) * 1000,
                cached_tokens=output.cached_tokens,
            )
            if not stream.awaits_report:
                reports += self._report_started(stream)
        stream.emitted += len(output.token_ids)
        if stream.tell_at and not output.finish_reason:
            reports += budget.told(stream, self._limit.block_tokens, self._step_tokens)
        if output.finish_reason or output.error:
            reports += self._end(stream, now, output.finish_reason, output.error, output.message)
        return reports

    @staticmethod
    def _report_started(stream: Stream) -> list[Action]:
        started, stream.started = stream.started, None
        if started is None:
            return []
        return [ToRouter(msgspec.structs.replace(started, kv=stream.kv, kv_ms=stream.kv_ms))]

    def _kv_done(self, done: KvDone, now: float) -> list[Action]:
        if done.side == "send":
            self._kept.discard(engine_key(done.request_id, done.attempt))
            return []
        if done.side == "copy":
            return [ToRouter(copied_ahead(done))]
        actions: list[Action] = [ToRouter(trouble_of(done))] if done.trouble else []
        done = with_drafter(done, self._drafter_cold)
        stream = self._streams.get(engine_key(done.request_id, done.attempt))
        if stream is None:
            return actions + [ToRouter(started) for started in self._late_reports.take(done)]
        stream.kv = done.report
        in_place = now if stream.first_token is None else stream.first_token
        stream.kv_ms = (in_place - stream.arrived) * 1000
        stream.awaits_report = False
        return actions + self._report_started(stream)

    def _aborted(self, event: Abort, now: float) -> list[Action]:
        key = engine_key(event.request_id, event.attempt)
        stream = self._streams.get(key)
        if stream is None and key in self._kept:  # nobody will take what is kept of it
            return [AbortInEngine(event.request_id, event.attempt)]
        if stream is None:
            self.dropped += 1
            return []
        ended = self._end(stream, now, error=Code.CANCELLED, message=event.reason)
        return [AbortInEngine(event.request_id, event.attempt), *ended]

    def _moved(self, event: Move | CopyAhead | HandOver | GrantKv, now: float) -> list[Action]:
        if isinstance(event, GrantKv):
            return self._granted(event)
        if isinstance(event, HandOver):
            return [HandOverKept(event.ticket, event.kept_attempt)]
        key = engine_key(event.request_id, event.attempt)
        if isinstance(event, CopyAhead):
            return self._copy_ahead(key, event)
        return self._give_up(key, Code.MOVED, event.reason, now)

    def _copy_ahead(self, key: str, order: CopyAhead) -> list[Action]:
        stream, holder = self._streams.get(key), order.holder
        if stream is None:
            self.dropped += 1
            return []
        identity = identity_of(holder.name, holder.incarnation) if holder is not None else ""
        stream.held = msgspec.structs.replace(stream.held, holder=identity)
        return [CopyInEngine(order)]

    def _granted(self, order: GrantKv) -> list[Action]:
        stream = self._streams.get(engine_key(order.request_id, order.attempt))
        others = self._promised - (stream.kv_tokens if stream is not None else 0)
        kv = None if stream is None else budget.regrant(stream, order, self._limit, others)
        if kv is None:
            self.dropped += 1
        else:
            self._promised = others + kv
        return []

    def _refused(self, event: EngineRefused, now: float) -> list[Action]:
        stream = self._streams.get(engine_key(event.request_id, event.attempt))
        if stream is None:
            return []
        delta = Delta(
            stream.request_id,
            stream.attempt,
            stream.emitted,
            [],
            error=event.code,
            message=event.message,
        )
        ended = self._end(stream, now, error=event.code, message=event.message)
        return [ToGateway(*stream.gateway, stream.endpoint, [delta]), *ended]

    def _gateway_gone(self, event: GatewayGone, now: float) -> list[Action]:
        gateway = (event.gateway, event.incarnation)
        orphans = [stream for stream in self._streams.values() if stream.gateway == gateway]
        actions: list[Action] = []
        for stream in orphans:
            ended = self._end(stream, now, error=Code.CANCELLED, message=event.reason)
            actions += [AbortInEngine(stream.request_id, stream.attempt), *ended]
        return actions

    def _drain_over(self, event: DrainOver, now: float) -> list[Action]:
        actions: list[Action] = []
        for key, stream in list(self._streams.items()):
            actions += self._give_up(key, Code.DRAINING, event.reason, now)
            if event.at_once and stream.leaves is not None:
                actions += self._refused(stream.leaves, now)
        return actions

    def _give_up(self, key: str, code: Code, reason: str, now: float) -> list[Action]:
        """Ends a stream with an error after its last token, so that its gateway continues it
        elsewhere and loses none. The last is that of the step that runs; the engine keeps the KV.
        Without a token there is nothing to keep or to wait for."""
        stream = self._streams.get(key)
        if stream is None or stream.leaves is not None:
            self.dropped += 1
            return []
        attempt = stream.request_id, stream.attempt
        refused = EngineRefused(*attempt, code, reason)
        if not stream.emitted:
            return [AbortInEngine(*attempt), *self._refused(refused, now)]
        stream.leaves = refused
        return [LeaveEngine(*attempt)]

    def _left(self, key: str, now: float) -> list[Action]:
        stream = self._streams.get(key)
        if stream is None or stream.leaves is None:
            self.dropped += 1
            return []
        self._kept.add(key)
        return self._refused(stream.leaves, now)

    def _end(
        self,
        stream: Stream,
        now: float,
        finish_reason: str = "",
        error: str = "",
        message: str = "",
    ) -> list[Action]:
        del self._streams[stream.key]
        del self._current[stream.request_id]
        self._promised -= stream.kv_tokens
        ended = Ended(
            request_id=stream.request_id,
            attempt=stream.attempt,
            finish_reason=finish_reason,
            completion_tokens=stream.emitted,
            decode_ms=0.0 if stream.first_token is None else (now - stream.first_token) * 1000,
            error=error,
            message=message,
        )
        if stream.started is not None:
            self._late_reports.wait_for(stream.started)
        return [*self._report_started(stream), ToRouter(ended)]

    @staticmethod
    def _declined(stream: Stream, sentence: str) -> Action:
        """Refuses to the router alone, which tells the gateway to submit the request anew."""
        ended = Ended(
            request_id=stream.request_id,
            attempt=stream.attempt,
            error=Code.NO_CAPACITY,
            message=sentence,
        )
        return ToRouter(ended)

    @staticmethod
    def _reject_dispatch(stream: Stream, code: Code, sentence: str) -> list[Action]:
        """Ends a stream that never entered the table, to its gateway and to the router."""
        delta = Delta(stream.request_id, stream.attempt, 0, [], error=code, message=sentence)
        ended = Ended(
            request_id=stream.request_id, attempt=stream.attempt, error=code, message=sentence
        )
        return [ToGateway(*stream.gateway, stream.endpoint, [delta]), ToRouter(ended)]
