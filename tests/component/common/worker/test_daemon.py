"""The worker shell over real sockets, with an engine that the test plays."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
import structlog

from common.clock import SystemClock
from common.config import Config, from_mapping
from common.engine.port import Batch, Output
from common.errors import BatonError, Code
from common.kv.messages import KvStatus
from common.messages import (
    WIRE_VERSION,
    Abort,
    Beat,
    Become,
    CanaryAnswer,
    CopiedAhead,
    CopyAhead,
    DecodeStarted,
    Drain,
    Ended,
    HealthVerdict,
    HeldAttempt,
    Hello,
    Holding,
    Introduce,
    KvCheckpoint,
    KvCounts,
    KvHolder,
    Leaving,
    Load,
    OrderStore,
    PrefixDelta,
    Refused,
    RequestBody,
    Role,
    Sampling,
    ToRouter,
    Welcome,
)
from common.net.endpoints import control_address
from common.net.wire import encode, pack_ids
from common.process.lifecycle import Tasks
from common.worker.actions import ToGateway
from common.worker.daemon import Worker
from services.decode.core import DecodeCore
from services.decode.grant_limit import GrantLimit
from services.prefill.core import PrefillCore
from tests.rigs.engines import PlayedEngine
from tests.rigs.messages import decode, kv_done, kv_hold
from tests.rigs.peers import WAIT_SECONDS, Peer

BODY = encode(RequestBody(prompt_ids=pack_ids([1, 2, 3]), sampling=Sampling(max_tokens=4)))
WELCOME = Welcome(wire_version=WIRE_VERSION, name="r0", incarnation="1")
HOLD = kv_hold()
CHECKPOINT = KvCheckpoint(request_id="r", attempt=1, holder="d1", blocks=9, held=8)
STATUS = KvStatus(
    counts=KvCounts(handoffs_in=3), holds=(HOLD,), holds_total=9, checkpoints=(CHECKPOINT,)
)


class FakeGateways:
    """Takes everything, unless `full`."""

    def __init__(self) -> None:
        self.sent: list[ToGateway] = []
        self.full = False

    def send(self, action: ToGateway) -> bool:
        self.sent.append(action)
        return not self.full

    def close(self) -> None:
        """Nothing is open."""


class Bench:
    """A started worker and the router's end of its socket."""

    def __init__(self, config: Config) -> None:
        self.engine = PlayedEngine(Load(running=1), status=STATUS)
        self.gateways = FakeGateways()
        self.router = Peer(control_address(config), ToRouter)
        self.tasks = Tasks()
        self.core = DecodeCore("d0", "i", GrantLimit(2, 1024, 16))
        self.worker = Worker(
            config,
            role=Role.DECODE,
            name="d0",
            incarnation="i",
            engine=self.engine,
            cores={Role.DECODE: self.core, Role.PREFILL: PrefillCore("d0", "i", 2)},
            clock=SystemClock(),
            log=structlog.get_logger("test"),
        )
        self.worker.set_gateways(self.gateways)

    async def beat_with(self, true: Callable[[Beat], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not true(await self.router.next(Beat)):
                pass

    async def asked(self) -> str:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.engine.asked.get()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(from_mapping({"fleet": {"run_dir": str(tmp_path), "drain_ms": 3000}}))
    await made.worker.start(made.tasks)
    hello = await made.router.next(Hello)
    assert (hello.role, hello.name, hello.fingerprint) == (Role.DECODE, "d0", "f")
    yield made
    await made.worker.stop()
    await made.tasks.cancel_all()
    made.router.close()


@pytest.mark.parametrize(
    ("load", "sound"),
    [
        (Load(), True),
        (Load(running=1, step_age_ms=60_000), True),
        (Load(running=1, step_age_ms=60_001), False),
        (Load(waiting=1, step_age_ms=60_001), True),
    ],
)
async def test_the_watchdog_is_fed_only_while_the_engine_steps(
    bench: Bench, load: Load, sound: bool
) -> None:
    bench.engine.now = load
    assert bench.tasks.watchdog_and_reload.sound() is sound


async def test_a_request_goes_through_and_its_end_is_reported(bench: Bench) -> None:
    bench.router.send(decode(), BODY)
    assert await bench.asked() == "add r#1 [1, 2, 3]"
    bench.engine.batches.put_nowait(Batch(outputs=[Output("r#1", [7])]))
    await bench.router.next(DecodeStarted)
    bench.engine.batches.put_nowait(Batch(outputs=[Output("r#1", [8], "stop", 8)]))
    ended = await bench.router.next(Ended)
    assert (ended.finish_reason, ended.completion_tokens) == ("stop", 2)
    assert [d.token_ids for action in bench.gateways.sent for d in action.deltas] == [[7], [8]]


async def test_a_stream_is_copied_ahead_and_its_router_hears_of_it(bench: Bench) -> None:
    bench.router.send(decode(), BODY)
    holder = KvHolder(name="d1", incarnation="j", fingerprint="f", kv_address="h:2")
    bench.router.send(CopyAhead(request_id="r", attempt=1, holder=holder))
    bench.router.send(CopyAhead(request_id="r", attempt=1))
    assert await bench.asked() == "add r#1 [1, 2, 3]"
    assert await bench.asked() == "copy r#1 to d1"
    assert await bench.asked() == "copy r#1 to nobody"
    bench.engine.batches.put_nowait(Batch(kv_done=[kv_done(side="copy", held=4)]))
    copied = await bench.router.next(CopiedAhead)
    assert (copied.request_id, copied.attempt, copied.held) == ("r", 1, 4)


async def test_an_abort_never_overtakes_its_add(bench: Bench) -> None:
    bench.router.send(decode(), BODY)
    bench.router.send(Abort(request_id="r", attempt=1, reason="client gone"))
    assert await bench.asked() == "add r#1 [1, 2, 3]"
    assert await bench.asked() == "abort r#1"


async def test_what_the_engine_refuses_is_told(bench: Bench) -> None:
    bench.engine.refuse = "67 tokens are too long"
    bench.router.send(decode(), BODY)
    ended = await bench.router.next(Ended)
    assert (ended.error, ended.message) == ("context_length_exceeded", "67 tokens are too long")
    assert bench.gateways.sent[0].deltas[0].error == "context_length_exceeded"


async def test_bad_frames_are_dropped_and_counted_and_good_ones_still_work(bench: Bench) -> None:
    for frames in ([b"\xff\x00"], [encode(decode())], [encode(decode()), b"junk"], [b""]):
        bench.router.send_frames(*frames)
    bench.router.send(decode(), BODY)
    assert await bench.asked() == "add r#1 [1, 2, 3]"
    assert bench.core.dropped == 4


async def test_an_introduction_opens_the_kv_connection(bench: Bench) -> None:
    bench.router.send(Introduce(kv_address="10.0.0.1:7"))
    assert await bench.asked() == "connect 10.0.0.1:7"


async def test_a_prefill_worker_that_is_not_reached_is_tried_again_and_told(bench: Bench) -> None:
    bench.router.send(WELCOME)
    bench.router.send(Introduce(kv_address="10.0.0.1:7", prefill="p0"))
    assert [await bench.asked() for _ in range(2)] == ["connect 10.0.0.1:7"] * 2
    await bench.beat_with(lambda beat: [peer.prefill for peer in beat.kv_unreachable] == ["p0"])
    bench.engine.status = msgspec.structs.replace(STATUS, linked=("10.0.0.1:7",))
    await bench.beat_with(lambda beat: beat.kv_unreachable == ())


async def test_a_gateway_that_takes_no_more_loses_its_streams(bench: Bench) -> None:
    bench.router.send(decode("a"), BODY)
    bench.router.send(decode("b"), BODY)
    await bench.asked()
    await bench.asked()
    bench.gateways.full = True
    bench.engine.batches.put_nowait(Batch(outputs=[Output("a#1", [7])]))
    assert {await bench.asked(), await bench.asked()} == {"abort a#1", "abort b#1"}
    assert bench.core.active == 0


async def test_an_engine_that_dies_ends_the_process_with_its_name(bench: Bench) -> None:
    bench.engine.batches.put_nowait(BatonError(Code.ENGINE_FAILED, "the engine died"))
    async with asyncio.timeout(WAIT_SECONDS):
        name, error = await bench.tasks.failed
    assert (name, str(error)) == ("engine-events", "the engine died")


async def test_without_an_engine_nothing_is_waited_for(bench: Bench) -> None:
    """Its streams go on elsewhere once the connections close; a drain would hold them."""
    bench.router.send(decode(), BODY)
    await bench.asked()
    bench.engine.batches.put_nowait(BatonError(Code.ENGINE_FAILED, "the engine died"))
    await bench.tasks.failed
    assert bench.core.active == 1
    async with asyncio.timeout(2.5):  # a drain takes 3 s
        await bench.worker.stop()
    assert not [message for message in bench.router.drained() if isinstance(message, Leaving)]


async def test_an_engine_found_dead_by_asking_ends_the_process(bench: Bench) -> None:
    bench.engine.death.put_nowait(BatonError(Code.ENGINE_FAILED, "the engine died"))
    async with asyncio.timeout(WAIT_SECONDS):
        name, error = await bench.tasks.failed
    assert (name, str(error)) == ("engine-probe", "the engine died")


async def test_an_engine_that_hangs_ends_the_process_with_what_was_seen(bench: Bench) -> None:
    bench.engine.now = Load(running=1, step_age_ms=60_001)
    async with asyncio.timeout(WAIT_SECONDS):
        name, error = await bench.tasks.failed
    assert name == "engine-watch"
    assert "made no step for 60.0 s" in str(error)


async def test_a_router_that_refuses_ends_the_process_with_its_reason(bench: Bench) -> None:
    bench.router.send(Refused(code="wire_mismatch", message="install the same baton-serve"))
    async with asyncio.timeout(WAIT_SECONDS):
        name, error = await bench.tasks.failed
    assert name == "router-refusal"
    assert "install the same baton-serve" in str(error)


async def test_a_drain_says_so_and_waits_for_what_runs(bench: Bench) -> None:
    bench.router.send(decode(), BODY)
    await bench.asked()
    stopping = asyncio.gather(bench.worker.stop())
    await bench.router.next(Leaving)
    assert bench.core.active == 1
    assert not stopping.done()
    bench.engine.batches.put_nowait(Batch(outputs=[Output("r#1", [8], "length")]))
    await bench.router.next(Ended)
    await stopping
    assert await bench.asked() == "close"


async def test_an_operators_drain_is_remembered_and_said_in_each_beat(bench: Bench) -> None:
    bench.router.send(WELCOME)
    for on in (True, False):
        bench.router.send(Drain(on=on))
        await bench.beat_with(lambda beat, on=on: beat.drained is on)  # type: ignore[misc]


async def test_an_operators_order_for_the_store_goes_to_the_engine(bench: Bench) -> None:
    bench.router.send(OrderStore(action="pin", names=b"12345678"))
    assert await bench.asked() == f"pin {b'12345678'.hex()}"


async def test_a_role_waits_for_the_last_stream_and_is_told_after_its_end(bench: Bench) -> None:
    bench.router.send(WELCOME)
    bench.router.send(decode(), BODY)
    await bench.asked()
    bench.router.send(Become(role=Role.PREFILL, epoch=1))
    await bench.beat_with(lambda beat: beat.becomes is Role.PREFILL)
    bench.engine.batches.put_nowait(Batch(outputs=[Output("r#1", [8], "stop", 8)]))
    await bench.router.next(Ended)
    hello = await bench.router.next(Hello)
    assert (hello.role, hello.configured_role, hello.role_epoch) == (Role.PREFILL, Role.DECODE, 1)
    assert hello.incarnation == "i"
    bench.router.send(WELCOME)
    assert (await bench.router.next(Holding)).attempts == ()
    await bench.beat_with(lambda beat: beat.becomes is None)


async def test_a_worker_that_stops_takes_no_other_role(bench: Bench) -> None:
    bench.router.send(WELCOME)
    bench.router.send(decode(), BODY)
    await bench.asked()
    bench.router.send(Become(role=Role.PREFILL, epoch=1))
    await bench.beat_with(lambda beat: beat.becomes is Role.PREFILL)
    async with asyncio.TaskGroup() as group:
        group.create_task(bench.worker.stop())
        await bench.router.next(Leaving)
        bench.engine.batches.put_nowait(Batch(outputs=[Output("r#1", [8], "stop", 8)]))
    heard = bench.router.drained()
    assert not [message for message in heard if isinstance(message, Hello)]


async def test_it_says_what_it_holds_then_beats_once_it_is_welcome(bench: Bench) -> None:
    bench.router.send(decode(), BODY)
    await bench.asked()
    assert bench.router.inbox.empty(), "no beat before the welcome"
    bench.router.send(WELCOME)
    holding = bench.router.decoded(await bench.router.hear())
    held = HeldAttempt("r", 1, 3, 4, decode="d0|i", gateway="g0|k")
    assert holding == Holding(attempts=(held,), complete=True)
    beat = await bench.router.next(Beat)
    assert beat.kv_counts == STATUS.counts
    assert (beat.kv_holds, beat.kv_holds_total) == ((HOLD,), 9)
    assert beat.kv_checkpoints == (CHECKPOINT,)
    assert beat.load == Load(running=1)


async def test_prefixes_are_told_whole_after_a_welcome_and_then_as_they_change(
    bench: Bench,
) -> None:
    bench.engine.news = [PrefixDelta(stored=bytes(8))]
    bench.router.send(WELCOME)
    told = [await bench.router.next(PrefixDelta) for _ in range(2)]
    if told[0] == PrefixDelta(stored=bytes(8)):  # a beat came between
        assert told[1] == PrefixDelta(cleared=True)
    else:
        assert told == [PrefixDelta(cleared=True), PrefixDelta(stored=bytes(8))]
    bench.engine.news = [PrefixDelta(removed=bytes(8))]
    assert await bench.router.next(PrefixDelta) == PrefixDelta(removed=bytes(8))


async def post(tmp_path: Path, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """As the health daemon of this host does."""
    connector = aiohttp.UnixConnector(path=str(tmp_path / "decode.d0.metrics.sock"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://worker{path}", data=body) as answer,
    ):
        return answer.status, await answer.read()


async def test_a_canary_flies_beside_the_core_and_is_no_load(bench: Bench, tmp_path: Path) -> None:
    bench.router.send(WELCOME)
    bench.engine.now = Load()
    flight = asyncio.gather(post(tmp_path, "/canary?ms=5000"))
    assert (await bench.asked()).startswith("add ~canary#1 [40, 41, 42, 43, ")
    bench.engine.now = Load(running=1, kv_used=0.125)
    bench.router.drained()
    beat = await bench.router.next(Beat)
    assert beat.load == Load()
    assert bench.core.active == 0
    bench.engine.batches.put_nowait(Batch(outputs=[Output("~canary#1", [7, 8], "length")]))
    ((status, body),) = await flight
    answer = msgspec.json.decode(body, type=CanaryAnswer)
    assert (status, answer.outcome, answer.tokens) == (200, "answered", (7, 8))
    assert bench.core.dropped == 0
    assert bench.gateways.sent == []


async def test_a_canary_that_the_engine_refuses_is_no_request_of_the_core(
    bench: Bench, tmp_path: Path
) -> None:
    bench.engine.now, bench.engine.refuse = Load(), "no"
    _, body = await post(tmp_path, "/canary?ms=5000")
    answer = msgspec.json.decode(body, type=CanaryAnswer)
    assert (answer.outcome, answer.sentence) == ("failed", "the engine refused it: no")
    assert bench.core.dropped == 0


async def test_a_drained_worker_flies_no_canary(bench: Bench, tmp_path: Path) -> None:
    bench.router.send(WELCOME)
    bench.router.send(Drain(on=True))
    await bench.beat_with(lambda beat: beat.drained)
    bench.engine.now = Load()
    _, body = await post(tmp_path, "/canary?ms=5000")
    assert msgspec.json.decode(body, type=CanaryAnswer).sentence == "an operator drains it"


async def test_what_its_host_thinks_of_it_is_said_in_each_beat(
    bench: Bench, tmp_path: Path
) -> None:
    bench.router.send(WELCOME)
    told = b'{"opinion": {"reason": "its canary died", "down": true}, "for_ms": 60000}'
    assert await post(tmp_path, "/opinion", told) == (204, b"")
    verdict = HealthVerdict(reason="its canary died", down=True)
    await bench.beat_with(lambda beat: beat.health_verdict == verdict)
    await post(tmp_path, "/opinion", b'{"opinion": null, "for_ms": 60000}')
    await bench.beat_with(lambda beat: beat.health_verdict is None)
