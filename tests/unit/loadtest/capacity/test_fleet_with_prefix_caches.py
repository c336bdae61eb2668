"""A modelled fleet whose workers cache prefixes, against sums that can be done by hand."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import msgspec
import pytest

from common import prefix
from common.telemetry.timeline import CachedTokens
from loadtest.capacity.__main__ import main
from loadtest.capacity.engine import Engine, Job
from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.prompt_parts import Part, block_hashes
from loadtest.capacity.report import Report
from loadtest.capacity.virtual_time import VirtualTime
from loadtest.capacity.workload import Arrival
from services.router.settings import Settings
from services.router.timeline.attempt_story import attempt_record
from tests.unit.loadtest.capacity.models import PROFILE

WHOLE = msgspec.structs.replace(PROFILE, prefix_cache=False)


def asked(at: float, *parts: tuple[int, int], output: int = 5) -> Arrival:
    row = tuple(Part(*part) for part in parts)
    return Arrival(at, sum(part.tokens for part in row), output, output, parts=row)


def played(arrivals: list[Arrival], **more: object) -> tuple[Fleet, Report]:
    parts: dict[str, object] = {
        "profile": PROFILE, "prefills": 1, "decodes": 1, "seconds": 60.0,
    }  # fmt: skip
    fleet = Fleet(Scenario(arrivals=arrivals, **{**parts, **more}))  # type: ignore[arg-type]
    return fleet, fleet.run()


def ttfts(fleet: Fleet) -> list[float]:
    return [(sample.first or 0.0) - sample.asked for sample in fleet.samples]


def test_a_prompt_that_comes_again_computes_and_sends_its_last_block() -> None:
    """Of 1,000 tokens 62 blocks are whole; P computes 8 tokens, 0.8 ms, and sends them, 0.8 ms."""
    fleet, report = played([asked(1.0, (7, 1_000)), asked(10.0, (7, 1_000))])
    assert ttfts(fleet) == pytest.approx([0.1 + 0.1 + 0.011, 0.0008 + 0.0008 + 0.011])
    assert report.cached_share == pytest.approx(992 / 2_000)
    first, second = fleet.core.tables.history
    reports = [attempt.decode_report for attempt in (first, second)]
    moved = [(r.kv.blocks, r.kv.payload_bytes) for r in reports if r is not None and r.kv]
    assert moved == [(63, 1_000 * 100_000), (1, 8 * 100_000)]
    told = attempt_record(second, 60.0).cached_tokens
    assert told == CachedTokens(prefill=992, decode=999)
    assert attempt_record(first, 60.0).cached_tokens.prefill == 0


def test_a_prompt_of_whole_blocks_computes_the_last_one_again() -> None:
    _, report = played([asked(1.0, (7, 64)), asked(10.0, (7, 64))])
    assert report.cached_share == pytest.approx(48 / 128)


def test_alone_d_tells_what_it_had_cached() -> None:
    arrivals = [asked(1.0, (7, 1_000)), asked(10.0, (7, 800), (8, 200))]
    fleet, report = played(arrivals, prefills=0)
    assert report.local_prefills == 2
    assert ttfts(fleet) == pytest.approx([0.1, 0.02])
    _, second = fleet.core.tables.history
    told = attempt_record(second, 60.0).cached_tokens
    assert told == CachedTokens(decode=800)


def test_d_has_what_was_handed_over_and_p_what_it_computed() -> None:
    """D computed nothing."""
    fleet, _ = played([asked(1.0, (7, 1_000))])
    ask = asked(0.0, (7, 1_000))
    job = Job(("r", 1), ask, 0.0, blocks_of(ask))
    workers = [*fleet._prefills.values(), *fleet._decodes.values()]
    assert [worker.engine.cached(job) for worker in workers] == [992, 992]
    assert [each.engine.prompt_tokens for each in workers] == [1_000, 0]


def blocks_of(ask: Arrival) -> list[bytes]:
    return prefix.split(block_hashes(ask.parts, PROFILE.block_tokens))


def test_only_what_d_lacks_waits_for_a_slow_link() -> None:
    """P has nothing of the prompt and computes 0.1 s; D had all but 200 tokens from another P."""
    slow = msgspec.structs.replace(PROFILE, bandwidth_bytes_per_s=1e8)
    fleet = Fleet(Scenario(slow, 1, 1, [asked(1.0, (7, 800), (8, 200))], 60.0))
    (decode,) = fleet._decodes.values()
    decode.engine._cache.add(blocks_of(asked(0.0, (7, 800))))
    fleet.run()
    assert ttfts(fleet) == pytest.approx([0.1 + 0.2 + 0.011])


def test_what_p_had_cached_is_sent_while_it_computes_the_rest() -> None:
    """Its 1,000 tokens take 100 ms over the link, from the begin of the 0.8 ms of computing on."""
    fleet = Fleet(Scenario(PROFILE, 1, 1, [asked(1.0, (7, 1_000))], 60.0))
    (prefill,) = fleet._prefills.values()
    prefill.engine._cache.add(blocks_of(asked(0.0, (7, 1_000))))
    fleet.run()
    assert ttfts(fleet) == pytest.approx([0.1 + 0.011])


def test_a_cache_has_no_more_blocks_than_the_engine() -> None:
    """Two prompts of 62 blocks in turn: of each, 8 are left when it comes again."""
    small = msgspec.structs.replace(PROFILE, kv_blocks=70)
    turns = [asked(float(n), (n % 2, 1_000)) for n in range(6)]
    assert played(turns, profile=small)[1].cached_share == pytest.approx(4 * 8 * 16 / 6_000)
    same = [asked(float(n), (0, 1_000)) for n in range(6)]
    assert played(same, profile=small)[1].cached_share == pytest.approx(5 * 992 / 6_000)


class Bed:
    """An engine and the milliseconds at which prompts were computed."""

    def __init__(self, profile: Profile) -> None:
        self.time = VirtualTime()
        self.engine = Engine(profile, self.time, self._done, self._done)
        self.done: list[float] = []

    def prompt(self, at_ms: float, *parts: tuple[int, int]) -> None:
        ask = asked(0.0, *parts)
        job = Job(("r", 1), ask, 0.0, blocks_of(ask))
        self.time.at(at_ms / 1000, lambda: self.engine.prompt(job))

    def _done(self, _: Job) -> None:
        self.done.append(round(self.time.now * 1000, 6))

    def run(self) -> list[float]:
        self.time.run(60.0)
        return self.done


def test_prompts_of_one_step_share_what_they_begin_with() -> None:
    """The second and third wait for the first's step; what is cached is seen when their turn
    comes, so that of the third only its own 200 tokens are computed."""
    bed = Bed(PROFILE)
    bed.prompt(0, (1, 100))
    bed.prompt(1, (2, 800), (3, 200))
    bed.prompt(2, (2, 800), (4, 200))
    assert bed.run() == [10, 10 + 100 + 20, 10 + 100 + 20]


def test_what_comes_from_elsewhere_meanwhile_is_cached_when_a_prompts_turn_comes() -> None:
    """The second prompt waits for two chunks of the first; 384 of its 400 tokens come at 30 ms. Its
    last 16 share a step with the stream that they came for."""
    bed = Bed(msgspec.structs.replace(PROFILE, chunk_tokens=200))
    bed.prompt(0, (1, 400))
    bed.prompt(0, (2, 400))
    ask = asked(0.0, (2, 400))
    bed.time.at(0.03, lambda: bed.engine.fetched(Job(("f", 1), ask, 0.0, blocks_of(ask))))
    assert bed.run() == [40, 40 + 1.6 + 11, 40 + 1.6 + 11]
    assert bed.engine.cached_tokens == 384


def test_chunks_are_of_what_is_left_to_compute() -> None:
    bed = Bed(msgspec.structs.replace(PROFILE, chunk_tokens=200))
    bed.prompt(0, (1, 800))
    bed.prompt(500, (1, 800), (2, 500))
    bed.time.at(0.5001, lambda: bed.engine.stream(Job(("s", 1), asked(0.0), 0.0), 1))
    done = bed.run()
    assert done[0] == pytest.approx(80)
    assert done[-1] == pytest.approx(500 + 50 + 11), "a stream's step beside the second chunk"
    assert (bed.engine.prompt_tokens, bed.engine.cached_tokens) == (2_100, 800)


def test_the_rest_of_a_prompt_attends_to_what_is_cached() -> None:
    """A long prompt's last tokens cost more than a short prompt, few ones no less than one."""
    bent = Profile(prefill_curve=((100, 10.0), (1_000, 100.0), (4_000, 1_000.0)))
    assert bent.prompt_seconds(4_000, 2_500) == pytest.approx(1.0 - 0.55)
    assert bent.prompt_seconds(4_000, 3_984) == pytest.approx(0.010)
    assert bent.prompt_seconds(4_000, 0) == bent.prefill_seconds(4_000)
    assert bent.chunk_seconds(750, 4_000, 2_500) == pytest.approx(0.225)


