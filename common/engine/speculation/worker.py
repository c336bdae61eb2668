"""vLLM's CPU worker, with the logits processors of an engine that does not speculate. It runs in
the engine's process only.

Theory of operation: with speculation vLLM has none but the one for `min_tokens`, and refuses others
by name, because its rejection sampler does not apply them to drafts. It applies them to the last
token of each request of a step all the same, and a request without drafts has no other. Such
requests (`scheduler.py`) are sampled here as they always are.

vLLM means to compile the search of n-grams when the engine starts, and asks it for no request, so
that nothing is compiled. The first stream would stand still for two seconds or more.

A step without drafts passes over the rejection sampler. Above `batch_max` vLLM would search for
drafts of no tokens; nothing is searched for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.spec_decode.ngram_proposer import NgramProposer
from vllm.v1.worker.cpu_worker import CPUWorker

from common.engine.speculation.arguments import without_speculation

if TYPE_CHECKING:
    import torch
    from vllm.v1.outputs import SamplerOutput
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

RESUME_SAMPLER = "common.engine.vllm.resume_sampler:ResumeSampler"


class SpeculatingWorker(CPUWorker):
    """Named by `worker_cls`."""

    def init_device(self) -> None:
        super().init_device()
        batch = self.model_runner.input_batch
        batch.logitsprocs = build_logitsprocs(
            without_speculation(self.vllm_config), self.device, False, False, [RESUME_SAMPLER]
        )
        batch.logitsprocs_need_output_token_ids = True
        runner = self.model_runner
        runner._sample = partial(sample, runner._sample)  # noqa: SLF001 - vLLM has no other seam
        if isinstance(runner.drafter, NgramProposer):
            compile_search(runner.drafter)
            runner.drafter.propose = partial(propose, runner.drafter.propose)


def compile_search(drafter: NgramProposer) -> None:
    """Compiles it for what a step gives it."""
    tokens = np.zeros((1, drafter.max_model_len), np.int32)
    drafter.propose(drafter.k, [[0]], np.ones(1, np.int32), tokens)


def sample(
    sampled: Callable[[torch.Tensor | None, SpecDecodeMetadata | None], SamplerOutput],
    logits: torch.Tensor | None,
    drafts: SpecDecodeMetadata | None,
) -> SamplerOutput:
    """`sampled` is vLLM's own; `logits`: a row for each request and for each token of its draft."""
    return sampled(logits, drafts if drafts is not None and any(drafts.num_draft_tokens) else None)


def propose(
    proposed: Callable[..., list[list[int]]],
    tokens: int,
    sampled_token_ids: list[list[int]],
    *others: object,
    **named: object,
) -> list[list[int]]:
    """`proposed` is vLLM's own; `tokens`: of a draft."""
    if not tokens:
        return [[] for _ in sampled_token_ids]
    return proposed(tokens, sampled_token_ids, *others, **named)
