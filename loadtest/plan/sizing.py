"""Plays candidate fleets in virtual time, the production router deciding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat, takewhile
from statistics import fmean
from typing import NamedTuple

import msgspec

from common.blocks import kv_need
from common.messages import Role
from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import ClientSample, Quantiles, Slo, quantiles
from loadtest.capacity.workload import Arrival, resized
from services.router.settings import Settings

GOLDEN = 0.6180339887498949
DRAIN_SECONDS = 600.0
ROOM = 0.97
"""A phase asked for more than this of its capacity on paper is not worth playing."""


class FleetShape(NamedTuple):
    """A fleet by its numbers of workers."""

    #: 0 = replicated: every worker does both.
    prefills: int
    decodes: int
    #: Names of the kinds of workers (`kinds.py`), if a plan has several.
    prefill_kind: str = ""
    decode_kind: str = ""

    @property
    def workers(self) -> int:
        return self.prefills + self.decodes

    @property
    def split(self) -> bool:
        return self.prefills > 0

    @property
    def name(self) -> str:
        if not self.decode_kind:
            one = f"{self.prefills}P+{self.decodes}D"
            return one if self.split else f"{self.decodes} replicated"
        decodes = f"{self.decodes} {self.decode_kind}"
        if not self.split:
            return f"{decodes} replicated"
        return f"{self.prefills} {self.prefill_kind} P + {decodes} D"


class FleetOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet does with the load."""

    shape: FleetShape
    #: Of all its workers, for an hour.
    price: float = 0.0
    #: Share of all requests that met the SLO; refused ones did not.
    attainment: float
    goodput_rps: float
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    itl_ms: Quantiles
    prefill_utilization: float
    decode_utilization: float
    #: As in Report.
    cached_share: float
    output_tokens_per_s: float


class TargetLoad(NamedTuple):
    arrivals: Sequence[Arrival]
    slo: Slo

    @property
    def span(self) -> float:
        return max(self.arrivals[-1].at, 1e-3)


def play(
    shape: FleetShape, profile: Profile, load: TargetLoad, decode: Profile | None = None
) -> FleetOutcome:
    """The way between client and worker is added to every TTFT; the rest is the simulation's.
    `decode`: the profile of decode workers, if it is another one."""
    decode = decode or profile
    settings = Settings(
        mode="disaggregated" if shape.split else "replicated",
        remote_prefill="auto",
        max_queue=max(1024, len(load.arrivals)),
        worker_timeout_ms=1e12,
    )
    fleet = Fleet(
        Scenario(
            profile=profile,
            profiles={Role.DECODE: decode},
            prefills=shape.prefills,
            decodes=shape.decodes,
            arrivals=load.arrivals,
            seconds=load.span + 1e-3,
            drain_seconds=DRAIN_SECONDS,
            slo=load.slo,
            settings=settings,
        )
    )
    report = fleet.run()
    add_edges(fleet.samples, decode)
    good = sum(sample.good(load.slo) for sample in fleet.samples)
    ended = [(s.done, s.arrival.output) for s in fleet.samples if s.done is not None]
    last = max((done for done, _ in ended), default=load.span)
    return FleetOutcome(
        shape=shape,
        attainment=good / len(load.arrivals),
        goodput_rps=good / last,
        ttft_ms=quantiles(
            (sample.first - sample.asked) * 1000
            for sample in fleet.samples
            if sample.first is not None
        ),
        tpot_ms=report.tpot_ms,
        itl_ms=report.itl_ms,
        prefill_utilization=report.prefill_utilization,
        decode_utilization=report.decode_utilization,
        cached_share=report.cached_share,
        output_tokens_per_s=sum(output for _, output in ended) / last,
    )


def add_edges(samples: Sequence[ClientSample], profile: Profile) -> None:
    """To the first and the last token alike, so that the pace stays. Where the measured way has a
    spread, each request takes its share of it by the golden ratio: evenly, in no order."""
    for number, sample in enumerate(samples):
        edge = profile.edge_seconds(sample.beside, number * GOLDEN % 1.0)
        sample.first = None if sample.first is None else sample.first + edge
        sample.done = None if sample.done is None else sample.done + edge


def within_data(profile: Profile) -> Profile:
    """No larger batch than was measured."""
    if not profile.decode_curve:
        return profile
    most = profile.decode_curve[-1][0]
    return msgspec.structs.replace(profile, max_num_seqs=min(profile.max_num_seqs, most))


class Demand(NamedTuple):
    """Workers that each phase keeps busy, on paper."""

    prefill: float
    decode: float


def demand(profile: Profile, load: TargetLoad, decode: Profile | None = None) -> Demand:
    """Rather too little than too much: where workers cache prefixes, as if there were one cache
    that had all earlier prompts. What stores have is there, too. `decode`: as in `play`."""
    decode = decode or profile
    rate = len(load.arrivals) / load.span
    cached = known(load.arrivals) if profile.prefix_cache else repeat(0)
    prompts = [arrival.prompt for arrival in load.arrivals]
    there = map(max, cached, map(profile.stored_tokens, prompts))
    seconds = fmean(map(profile.prompt_seconds, prompts, there))
    mean = fmean(a.prompt + a.output for a in load.arrivals)
    tokens = decode.kv_blocks * decode.block_tokens
    need = kv_need(round(mean), decode.block_tokens, decode.kv_groups)
    batch = max(1, min(decode.max_num_seqs, int(0.95 * tokens / need)))
    steps = fmean(a.output for a in load.arrivals)
    return Demand(rate * seconds, rate * steps * decode.step_seconds(batch) / batch)


def known(arrivals: Iterable[Arrival]) -> Iterator[int]:
    """Leading tokens of each prompt that earlier ones had; its last token is never among them."""
    earlier: set[int] = set()
    for arrival in arrivals:
        shared = sum(part.tokens for part in takewhile(lambda p: p.id in earlier, arrival.parts))
        earlier.update(part.id for part in arrival.parts)
        yield min(shared, arrival.prompt - 1)


def is_lost(shape: FleetShape, need: Demand) -> bool:
    """On paper already: such a fleet need not be played."""
    if not shape.split:
        return need.prefill + need.decode > shape.workers * ROOM
    return need.prefill > shape.prefills * ROOM or need.decode > shape.decodes * ROOM


def whole(workers: int, need: Demand) -> list[FleetShape]:
    """The replicated fleet of so many workers, unless it is lost on paper already."""
    shape = FleetShape(0, workers)
    return [] if is_lost(shape, need) else [shape]


def splits(workers: int, need: Demand) -> list[FleetShape]:
    """Disaggregated fleets of so many workers that are not lost on paper, by rising P."""
    shapes = [FleetShape(prefills, workers - prefills) for prefills in range(1, workers)]
    return [shape for shape in shapes if not is_lost(shape, need)]


def scaled(load: TargetLoad, *, rate: float = 1.0, prompt: float = 1.0) -> TargetLoad:
    """The same load, denser or with longer prompts."""
    arrivals = [resized(a, prompt)._replace(at=a.at / rate) for a in load.arrivals]
    return TargetLoad(arrivals, load.slo)


def with_network(profile: Profile, times: float) -> Profile:
    faster = profile.bandwidth_bytes_per_s * times
    return msgspec.structs.replace(profile, bandwidth_bytes_per_s=faster)
