"""The requests that vLLM's batch would sample wrongly, each sampled on its own.

Theory of operation: a request that goes on here after another worker was lost has prompt and
emitted tokens as its prompt, so vLLM would count none of the emitted as output (penalties, bad
words) and begin its seed's random stream anew. Such a request says what it asked for in
`extra_args[OWN_KEY]` and asks vLLM itself for greedy sampling. This logits processor, which vLLM
loads by name and applies after its own, gives the row to a second `Sampler` of vLLM's with all
output and a generator at the right place of its stream, and leaves of the row the sampled token
only: the greedy choice. vLLM takes logprobs before, from the raw logits, and they stay what they
are.

On CPU every seeded request is sampled here, from its first token on. vLLM rewinds a request's
generator where a step computed only a part of its prompt; CPU generators cannot be rewound that
way, and the engine would die of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
    MoveDirectionality,
)
from vllm.v1.sample.logits_processor.interface import AddedRequest
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from common.engine.vllm_sampling import OWN_KEY, Own

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SEEDS = 1 << 31


class Stream:
    """A seed's random stream, entered at any position: one draw a token, as vLLM's sampler on CPU
    makes it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = torch.Generator("cpu")
        self._next = -1
        self._before = torch.empty(0)

    def at(self, position: int) -> torch.Generator:
        """Ready to draw for the output token with this index; asked for again where a step's token
        was thrown away."""
        if position == self._next - 1:
            self._generator.set_state(self._before)
        elif position != self._next:
            self._generator.manual_seed(self._seed)
            for _ in range(position):
                torch.randint(0, SEEDS, (1,), generator=self._generator, dtype=torch.long)
        self._before = self._generator.get_state()
        self._next = position + 1
        return self._generator


class Row:
    """One such request. `output`: vLLM's own list of what it made here, which grows."""

    def __init__(
        self,
        config: VllmConfig,
        own: Own,
        params: SamplingParams,
        prompt_ids: list[int],
        output: list[int],
    ) -> None:
        cut = len(prompt_ids) - own["emitted"]
        self._emitted, self._output = prompt_ids[cut:], output
        self._stream = Stream(own["seed"]) if own["seed"] is not None else None
        self._metadata = _metadata(config, own, params, prompt_ids[:cut])

    def sample(self, sampler: Sampler, logits: torch.Tensor) -> torch.Tensor:
        """`logits`: [1, vocabulary], overwritten. Returns one token id."""
        made = [*self._emitted, *self._output]
        self._metadata.output_token_ids = [made]
        if self._stream is not None:
            self._metadata.generators = {0: self._stream.at(len(made))}
        sampled: torch.Tensor = sampler(logits, self._metadata).sampled_token_ids
        return sampled[0, 0]


class OwnRows(LogitsProcessor):
    """By row of vLLM's batch."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        device: torch.device,  # noqa: ARG002
        is_pin_memory: bool,  # noqa: ARG002
    ) -> None:
        self._config = vllm_config
        self._sampler = Sampler(vllm_config.model_config.logprobs_mode)
        self._rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        rows = self._rows
        for index in batch_update.removed:
            rows.pop(index, None)
        for index, params, prompt_ids, output in batch_update.added:
            rows.pop(index, None)
            own = (params.extra_args or {}).get(OWN_KEY)
            if own is not None and "temperature" in own:
                rows[index] = Row(self._config, own, params, prompt_ids or [], output)
        for source, target, direction in batch_update.moved:
            moved, replaced = rows.pop(source, None), rows.pop(target, None)
            if moved is not None:
                rows[target] = moved
            if replaced is not None and direction is MoveDirectionality.SWAP:
                rows[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, row in self._rows.items():
            own = logits[index : index + 1]
            token = row.sample(self._sampler, own.clone())
            own.fill_(float("-inf"))
            own[0, token] = 0.0
        return logits


def _metadata(
    config: VllmConfig, own: Own, params: SamplingParams, prompt_ids: list[int]
) -> SamplingMetadata:
    """Of a batch of this one request; what vLLM does before its processors is not in it."""
    vocabulary = config.model_config.get_vocab_size()
    penalties = (own["presence_penalty"], own["frequency_penalty"], own["repetition_penalty"])
    greedy = own["temperature"] == 0.0
    bad_words = params.bad_words_token_ids
    top_k = own["top_k"] if 0 < own["top_k"] < vocabulary else 0
    return SamplingMetadata(
        temperature=None if greedy else torch.tensor([own["temperature"]]),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=torch.tensor([own["top_p"]]) if own["top_p"] < 1.0 else None,
        top_k=torch.tensor([top_k], dtype=torch.int32) if top_k else None,
        generators={},
        max_num_logprobs=None,
        no_penalties=penalties == (0.0, 0.0, 1.0),
        prompt_token_ids=torch.tensor([prompt_ids], dtype=torch.int64),
        presence_penalties=torch.tensor([penalties[0]]),
        frequency_penalties=torch.tensor([penalties[1]]),
        repetition_penalties=torch.tensor([penalties[2]]),
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={0: bad_words} if bad_words else {},
        logitsprocs=LogitsProcessors(_min_p(config, own["min_p"])),
    )


def _min_p(config: VllmConfig, min_p: float) -> list[Any]:
    if not min_p:
        return []
    processor = MinPLogitsProcessor(config, torch.device("cpu"), is_pin_memory=False)
    added: list[AddedRequest] = [(0, SamplingParams(min_p=min_p), None, [])]
    processor.update_state(BatchUpdate(batch_size=1, removed=[], added=added, moved=[]))
    return [processor]