def conversations(count: int) -> list[Arrival]:
    """Nine prompts in turn, 960 of 1,000 tokens each time the same."""
    turns = cycle(range(9))
    return [asked(0.25 * n, (next(turns), 960), (1_000 + n, 40)) for n in range(count)]


def test_without_a_cache_parts_change_nothing() -> None:
    known = conversations(60)
    unknown = [arrival._replace(parts=()) for arrival in known]
    runs = [
        played(arrivals, profile=profile, decodes=2)
        for arrivals, profile in ((known, WHOLE), (unknown, WHOLE), (unknown, PROFILE))
    ]
    seen = [[(s.first, s.done, s.refused, s.beside) for s in fleet.samples] for fleet, _ in runs]
    assert seen[0] == seen[1] == seen[2]
    assert {report.cached_share for _, report in runs} == {0.0}
    assert {report.router_events for _, report in runs} == {runs[0][1].router_events}
    assert not len(runs[0][0].core.tables.placement_memory.prefixes)


@pytest.mark.parametrize("policy", ["cost", "prefix_affinity"])
def test_who_knows_prefixes_sends_them_where_they_are(policy: str) -> None:
    """Each of nine prompts is computed whole once, but once on each of four workers in turn."""

    def share(name: str) -> float:
        settings = Settings(mode="replicated", policy=name)  # type: ignore[arg-type]
        run = played(conversations(72), prefills=0, decodes=4, settings=settings)
        return run[1].cached_share

    assert share(policy) == pytest.approx(0.96 * 63 / 72)
    assert share("round_robin") == pytest.approx(0.96 * 36 / 72)


