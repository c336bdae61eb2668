"""Simulated gateways and workers for `router_world`: they follow the message contract, no more."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from common.messages import (
    WIRE_VERSION,
    Abort,
    Beat,
    Cancel,
    Capacity,
    Decode,
    DecodeStarted,
    Ended,
    Failed,
    Hello,
    KvReport,
    Load,
    Message,
    Placed,
    Prefill,
    PrefillEnded,
    Refused,
    Role,
    Submit,
)
from services.router.records import Key

if TYPE_CHECKING:
    from tests.simulation.router_world import World

BLOCK = 16
BLOCKS = 64
SEQS = 6
BEAT_SECONDS = 0.5
LEASE_SECONDS = 30.0
NOTICE_SECONDS = 0.3
BACK_SECONDS = 1.0
GRANT = 0.95
ABORT_SECONDS = 0.1


class SimPeer:
    """One process. `epoch` counts its control connections; what is under way dies with one."""

    role: Role

    def __init__(self, world: World, name: str, incarnation: int = 1) -> None:
        self.world = world
        self.name = name
        self.incarnation = incarnation
        self.identity = f"{name}|{incarnation}"
        self.alive = True
        self.connected = False
        self.epoch = 0
        self.resumes_at = 0.0
        self.back_at = 0.0
        self.inbox: deque[Message] = deque()

    @property
    def undisturbed(self) -> bool:
        """Never hung, never out of reach, so far."""
        return not self.epoch and not self.resumes_at

    def start(self) -> None:
        self.reconnect()
        self._beat()

    def successor(self) -> SimPeer:
        return type(self)(self.world, self.name, self.incarnation + 1)

    def die(self) -> None:
        self.alive = self.connected = False

    def disconnect(self) -> None:
        """What was received and not yet read is lost too, as a DEALER loses it."""
        self.connected = False
        self.epoch += 1
        self.inbox.clear()

    def reconnect(self) -> None:
        wait = self.resumes_at - self.world.now
        if wait > 0:
            self.world.after(wait, self.reconnect)
        elif self.alive and not self.connected:
            self.connected, self.back_at = True, self.world.now
            self.on_connected()

    def on_connected(self) -> None:
        self.say(self.hello())

    def hang(self, seconds: float) -> None:
        self.resumes_at = max(self.resumes_at, self.world.now + seconds)

    def receive(self, message: Message) -> None:
        self.inbox.append(message)
        self.read()

    def read(self) -> None:
        wait = self.resumes_at - self.world.now
        if wait > 0 and self.inbox:
            self.world.after(wait, self.read)
            return
        while self.alive and self.inbox:
            self.handle(self.inbox.popleft())

    def say(self, message: Message, body: bytes | None = None) -> None:
        self.world.to_core(self, message, body)

    def _beat(self) -> None:
        if not self.alive:
            return
        if self.world.now >= self.resumes_at:
            self.say(Beat(load=self.load()))
        self.world.after(BEAT_SECONDS, self._beat)

    def hello(self) -> Hello:
        return Hello(
            wire_version=WIRE_VERSION,
            role=self.role,
            name=self.name,
            incarnation=str(self.incarnation),
            fingerprint="f",
            kv_address="h:1",
            stream_endpoint="ipc://x",
            capacity=Capacity(
                block_tokens=BLOCK,
                kv_blocks=BLOCKS,
                kv_block_bytes=64,
                max_model_len=900,
                max_num_seqs=SEQS,
            ),
        )

    def load(self) -> Load | None:
        return None

    def handle(self, message: Message) -> None:
        raise NotImplementedError

    def judge(self) -> None:
        raise NotImplementedError


class SimPrefill(SimPeer):
    """Computes one prompt after the other; keeps its KV until D took it, or an abort."""

    role = Role.PREFILL

    def __init__(self, world: World, name: str, incarnation: int = 1) -> None:
        super().__init__(world, name, incarnation)
        self.kept: dict[Key, bool] = {}
        self.free_at = 0.0

    def load(self) -> Load:
        return Load(running=len(self.kept), kv_used=0.0)

    def handle(self, message: Message) -> None:
        if isinstance(message, Abort):
            self.kept.pop((message.request_id, message.attempt), None)
        elif isinstance(message, Prefill):
            key = (message.request_id, message.attempt)
            self.kept[key] = False
            start = max(self.world.now, self.free_at)
            self.free_at = start + self.world.random.uniform(0.002, 0.08)
            self.world.after(self.free_at - self.world.now, lambda: self.computed(key))
            self.world.after(LEASE_SECONDS, lambda: self.expire(key))

    def computed(self, key: Key) -> None:
        if self.alive and key in self.kept:
            self.kept[key] = True
            self.say(PrefillEnded(request_id=key[0], attempt=key[1], elapsed_ms=1.0))

    def expire(self, key: Key) -> None:
        if self.alive and self.kept.pop(key, None) is not None:
            self.world.violate(f"{self.name} kept the KV of {key} until its lease ran out")

    def judge(self) -> None:
        if self.kept:
            self.world.violate(f"{self.name} still keeps {list(self.kept)}")


class SimDecode(SimPeer):
    """Holds the KV of each stream from Decode to Ended; the worst case, all of it at once. An abort
    frees it only after the engine's current step."""

    role = Role.DECODE

    def __init__(self, world: World, name: str, incarnation: int = 1) -> None:
        super().__init__(world, name, incarnation)
        self.streams: dict[Key, int] = {}

    def load(self) -> Load:
        used = sum(self.streams.values()) / (BLOCKS * BLOCK)
        return Load(running=len(self.streams), kv_used=used)

    def handle(self, message: Message) -> None:
        if isinstance(message, Abort):
            stopped = (message.request_id, message.attempt)
            self.world.after(ABORT_SECONDS, lambda: self.end(stopped, "cancelled"))
        elif isinstance(message, Decode):
            key = (message.request_id, message.attempt)
            gateway = self.world.by_name[Role.GATEWAY, message.gateway]
            assert isinstance(gateway, SimGateway)
            ask = gateway.sizes.get(message.request_id, (1, 1))
            self.streams[key] = -(-sum(ask) // BLOCK) * BLOCK
            share = GRANT if self.undisturbed else 1.0
            if sum(self.streams.values()) > int(BLOCKS * share) * BLOCK:
                self.world.violate(f"{self.name} was given more KV than may be granted")
            patience = self.world.now + 1.0
            self.world.after(0.005, lambda: self.await_kv(key, message, patience))

    def await_kv(self, key: Key, message: Decode, patience: float) -> None:
        """Polls P as the data plane would; computes by itself when P does not deliver."""
        if not self.alive or key not in self.streams:
            return
        ticket, kv = message.ticket, None
        if ticket is not None:
            prefill = self.world.peers[f"{ticket.prefill}|{ticket.prefill_incarnation}"]
            assert isinstance(prefill, SimPrefill)
            if prefill.alive and not prefill.kept.get(key) and self.world.now < patience:
                self.world.after(0.02, lambda: self.await_kv(key, message, patience))
                return
            if prefill.alive and prefill.kept.get(key):
                del prefill.kept[key]
                kv = KvReport(blocks=1, messages=1, payload_bytes=64, wire_bytes=80)
        self.say(DecodeStarted(request_id=key[0], attempt=key[1], elapsed_ms=1.0, kv=kv))
        gateway = self.world.peers[f"{message.gateway}|{message.gateway_incarnation}"]
        self.world.after(self.world.random.uniform(0.02, 1.5), lambda: self.finish(key, gateway))
        self._watch(key, gateway)

    def _watch(self, key: Key, gateway: SimPeer) -> None:
        """A closed stream connection is noticed."""
        if self.alive and key in self.streams:
            if not gateway.alive:
                self.end(key, "cancelled")
            else:
                self.world.after(NOTICE_SECONDS, lambda: self._watch(key, gateway))

    def finish(self, key: Key, gateway: SimPeer) -> None:
        wait = self.resumes_at - self.world.now
        if wait > 0:
            self.world.after(wait, lambda: self.finish(key, gateway))
            return
        if not self.alive or key not in self.streams:
            return
        if self.connected and self.world.now - max(self.resumes_at, self.back_at) > BACK_SECONDS:
            self.world.judge_finish(key)
        assert isinstance(gateway, SimGateway)
        self.world.link(self.identity, gateway.identity, lambda: gateway.tokens(key))
        self.end(key, "")

    def end(self, key: Key, error: str) -> None:
        if self.alive and self.streams.pop(key, None) is not None:
            self.say(Ended(request_id=key[0], attempt=key[1], error=error))

    def judge(self) -> None:
        if self.streams:
            self.world.violate(f"{self.name} still works on {list(self.streams)}")


class SimGateway(SimPeer):
    """Submits, sometimes twice, sometimes cancels; every request must have exactly one end."""

    role = Role.GATEWAY

    def __init__(self, world: World, name: str, incarnation: int = 1) -> None:
        super().__init__(world, name, incarnation)
        self.sizes: dict[str, tuple[int, int]] = {}
        self.attempt: dict[str, int] = {}
        self.ends: dict[str, list[str]] = {}
        self.unplaced: dict[str, None] = {}

    def start(self) -> None:
        super().start()
        self.world.after(0.01, self._arrival)

    def _arrival(self) -> None:
        if not self.alive or self.world.now >= self.world.faults_end:
            return
        random = self.world.random
        request_id = f"{self.name}.{self.incarnation}.{len(self.sizes)}"
        self.sizes[request_id] = (random.randint(1, 400), random.randint(1, 300))
        self.attempt[request_id] = 1
        self.ends[request_id] = []
        self.submit(request_id)
        if random.random() < 0.1:
            self.world.after(random.choice([0.0, 2.0]), lambda: self.repeat(request_id))
        if random.random() < 0.15:
            self.world.after(random.uniform(0, 1.0), lambda: self.cancel(request_id))
        self.world.after(random.expovariate(1 / 0.08), self._arrival)

    def submit(self, request_id: str) -> None:
        self.unplaced[request_id] = None
        prompt, out = self.sizes[request_id]
        deadline = self.world.random.choice([0.0, 0.0, 800.0])
        message = Submit(
            request_id=request_id,
            attempt=self.attempt[request_id],
            prompt_tokens=prompt,
            max_tokens=out,
            deadline_ms=deadline,
        )
        self.say(message, bytes(prompt))

    def repeat(self, request_id: str) -> None:
        """The same Submit twice on the wire, perhaps late."""
        if self.alive:
            prompt, out = self.sizes[request_id]
            message = Submit(request_id=request_id, attempt=1, prompt_tokens=prompt, max_tokens=out)
            self.say(message, bytes(prompt))

    def cancel(self, request_id: str) -> None:
        if self.alive and not self.ends[request_id]:
            self.close(request_id, self.attempt[request_id], "cancelled")
            attempt = self.attempt[request_id]
            self.say(Cancel(request_id=request_id, attempt=attempt, reason="client left"))

    def on_connected(self) -> None:
        super().on_connected()
        for request_id in list(self.unplaced):
            self.submit(request_id)

    def handle(self, message: Message) -> None:
        match message:
            case Placed():
                self.unplaced.pop(message.request_id, None)
            case Refused() if message.request_id:
                self.close(message.request_id, message.attempt, message.code)
            case Failed():
                self.failed(message)
            case _:
                pass

    def failed(self, message: Failed) -> None:
        """Half of the time tried again, as the journal will do it."""
        request_id = message.request_id
        if self.ends[request_id] or message.attempt != self.attempt[request_id]:
            return
        if self.world.random.random() < 0.5:
            self.attempt[request_id] += 1
            self.submit(request_id)
        else:
            self.close(request_id, message.attempt, message.code)

    def tokens(self, key: Key) -> None:
        if self.alive and key[0] in self.ends:
            self.close(key[0], key[1], "finished")

    def close(self, request_id: str, attempt: int, how: str) -> None:
        if attempt != self.attempt[request_id]:
            return
        ends = self.ends[request_id]
        ends.append(how)
        self.unplaced.pop(request_id, None)
        if ends.count("finished") > 1:
            self.world.violate(f"{request_id} was answered twice: {ends}")

    def judge(self) -> None:
        open_ = [request_id for request_id, ends in self.ends.items() if not ends]
        if open_:
            self.world.violate(f"{self.name} never heard the end of {open_}")
