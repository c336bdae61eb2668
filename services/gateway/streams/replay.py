"""Resumable streams: numbered events, kept for a client that comes back.

Sans-IO. A stream that was requested with `x-resumable` writes into a `StreamReplay`, which passes
every event on to the client that is connected and keeps it for one that comes back. A `ReplayTable`
holds all of them: a stream without a client is kept for `keep_seconds`, whether it runs or has
ended, and then dropped. The table remembers for a while which ids it dropped, so that a late client
gets "gone" and not "not found". Every bound has its answer: with too many streams a new one is
refused, a key has a share of them, and a stream with too many bytes drops its oldest events. It
drops none that its client has yet to take, be it slow or gone: when those are too many, the stream
is `full`, takes nothing more and must be ended.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from common.errors import BatonError, Code
from services.gateway.streams.connection import END, Connection

GONE_MAX = 1_024
EVENT_ID_BYTES_MAX = 64


class Client(Connection, Protocol):
    @property
    def unsent(self) -> int:
        """Bytes that the client's side has not taken."""
        ...

    def cut(self, reason: str) -> None:
        """Ends it so that whoever reads it sees an error."""
        ...


class StreamReplay:
    """One stream: a `Connection` for its answer, with at most one client behind."""

    def __init__(self, request_id: str, key_id: str, bytes_max: int) -> None:
        self.request_id = request_id
        #: Id of the key that asked for it; empty for an anonymous caller.
        self.key_id = key_id
        #: When its last client left.
        self.quiet_since = 0.0
        #: Nothing more will be written.
        self.ended = False
        #: It was written to beyond its bound while nobody took its events.
        self.full = False
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: deque[bytes] = deque()
        self._last = 0
        #: Number of the last event that a client is known to have taken.
        self._taken = 0
        #: Bytes of the events after it.
        self._untaken_bytes = 0
        self._refusal: BatonError | None = None
        self._client: Client | None = None

    @property
    def has_client(self) -> bool:
        return self._client is not None

    @property
    def refused(self) -> bool:
        return self._refusal is not None

    @property
    def has_events(self) -> bool:
        """Whether there was any event, kept or dropped."""
        return self._last > 0

    def write(self, payload: bytes) -> None:
        """One or several whole events. All are kept, even beyond the bound; what is too much is
        dropped by the next call."""
        self._drop_taken()
        self.full = self.full or self._bytes > self._bytes_max
        if self.full:
            return
        numbered = []
        for event in payload.split(END)[:-1]:
            self._last += 1
            numbered.append(b"id: %d\n%b%b" % (self._last, event, END))
        size = sum(map(len, numbered))
        self._bytes += size
        self._untaken_bytes += size
        self._events += numbered
        if self._client is not None and numbered:
            self._client.write(b"".join(numbered))

    def _drop_taken(self) -> None:
        """Drops the oldest events over the bound that the client has taken."""
        dropped = self._last - len(self._events)
        unsent = self._client.unsent if self._client is not None else self._untaken_bytes
        while self._taken < self._last:
            size = len(self._events[self._taken - dropped])
            if self._untaken_bytes - size < unsent:
                break
            self._taken += 1
            self._untaken_bytes -= size
        while self._bytes > self._bytes_max and dropped < self._taken:
            self._bytes -= len(self._events.popleft())
            dropped += 1

    def end_full(self, event: bytes) -> None:
        """Ends a full stream; `event`, a whole one, is the last and says why."""
        self.full = False
        self._bytes_max = max(self._bytes_max, self._bytes + len(event) + EVENT_ID_BYTES_MAX)
        self.write(event)
        self.full = True
        self.end()

    def refuse(self, error: BatonError) -> None:
        self.ended, self._refusal = True, error
        if self._client is not None:
            self._client.refuse(error)

    def end(self) -> None:
        self.ended = True
        if self._client is not None:
            self._client.end()

    def attach(self, client: Client, after: int) -> None:
        """Sends `client` all events after that number, and from now on every new one. Another
        client is cut. Raises BatonError(STREAM_CONFLICT | STREAM_GONE)."""
        if after > self._last:
            sentence = f"the stream has {self._last} events, and Last-Event-ID says {after}"
            raise BatonError(Code.STREAM_CONFLICT, sentence, param="last-event-id")
        dropped = self._last - len(self._events)
        if after < dropped:
            sentence = f"the stream's events up to {dropped} are no longer kept"
            raise BatonError(Code.STREAM_GONE, sentence)
        if self._client is not None:
            self._client.cut("its stream was taken up by another connection")
        self._client = client
        missed = b"".join(list(self._events)[after - dropped :])
        self._taken, self._untaken_bytes = after, len(missed)
        if missed:
            client.write(missed)
        if self._refusal is not None:
            client.refuse(self._refusal)
        elif self.ended:
            client.end()

    def detach(self, client: Client, now: float) -> None:
        if self._client is client:
            self._client, self.quiet_since = None, now


