"""Logprobs as rows, whatever holds them; the mapping to vLLM's parameters is e2e's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from common.engine.vllm.sampling import logprobs_of, prompt_logprobs_of
from common.messages import TokenLogprobs

ROWS = [TokenLogprobs(2, [7, 9], [-1.5, -0.5]), TokenLogprobs(1, [8, 8], [-0.25, -0.25])]


def made(**fields: Any) -> Any:
    empty = {"new_logprobs": None, "new_prompt_logprobs_tensors": None}
    return SimpleNamespace(**empty | fields)


def arrays() -> tuple[Any, ...]:
    ids = np.array([row.token_ids for row in ROWS])
    values = np.array([row.logprobs for row in ROWS], np.float32)
    return ids, values, np.array([row.rank for row in ROWS])


def test_rows() -> None:
    assert logprobs_of(made(new_logprobs=(*arrays(), None))) == ROWS
    assert prompt_logprobs_of(made(new_prompt_logprobs_tensors=(*arrays(), None, None))) == ROWS


def test_none_where_none_were_asked_for() -> None:
    assert logprobs_of(made()) is None
    assert prompt_logprobs_of(made()) is None
