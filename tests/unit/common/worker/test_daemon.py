"""What a worker says of itself to a router: when it greets, when it is welcomed, in each beat."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from common.clock import ManualClock
from common.config import Config, FleetConfig
from common.kv.messages import KvStatus
from common.messages import (
    HOLDING_MAX,
    Beat,
    Drain,
    HeldAttempt,
    Hello,
    Holding,
    KvCounts,
    Leaving,
    Load,
    Message,
    PrefixDelta,
    Role,
    Took,
    Welcome,
)
from common.net.wire import encode
from common.worker.daemon import Worker
from tests.rigs.engines import PlayedEngine
from tests.rigs.messages import decode

WELCOME = Welcome(wire_version=1, name="r0", incarnation="1")


class Core:
    """Holds as many attempts as the test says."""

    dropped = 0

    def __init__(self) -> None:
        self.held: list[HeldAttempt] = []

    @property
    def active(self) -> int:
        return len(self.held)

    def held_attempts(self) -> list[HeldAttempt]:
        return list(self.held)

    def held_attempt(self, request_id: str, _attempt: int) -> HeldAttempt | None:
        return next((held for held in self.held if held.request_id == request_id), None)

    def hold(self, count: int) -> None:
        self.held = [HeldAttempt(f"r{number}", 1, 3, 8, "d0|i") for number in range(count)]


class Link:
    """A router's."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.welcomes = 0

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def welcomed(self) -> None:
        self.welcomes += 1


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
async def worker(core: Core, tmp_path: Any) -> Worker:
    return Worker(
        Config(fleet=FleetConfig(run_dir=str(tmp_path))),
        role=Role.DECODE,
        name="d0",
        incarnation="i",
        engine=PlayedEngine(Load(running=1), status=KvStatus(counts=KvCounts(stale=3))),
        cores={Role.DECODE: core},  # type: ignore[dict-item]
        clock=ManualClock(),
        log=structlog.get_logger("test"),
    )


def welcomed(worker: Worker) -> list[Message]:
    link = Link()
    worker._on_link(link, WELCOME)  # type: ignore[arg-type]
    assert link.welcomes == 1
    return link.sent


async def test_a_worker_that_stops_says_so_to_a_router_that_it_meets_then(worker: Worker) -> None:
    (hello,) = worker._hello()
    assert isinstance(hello, Hello)
    assert (hello.role, hello.name, hello.incarnation) == (Role.DECODE, "d0", "i")
    await worker.stop()
    assert worker._hello() == [hello, Leaving(reason="stopping")]


async def test_a_worker_that_stops_says_so_to_a_router_that_welcomes_it_again(
    worker: Worker,
) -> None:
    """A router to which it was out of reach would otherwise take its next beat for readiness."""
    assert Leaving(reason="stopping") not in welcomed(worker)
    await worker.stop()
    kinds = [type(message) for message in welcomed(worker)]
    assert kinds == [Holding, Beat, Leaving]


@pytest.mark.parametrize(
    ("held", "said", "complete"),
    [
        (0, 0, True),
        (3, 3, True),
        (HOLDING_MAX, HOLDING_MAX, True),
        (HOLDING_MAX + 1, HOLDING_MAX, False),
    ],
)
async def test_a_report_of_what_it_holds_says_whether_it_is_whole(
    worker: Worker, core: Core, held: int, said: int, complete: bool
) -> None:
    core.hold(held)
    report = next(message for message in welcomed(worker) if isinstance(message, Holding))
    assert (len(report.attempts), report.complete) == (said, complete)
    assert [attempt.request_id for attempt in report.attempts[:3]] == ["r0", "r1", "r2"][:said]


async def test_a_router_that_welcomes_hears_what_is_held_before_any_beat(worker: Worker) -> None:
    kinds = [type(message) for message in welcomed(worker)]
    assert kinds[:2] == [Holding, Beat]


async def test_a_beat_has_the_load_and_the_counts_of_the_kv_plane(worker: Worker) -> None:
    beat = worker._make_beat()
    assert beat.load is not None
    assert beat.kv_counts is not None
    assert (beat.load.running, beat.kv_counts.stale, beat.drained) == (1, 3, False)


async def test_a_beat_says_that_an_operator_drains_it_for_as_long_as_he_does(
    worker: Worker,
) -> None:
    link: Any = Link()
    for drains in (True, False):
        worker._on_control(link, [encode(Drain(on=drains))])
        assert worker._make_beat().drained is drains


async def test_an_attempt_is_announced_to_every_router_but_the_one_that_gave_it(
    worker: Worker, core: Core
) -> None:
    said: list[tuple[Message, object]] = []

    class Links:
        def broadcast(self, message: Message, *, except_for: object = None) -> None:
            said.append((message, except_for))

    worker._routers = Links()  # type: ignore[assignment]
    link: Any = Link()
    worker._announce_attempt(link, decode("r0"))
    assert said == [], "it was refused"
    core.hold(1)
    worker._announce_attempt(link, decode("r0"))
    assert said == [(Took(held=core.held[0]), link)]


async def test_the_whole_prefix_cache_is_told_to_every_router_when_one_welcomes(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Message] = []
    monkeypatch.setattr(worker, "_to_router", told.append)
    welcomed(worker)
    assert told == [PrefixDelta(cleared=True)]
