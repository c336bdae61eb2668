"""Sums that need no simulation: how large a prompt's KV is, how long it takes over a link."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import ConfigError
from loadtest.capacity.profile import Profile

LINKS_GBIT = (1, 10, 25, 100, 200, 400)
TYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
SHARES = ((0.5, "p50"), (0.9, "p90"), (1.0, "longest"))


class KvSize(NamedTuple):
    """KV bytes of one token."""

    bytes: int
    #: The formula, as a sentence.
    explanation: str


def of_profile(profile: Profile) -> KvSize:
    size = profile.kv_bytes_per_token
    return KvSize(size, f"KV bytes a token, as the measured workers allocate it: {size:,}")


def of_model(folder: Path) -> KvSize:
    """The formula with a model's numbers. Raises ConfigError where its config.json does not contain
    them."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        size = config.get("head_dim") or config["hidden_size"] // heads
        name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            "--model", f"{folder}: its config.json does not contain {error}"
        ) from error
    width = TYPE_BYTES.get(name, 2)
    total = 2 * layers * kv_heads * size * width
    explanation = (
        f"KV bytes a token = 2 (K, V) x {layers} layers x {kv_heads} KV heads x {size} a head x "
        f"{width} bytes ({name}) = {total:,}"
    )
    return KvSize(total, explanation)


def lines(size: KvSize, profile: Profile, prompts: Sequence[int]) -> Iterator[str]:
    """The size, and what it means for these prompts on usual links."""
    yield size.explanation
    chosen = [(name, _at(prompts, share)) for share, name in SHARES]
    head = "".join(f"{name} ({tokens:,} tokens)".rjust(26) for name, tokens in chosen)
    yield f"{'its transfer':<22}{head}"
    yield f"{'  bytes':<22}" + "".join(
        f"{tokens * size.bytes / 1e6:,.1f} MB".rjust(26) for _, tokens in chosen
    )
    measured = profile.bandwidth_bytes_per_s
    links = [(f"  at {gbit} Gbit/s", gbit * 1e9 / 8) for gbit in LINKS_GBIT]
    for name, speed in [*links, (f"  at {measured / 1e9:.2f} GB/s, here", measured)]:
        times = "".join(
            f"{tokens * size.bytes / speed * 1000:,.1f} ms".rjust(26) for _, tokens in chosen
        )
        yield f"{name:<22}{times}"


def _at(values: Sequence[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
