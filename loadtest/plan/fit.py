"""From probes of a live fleet to the numbers of one worker."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from common.net.admin_rows import WorkerRow
from loadtest.capacity.profile import Curve, Profile, Tenths

TENTHS = 10
CONTROL_MS = Profile().control_ms
MESSAGES = 3
"""Between processes of the fleet on the way to a first token: the model counts them itself."""
ASSUMED_BYTES_PER_S = 1e9
"""Well below what any interface of a GPU host moves."""


class TimedProbe(NamedTuple):
    """One request, in milliseconds. The worker's instants count from its dispatch, by its own
    clock."""

    prompt: int
    #: Until P had computed the prompt; None if D computed it.
    prefill: float | None
    #: Until D had the KV; None if D computed the prompt.
    kv: float | None
    #: Until D had its first token.
    first_token: float
    #: As the client measured it.
    ttft: float

    @property
    def edge(self) -> float:
        """What the way between client and worker took, there and back."""
        return max(0.0, self.ttft - self.first_token - MESSAGES * CONTROL_MS)

    @property
    def computed(self) -> float:
        """On whichever worker; D's step that ends the prompt makes the first token."""
        return max(1e-3, self.first_token if self.prefill is None else self.prefill)


def profile_of(
    probes: Sequence[TimedProbe],
    steps: Sequence[Step],
    decode: WorkerRow,
    bandwidth: Bandwidth,
    about: dict[str, str],
    *,
    prefix_cache: bool,
) -> Profile:
    """`probes`: alone. `decode`: a decode worker's row of `workers`.
    `about`: where all this was measured; what is known of the wire is added."""
    curve = rising(by_size([(step.batch, step.ms) for step in steps]))
    prefill = rising(by_size([(p.prompt, p.computed) for p in probes]))
    handoffs = [p.kv - p.computed for p in probes if p.kv is not None]
    joins = [p.first_token - p.kv for p in probes if p.kv is not None]
    last, took = prefill[-1]
    return Profile(
        prefill_curve=prefill,
        decode_curve=curve,
        prefill_tokens_per_s=last / took * 1000,
        prefill_ms=0.0,
        decode_step_ms=curve[0][1],
        handoff_ms=max(0.0, median(handoffs)) if handoffs else 0.0,
        join_ms=max(1e-3, median(joins)) if joins else 0.0,
        edge_ms=median(p.edge for p in probes),
        edge_curve=edges(probes, steps),
        bandwidth_bytes_per_s=bandwidth.bytes_per_s,
        kv_bytes_per_token=max(1, decode.kv_block_bytes // decode.block_tokens),
        kv_blocks=decode.kv_blocks,
        block_tokens=decode.block_tokens,
        kv_groups=decode.kv_groups,
        max_num_seqs=decode.requests_max,
        max_model_len=decode.max_model_len,
        prefix_cache=prefix_cache,
        about=about | {"bandwidth": bandwidth.explanation},
    )


class Step(NamedTuple):
    """A batch of one worker."""

    batch: int
    #: Milliseconds of a step.
    ms: float
    #: Requests that ran beside the streams of the batch.
    probes: Sequence[TimedProbe] = ()


def edges(probes: Sequence[TimedProbe], steps: Sequence[Step]) -> tuple[tuple[int, Tenths], ...]:
    """Tenths of the way's spread by streams of a worker: alone, and of each batch that has probes
    enough."""
    by_batch = {1: [p.edge for p in probes]}
    by_batch |= {s.batch: [p.edge for p in s.probes] for s in steps if len(s.probes) >= TENTHS}
    return tuple((batch, tenths(found)) for batch, found in sorted(by_batch.items()))


def tenths(values: Sequence[float]) -> Tenths:
    """The mean of each tenth, ascending; a value may lie in two of them."""
    ordered = sorted(values)
    bounds = [round(i * len(ordered) / TENTHS) for i in range(TENTHS + 1)]
    return tuple(
        round(fmean(ordered[min(low, len(ordered) - 1) : max(high, low + 1)]), 4)
        for low, high in pairwise(bounds)
    )


class Bandwidth(NamedTuple):
    """The assumed rate of a pair."""

    bytes_per_s: float
    #: How the number came about.
    explanation: str


def bandwidth_of(given: float, seen: Sequence[float]) -> Bandwidth:
    """`given`: by the user, 0 = nothing. `seen`: bytes/s by pair, as the router learned them. KV
    leaves while the prompt is computed, so these are no more than a lower bound where the wire is
    faster than the engine; the usual number is assumed then."""
    least = (
        f"handoffs showed {max(seen) / 1e9:.3g} GB/s or more" if seen else "no handoff showed it"
    )
    if given:
        return Bandwidth(given, f"given; {least}")
    fastest = max([ASSUMED_BYTES_PER_S, *seen])
    return Bandwidth(fastest, f"{'assumed' if fastest == ASSUMED_BYTES_PER_S else 'seen'}; {least}")


def by_size(pairs: Sequence[tuple[int, float]]) -> Curve:
    """The median of each size."""
    sizes = sorted({size for size, _ in pairs})
    return tuple((size, median(y for x, y in pairs if x == size)) for size in sizes)


def rising(curve: Curve) -> Curve:
    """More work never takes less time; where it was measured so, that was noise, and neighbours
    that fall share their mean (pool adjacent violators)."""
    pools: list[list[float]] = []
    for _, value in curve:
        pools.append([value, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, count = pools.pop()
            left = pools[-1]
            left[0] = (left[0] * left[1] + mean * count) / (left[1] + count)
            left[1] += count
    values = [value for value, count in pools for _ in range(int(count))]
    return tuple((size, round(max(v, 1e-3), 4)) for (size, _), v in zip(curve, values, strict=True))
