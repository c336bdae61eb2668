"""One worker's measured numbers, and what follows from them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from common.blocks import KvGroup, blocks_to_move, kv_need
from common.errors import ConfigError

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Curve = tuple[tuple[Count, Positive], ...]
Tenths = Annotated[tuple[NotNegative, ...], Meta(min_length=10, max_length=10)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measured numbers of one worker. Curves, where present, replace the formulas: they are
    ascending points, with straight lines between them."""

    #: A prefill of n tokens takes `prefill_ms` + n / `prefill_tokens_per_s`.
    prefill_tokens_per_s: Positive = 20_000.0
    prefill_ms: NotNegative = 2.0
    #: A decode step of a batch b takes `decode_step_ms` + `decode_step_ms_per_seq` x b.
    decode_step_ms: Positive = 10.0
    decode_step_ms_per_seq: NotNegative = 0.1
    #: Prompt tokens that one step computes at most; a chunk adds its time to the step.
    chunk_tokens: Count = 2_048
    #: KV leaves a prefill worker at this rate, one transfer after the other, while the prompt is
    #: computed; the last chunk's KV follows it.
    bandwidth_bytes_per_s: Positive = 10e9
    kv_bytes_per_token: Count = 131_072
    kv_blocks: Count = 8_192
    block_tokens: Count = 16
    #: The engine's KV cache groups; empty = one that keeps all tokens.
    kv_groups: tuple[KvGroup, ...] = ()
    max_num_seqs: Count = 64
    max_model_len: Count = 16_384
    #: One message between two processes.
    control_ms: NotNegative = 0.3
    #: Workers keep the KV of earlier prompts and compute only the rest of a prompt.
    prefix_cache: bool = True
    #: Share of each prompt, from its beginning on, that a store below the engine or beside it has
    #: (`[kv.store]`); not measured. 0 = there is no store.
    store_hit_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    #: At this rate KV comes out of it, from the own memory or disk or by a pull, while the engine
    #: goes on with other requests.
    store_bytes_per_s: Positive = 1e9
    #: (tokens, milliseconds) of a prefill.
    prefill_curve: Curve = ()
    #: (batch, milliseconds) of a decode step.
    decode_curve: Curve = ()
    #: From the end of prefill to the complete KV on the decode worker, besides the bytes.
    handoff_ms: NotNegative = 0.0
    #: From then to the first token on an otherwise idle decode worker; 0 = one decode step.
    join_ms: NotNegative = 0.0
    #: What HTTP, gateway and client add to the first token of a single request, besides
    #: `control_ms` for each message.
    edge_ms: NotNegative = 0.0
    #: The same by number of streams of the worker: (streams, ascending means of its tenths).
    edge_curve: tuple[tuple[Count, Tenths], ...] = ()
    #: Where the numbers come from.
    about: dict[str, str] = {}

    @property
    def measured(self) -> bool:
        return bool(self.prefill_curve and self.decode_curve)

    def at_speed(self, speed: float) -> Profile:
        """A worker that computes so many times as fast. Its links and its memory are the same."""
        return msgspec.structs.replace(
            self,
            prefill_tokens_per_s=self.prefill_tokens_per_s * speed,
            prefill_ms=self.prefill_ms / speed,
            decode_step_ms=self.decode_step_ms / speed,
            decode_step_ms_per_seq=self.decode_step_ms_per_seq / speed,
            join_ms=self.join_ms / speed,
            prefill_curve=tuple((at, ms / speed) for at, ms in self.prefill_curve),
            decode_curve=tuple((at, ms / speed) for at, ms in self.decode_curve),
        )

    def prefill_seconds(self, tokens: float) -> float:
        if self.prefill_curve:
            return between(self.prefill_curve, tokens) / 1000
        return self.prefill_ms / 1000 + tokens / self.prefill_tokens_per_s

    def prompt_seconds(self, prompt: int, cached: int) -> float:
        """To compute a prompt without its first `cached` tokens. The rest attends to them too, so
        it takes what the whole takes more than they; but never less than a prompt of its length."""
        whole = self.prefill_seconds(prompt) - self.prefill_seconds(cached)
        return max(self.prefill_seconds(prompt - cached), whole)

    def chunk_seconds(self, chunk: int, prompt: int, cached: int) -> float:
        """What a chunk of a prompt's rest adds to a step."""
        return self.prompt_seconds(prompt, cached) * chunk / (prompt - cached)

    def stored_tokens(self, prompt: int) -> int:
        """Leading tokens in whole blocks that a store has of a prompt; its last one never."""
        return int(self.store_hit_share * (prompt - 1)) // self.block_tokens * self.block_tokens

    def load_seconds(self, tokens: int) -> float:
        """Until so many tokens have come out of a store."""
        return max(0, tokens) * self.kv_bytes_per_token / self.store_bytes_per_s

    def first_step_seconds(self, batch: int) -> float:
        """Of streams alone in D's engine whose KV came from P."""
        return self.join_ms / 1000 if self.join_ms else self.step_seconds(batch)

    def step_seconds(self, batch: int) -> float:
        if self.decode_curve:
            return between(self.decode_curve, batch) / 1000
        return (self.decode_step_ms + self.decode_step_ms_per_seq * batch) / 1000

    def edge_seconds(self, streams: int, share: float) -> float:
        """`share`: the quantile of the request, in [0, 1). Beyond the measured
        numbers of streams, what the nearest one showed."""
        if not self.edge_curve:
            return self.edge_ms / 1000
        tenth = int(share * 10)
        curve = tuple((at, tenths[tenth]) for at, tenths in self.edge_curve)
        return between(curve, min(streams, curve[-1][0])) / 1000

    def kv_bytes(self, tokens: int, cached: int = 0) -> int:
        """What a handoff moves to a worker that has the KV of the first `cached` tokens."""
        moved = tokens - cached
        if self.kv_groups:
            moved = blocks_to_move(tokens, cached, self.kv_groups) * self.block_tokens
        return moved * self.kv_bytes_per_token

    def transfer_seconds(self, tokens: int, cached: int = 0) -> float:
        return self.kv_bytes(tokens, cached) / self.bandwidth_bytes_per_s

    def prefill_capacity(self, workers: int, prompt: float) -> float:
        """Requests per second that the prefill workers can compute, or send if that is slower."""
        compute = self.prefill_seconds(prompt)
        return workers / max(compute, self.transfer_seconds(round(prompt)))

    def decode_capacity(self, workers: int, prompt: float, output: float, grant: float) -> float:
        """Requests per second with the largest batch that slots and granted KV allow."""
        need = kv_need(round(prompt + output), self.block_tokens, self.kv_groups)
        room = grant * self.kv_blocks * self.block_tokens
        batch = max(1, int(min(self.max_num_seqs, room // need)))
        return workers * batch / (output * self.step_seconds(batch))


def between(curve: Curve, at: float) -> float:
    """On the straight line between two points; the first point's value before it, and the last
    line's slope after the end."""
    if at <= curve[0][0] or len(curve) == 1:
        return curve[0][1]
    after = next((i for i, (x, _) in enumerate(curve) if x >= at), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[after - 1], curve[after]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def load(path: Path) -> Profile:
    """A TOML file with the keys of `Profile`. Raises ConfigError that names the key at fault."""
    try:
        profile = msgspec.toml.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(str(path), f"{error}; the keys are {', '.join(_keys())}") from error
    curves = {
        "prefill": profile.prefill_curve,
        "decode": profile.decode_curve,
        "edge": profile.edge_curve,
    }
    for key, curve in curves.items():
        if any(left[0] >= right[0] for left, right in pairwise(curve)):
            raise ConfigError(f"{path}: {key}_curve", "must ascend")
    return profile


def text(profile: Profile) -> str:
    """As `load` reads it; TOML takes JSON's values, and a list of tables at its end."""
    values = msgspec.structs.asdict(profile)
    about, groups = values.pop("about"), values.pop("kv_groups")
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    for group in groups:
        table = msgspec.structs.asdict(group)
        lines += ["", "[[kv_groups]]", *[f"{key} = {json.dumps(table[key])}" for key in table]]
    lines += ["", "[about]", *[f"{key} = {json.dumps(value)}" for key, value in about.items()]]
    return "\n".join(lines) + "\n"


def _keys() -> tuple[str, ...]:
    return Profile.__struct_fields__
