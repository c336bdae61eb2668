"""From probes of a live fleet to the numbers of one worker."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from loadtest.capacity.profile import Curve, Profile

ASSUMED_BYTES_PER_S = 1e9
"""Well below what any interface of a GPU host moves."""


class Probe(NamedTuple):
    """One request alone in the fleet: milliseconds. `prefill`: by P, None where D did it itself;
    `first_token`: from placement; `ttft`: as the client saw it."""

    prompt: int
    prefill: float | None
    first_token: float
    ttft: float


def profile_of(
    probes: Sequence[Probe],
    steps: Sequence[tuple[int, float]],
    decode: dict[str, Any],
    bandwidth: Bandwidth,
    about: dict[str, str],
) -> Profile:
    """`steps`: (batch of one worker, milliseconds). `decode`: a decode worker's row of `workers`.
    `about`: where all this was measured; what is known of the wire is added."""
    step = min(steps)[1]
    prefill = rising(by_size([(p.prompt, _compute(p, step)) for p in probes]))
    tails = [p.first_token - p.prefill - step for p in probes if p.prefill is not None]
    last, took = prefill[-1]
    return Profile(
        prefill_curve=prefill,
        decode_curve=rising(by_size(steps)),
        prefill_tokens_per_s=last / took * 1000,
        prefill_ms=0.0,
        decode_step_ms=step,
        handoff_ms=max(0.0, median(tails)) if tails else 0.0,
        edge_ms=max(0.0, median(p.ttft - p.first_token for p in probes)),
        bandwidth_bytes_per_s=bandwidth.bytes_per_s,
        kv_bytes_per_token=max(1, decode["kv_block_bytes"] // decode["block_tokens"]),
        kv_blocks=decode["kv_blocks"],
        block_tokens=decode["block_tokens"],
        max_num_seqs=decode["requests_max"],
        max_model_len=decode["max_model_len"],
        about=about | {"bandwidth": bandwidth.told},
    )


class Bandwidth(NamedTuple):
    """`told`: how the number came about."""

    bytes_per_s: float
    told: str


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


def _compute(probe: Probe, step: float) -> float:
    """Where D computed the prompt itself, its first step is in the time to the first token."""
    return max(1e-3, probe.first_token - step) if probe.prefill is None else probe.prefill
