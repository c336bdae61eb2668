"""Samples, one by one, the requests that vLLM's batch would sample wrongly.

Theory of operation: a request that continues here after another worker was lost has prompt and
emitted tokens as its prompt. vLLM would not count the emitted ones as output (penalties, bad words)
and would begin the seed's random stream anew. Such a request therefore carries its parameters in
`extra_args[RESUME_KEY]` and asks vLLM itself for greedy sampling. This logits processor, which vLLM
loads by name and applies after its own processors, gives the row to a second `Sampler` of vLLM's,
with all output and a generator at the right position of its stream. Of the row it leaves only the
sampled token, which is then the greedy choice. vLLM takes logprobs before that, from the raw
logits, so they are not affected.

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

from common.engine.vllm.sampling import RESUME_KEY, ResumeState

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SEEDS = 1 << 31


class SeedStream:
    """A seed's random stream that can be entered at any position: one draw per token, as vLLM's
    sampler on CPU makes it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = torch.Generator("cpu")
        self._next = -1
        self._before = torch.empty(0)

    def at(self, position: int) -> torch.Generator:
        """The generator, ready to draw for the output token with this index. The same index may be
        asked for again, if the token of a step was discarded."""
        if position == self._next - 1:
            self._generator.set_state(self._before)
        elif position != self._next:
            self._generator.manual_seed(self._seed)
            for _ in range(position):
                torch.randint(0, SEEDS, (1,), generator=self._generator, dtype=torch.long)
        self._before = self._generator.get_state()
        self._next = position + 1
        return self._generator


class ResumedRow:
    """One such request. `output` is vLLM's own list of the tokens that it generated here, which
    grows."""

    def __init__(
        self,
        config: VllmConfig,
        state: ResumeState,
        params: SamplingParams,
        prompt_ids: list[int],
        output: list[int],
    ) -> None:
        cut = len(prompt_ids) - state["emitted"]
        self._emitted, self._output = prompt_ids[cut:], output
        self._stream = SeedStream(state["seed"]) if state["seed"] is not None else None
        self._metadata = _metadata(config, state, params, prompt_ids[:cut])

    def sample(self, sampler: Sampler, logits: torch.Tensor) -> torch.Tensor:
        """Returns one token id. `logits` has shape [1, vocabulary] and is overwritten."""
        made = [*self._emitted, *self._output]
        self._metadata.output_token_ids = [made]
        if self._stream is not None:
            self._metadata.generators = {0: self._stream.at(len(made))}
        sampled: torch.Tensor = sampler(logits, self._metadata).sampled_token_ids
        return sampled[0, 0]


class ResumeSampler(LogitsProcessor):
    """The logits processor; it keeps its requests by their row in vLLM's batch."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        device: torch.device,  # noqa: ARG002
        is_pin_memory: bool,  # noqa: ARG002
    ) -> None:
        self._config = vllm_config
        self._sampler = Sampler(vllm_config.model_config.logprobs_mode)
        self._rows: dict[int, ResumedRow] = {}

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
            state = (params.extra_args or {}).get(RESUME_KEY)
            if state is not None and "temperature" in state:
                rows[index] = ResumedRow(self._config, state, params, prompt_ids or [], output)
        for source, target, direction in batch_update.moved:
            moved, replaced = rows.pop(source, None), rows.pop(target, None)
            if moved is not None:
                rows[target] = moved
            if replaced is not None and direction is MoveDirectionality.SWAP:
                rows[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, row in self._rows.items():
            row_logits = logits[index : index + 1]
            token = row.sample(self._sampler, row_logits.clone())
            row_logits.fill_(float("-inf"))
            row_logits[0, token] = 0.0
        return logits


def _metadata(
    config: VllmConfig, state: ResumeState, params: SamplingParams, prompt_ids: list[int]
) -> SamplingMetadata:
    """The metadata of a batch of this one request, without what vLLM does before its processors."""
    vocabulary = config.model_config.get_vocab_size()
    penalties = (state["presence_penalty"], state["frequency_penalty"], state["repetition_penalty"])
    greedy = state["temperature"] == 0.0
    bad_words = params.bad_words_token_ids
    top_k = state["top_k"] if 0 < state["top_k"] < vocabulary else 0
    return SamplingMetadata(
        temperature=None if greedy else torch.tensor([state["temperature"]]),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=torch.tensor([state["top_p"]]) if state["top_p"] < 1.0 else None,
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
        logitsprocs=LogitsProcessors(_min_p(config, state["min_p"])),
    )


def _min_p(config: VllmConfig, min_p: float) -> list[Any]:
    if not min_p:
        return []
    processor = MinPLogitsProcessor(config, torch.device("cpu"), is_pin_memory=False)
    added: list[AddedRequest] = [(0, SamplingParams(min_p=min_p), None, [])]
    processor.update_state(BatchUpdate(batch_size=1, removed=[], added=added, moved=[]))
    return [processor]