def test_the_router_is_told_no_more_blocks_than_a_gateway_tells() -> None:
    """The worker's own cache knows them all."""
    long = asked(1.0, (7, 16_000))
    profile = msgspec.structs.replace(PROFILE, max_model_len=32_768)
    fleet, report = played([long, long._replace(at=20.0)], profile=profile)
    assert fleet.core.tables.placement_memory.prefixes.held("p0|1") == prefix.HASHES_MAX
    assert report.cached_share == pytest.approx(15_984 / 32_000)


def test_a_traces_prefixes_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, profile = tmp_path / "t.jsonl", tmp_path / "p.toml"
    row = {"input_length": 1_024, "output_length": 9, "hash_ids": [0, 1]}
    path.write_text("\n".join(json.dumps(row | {"timestamp": 900 * i}) for i in range(10)))
    flags = ["--trace", str(path), "--prefill", "1", "--decode", "1"]
    assert main([*flags, "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=Report)
    assert report.cached_share == pytest.approx(9 * 1_008 / 10_240)
    assert main(flags) == 0
    assert "prefix cache  89% of prompt tokens" in capsys.readouterr().out
    profile.write_text("prefix_cache = false\n")
    assert main([*flags, "--profile", str(profile)]) == 0
    assert "prefix cache  0% of prompt tokens" in capsys.readouterr().out
