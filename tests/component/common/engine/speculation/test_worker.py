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
