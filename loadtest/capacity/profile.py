"""One worker's measured numbers, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from common.errors import ConfigError

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prefill of n tokens takes `prefill_ms` + n / `prefill_tokens_per_s`; a decode step of a
    batch b takes `decode_step_ms` + `decode_step_ms_per_seq` x b, and one that also computes a
    chunk of a prompt (local prefill, at most `chunk_tokens`) that chunk's time more. KV goes from a
    prefill worker at `bandwidth_bytes_per_s`, one transfer after the other, while the prompt is
    still computed; the last chunk's KV comes after it. `control_ms`: one way between two
    processes."""

    prefill_tokens_per_s: Positive = 20_000.0
    prefill_ms: NotNegative = 2.0
    decode_step_ms: Positive = 10.0
    decode_step_ms_per_seq: NotNegative = 0.1
    chunk_tokens: Count = 2_048
    bandwidth_bytes_per_s: Positive = 10e9
    kv_bytes_per_token: Count = 131_072
    kv_blocks: Count = 8_192
    block_tokens: Count = 16
    max_num_seqs: Count = 64
    max_model_len: Count = 16_384
    control_ms: NotNegative = 0.3

    def prefill_seconds(self, tokens: int) -> float:
        return self.prefill_ms / 1000 + tokens / self.prefill_tokens_per_s

    def step_seconds(self, batch: int) -> float:
        return (self.decode_step_ms + self.decode_step_ms_per_seq * batch) / 1000

    def transfer_seconds(self, tokens: int) -> float:
        return tokens * self.kv_bytes_per_token / self.bandwidth_bytes_per_s

    def prefill_capacity(self, workers: int, prompt: float) -> float:
        """Requests per second that the prefill workers can compute, or send if that is slower."""
        compute = self.prefill_ms / 1000 + prompt / self.prefill_tokens_per_s
        send = prompt * self.kv_bytes_per_token / self.bandwidth_bytes_per_s
        return workers / max(compute, send)

    def decode_capacity(self, workers: int, prompt: float, output: float, grant: float) -> float:
        """Requests per second with the largest batch that slots and granted KV allow."""
        blocks = -(-(prompt + output) // self.block_tokens)
        batch = max(1, int(min(self.max_num_seqs, grant * self.kv_blocks // blocks)))
        return workers * batch / (output * self.step_seconds(batch))


def load(path: Path) -> Profile:
    """A TOML file with the keys of `Profile`. Raises ConfigError that names the key at fault."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(str(path), f"{error}; the keys are {', '.join(_keys())}") from error


def _keys() -> tuple[str, ...]:
    return Profile.__struct_fields__
