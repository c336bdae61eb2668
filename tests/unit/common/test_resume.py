"""What needs more than tokens to go on elsewhere, and which engines can give it."""

import pytest

from common.messages import Sampling, Structured, StructureKind
from common.resume import lacking

SCHEMA = Structured(kind=StructureKind.JSON_OBJECT)


@pytest.mark.parametrize(
    ("sampling", "what"),
    [
        (Sampling(max_tokens=9, seed=1), "seed"),
        (Sampling(max_tokens=9, presence_penalty=0.5), "penalties"),
        (Sampling(max_tokens=9, frequency_penalty=0.5), "penalties"),
        (Sampling(max_tokens=9, structured=SCHEMA), "schema"),
        (Sampling(max_tokens=9, bad_words=("x",)), "bad words"),
    ],
)
def test_what_an_engine_may_restore(sampling: Sampling, what: str) -> None:
    assert what in lacking(sampling, restores=False)
    assert not lacking(sampling, restores=True)


@pytest.mark.parametrize(
    ("sampling", "what"),
    [
        (Sampling(max_tokens=9, thinking_token_budget=5), "thinking"),
        (Sampling(max_tokens=9, structured=SCHEMA, reasoning_ended=False), "reasoning"),
    ],
)
def test_what_no_engine_restores(sampling: Sampling, what: str) -> None:
    assert what in lacking(sampling, restores=True)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=9, seed=1, temperature=0.0),
        Sampling(max_tokens=9, temperature=1.0),
        Sampling(max_tokens=9, repetition_penalty=1.5, logit_bias={1: 2.0}),
        Sampling(max_tokens=9, logprobs=2, prompt_logprobs=1),
        Sampling(max_tokens=9, allowed_token_ids=(1, 2), min_tokens=3),
    ],
)
def test_what_needs_nothing_but_tokens(sampling: Sampling) -> None:
    assert not lacking(sampling, restores=False)