class ReplayTable:
    """At most `streams_max` streams of at most `bytes_max` bytes each, of which one key has at most
    `per_key_max`. Callers without a key share no bound of their own."""

    def __init__(
        self, streams_max: int, bytes_max: int, keep_seconds: float, per_key_max: int
    ) -> None:
        self._streams_max = streams_max
        self._per_key_max = per_key_max
        self._bytes_max = bytes_max
        self._keep_seconds = keep_seconds
        self._replays: dict[str, StreamReplay] = {}
        #: The key of each stream that was dropped, by request id; the oldest is removed first.
        self._gone: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._replays)

    def open(self, request_id: str, key_id: str) -> StreamReplay:
        """Raises BatonError(QUEUE_FULL) when all streams, or all of this key, still run or have a
        client."""
        own = sum(replay.key_id == key_id for replay in self._replays.values())
        if key_id and own >= self._per_key_max and not self._drop_ended(key_id):
            sentence = (
                f"this key already has {own} resumable streams at this gateway, its limit; "
                "end some, or ask again without x-resumable"
            )
            raise BatonError(Code.QUEUE_FULL, sentence, retry_after_ms=1_000)
        if len(self._replays) >= self._streams_max and not self._drop_ended():
            sentence = (
                f"this gateway already keeps {self._streams_max} resumable streams, its limit; "
                "ask again without x-resumable, or later"
            )
            raise BatonError(Code.QUEUE_FULL, sentence, retry_after_ms=1_000)
        replay = self._replays[request_id] = StreamReplay(request_id, key_id, self._bytes_max)
        return replay

    def find(self, request_id: str, key_id: str) -> StreamReplay:
        """Raises BatonError(NOT_FOUND | STREAM_GONE). Another key's stream is not found."""
        replay = self._replays.get(request_id)
        if replay is not None and replay.key_id == key_id:
            return replay
        if self._gone.get(request_id) == key_id:
            seconds = self._keep_seconds
            sentence = f"the stream was kept for {seconds:g} s without a client and is gone"
            raise BatonError(Code.STREAM_GONE, sentence)
        sentence = "no stream with this id was requested with x-resumable by this key"
        raise BatonError(Code.NOT_FOUND, sentence)

    def release(self, replay: StreamReplay, client: Client, now: float) -> None:
        """The client left, or has everything. Harmless when another one took its place."""
        replay.detach(client, now)
        if replay.refused and not replay.has_client:
            self._replays.pop(replay.request_id, None)

    def expire(self, now: float) -> list[str]:
        """Drops streams that no client came back to. Returns the ids of those that still run and
        must be ended."""
        due = [
            replay
            for replay in self._replays.values()
            if not replay.has_client and now >= replay.quiet_since + self._keep_seconds
        ]
        for replay in due:
            self._drop(replay)
        return [replay.request_id for replay in due if not replay.ended]

    def full(self) -> list[StreamReplay]:
        """The streams that must be ended because nobody takes their events and their bound is
        reached."""
        return [replay for replay in self._replays.values() if replay.full and not replay.ended]

    def _drop_ended(self, key_id: str | None = None) -> bool:
        """Drops the stream (of this key) that ended and has been without a client for longest;
        False for none."""
        replays = [r for r in self._replays.values() if key_id is None or r.key_id == key_id]
        ended = [replay for replay in replays if replay.ended and not replay.has_client]
        if not ended:
            return False
        self._drop(min(ended, key=lambda replay: replay.quiet_since))
        return True

    def _drop(self, replay: StreamReplay) -> None:
        del self._replays[replay.request_id]
        self._gone[replay.request_id] = replay.key_id
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
