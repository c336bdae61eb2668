"""Logprobs as rows, whatever holds them; the mapping to vLLM's parameters is e2e's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from common.engine.vllm.sampling import logprobs_of, pooled_of, prompt_logprobs_of
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


class Tensor:
    """As much of torch's as is used, on `numbers` of any type."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def float(self) -> Tensor:
        return Tensor(self.numbers.astype(np.float32))

    def reshape(self, size: int) -> Tensor:
        return Tensor(self.numbers.reshape(size))

    def numpy(self) -> Any:
        return self.numbers


def test_what_was_made_of_a_prompt_is_float32_whatever_the_model_computes_in() -> None:
    tensor = Tensor(np.array([[0.5, -2.0]], np.float16))
    assert np.frombuffer(pooled_of(made(pooling_output=tensor)), "<f4").tolist() == [0.5, -2.0]
