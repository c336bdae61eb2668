"""What an engine that drafts does when it starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def test_the_search_of_n_grams_is_compiled_at_the_start() -> None:
    from vllm.v1.spec_decode import ngram_proposer

    from common.engine.speculation.worker import compile_search

    made: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=1, prompt_lookup_max=5, num_speculative_tokens=4
        ),
        model_config=SimpleNamespace(max_model_len=64),
        scheduler_config=SimpleNamespace(max_num_seqs=2),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    drafter = ngram_proposer.NgramProposer(made)
    compile_search(drafter)
    compiled = list(ngram_proposer.batch_propose_numba.signatures)
    tokens = np.array([[5, 6, 7, 5, 6, 0], [1, 2, 3, 4, 5, 6]], np.int32)
    drafts = drafter.propose(2, [[6], [6]], np.array([5, 6], np.int32), tokens)
    assert drafts == [[7, 5], []]
    assert ngram_proposer.batch_propose_numba.signatures == compiled != []


def test_drafts_of_no_tokens_are_not_searched_for() -> None:
    from common.engine.speculation.worker import propose

    def search(tokens: int, sampled: list[list[int]], *_: object) -> list[list[int]]:
        assert tokens == 2
        return [[7, 7] for _ in sampled]

    assert propose(search, 0, [[1], [], [3]], "tokens", "ids") == [[], [], []]
    assert propose(search, 2, [[1], [2]], "tokens", "ids") == [[7, 7], [7, 7]]


def test_a_step_without_drafts_is_sampled_as_on_an_engine_that_does_not_speculate() -> None:
    from common.engine.speculation.worker import sample

    def seen(_: object, drafts: Any) -> Any:
        return drafts

    for counts, kept in (([0, 0], False), ([0, 2], True), ([], False)):
        drafts: Any = SimpleNamespace(num_draft_tokens=counts)
        assert sample(seen, None, drafts) is (drafts if kept else None)
    assert sample(seen, None, None) is None
