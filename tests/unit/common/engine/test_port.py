"""What an engine refuses before it has it: requests for another task, and prompts too long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.config import ModelConfig
from common.engine.port import EngineRequest, pooling_of
from common.errors import BatonError, Code
from common.messages import Pooling, Role, Sampling
from tests.rigs.messages import engine_info

EMBED, CLASSIFY = Pooling(task="embed"), Pooling(task="classify")
LIMIT = 64


def request(tokens: int, pooling: Pooling | None = None) -> EngineRequest:
    ids, sampling = list(range(tokens)), Sampling(max_tokens=0 if pooling else 1)
    return EngineRequest("r", 1, Role.DECODE, ids, sampling, pooling=pooling)


def refusal(engine: Pooling | None, asked: EngineRequest) -> BatonError:
    info = replace(engine_info(2), pooling=engine)
    with pytest.raises(BatonError) as refused:
        info.check(asked)
    return refused.value


@pytest.mark.parametrize(
    ("engine", "asked", "says"),
    [
        (None, EMBED, "for the task generate, not for embed"),
        (EMBED, None, "for the task embed, not for generate"),
        (EMBED, CLASSIFY, "for the task embed, not for classify"),
    ],
)
def test_a_request_for_another_task(
    engine: Pooling | None, asked: Pooling | None, says: str
) -> None:
    error = refusal(engine, request(3, asked))
    assert (error.code, error.param) == (Code.INVALID_REQUEST, "model")
    assert says in error.message
    replace(engine_info(2), pooling=asked).check(request(3, asked))


def test_what_is_wanted_of_a_vector_is_no_other_task() -> None:
    asked = Pooling(task="embed", dimensions=3, use_activation=False)
    replace(engine_info(2), pooling=EMBED).check(request(3, asked))


@pytest.mark.parametrize(("pooling", "most"), [(None, LIMIT - 1), (EMBED, LIMIT)])
def test_only_generation_needs_room_for_an_answer(pooling: Pooling | None, most: int) -> None:
    replace(engine_info(2), pooling=pooling).check(request(most, pooling))
    error = refusal(pooling, request(most + 1, pooling))
    assert error.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert f"the model takes {most}" in error.message
    assert error.message.endswith("of output") is (pooling is None)


def test_what_workers_of_a_model_compute() -> None:
    tasks = {"generate": None, "embed": EMBED, "rerank": CLASSIFY, "classify": CLASSIFY}
    assert {task: pooling_of(ModelConfig(task=task)) for task in tasks} == tasks  # type: ignore[arg-type]


def test_what_the_sampler_of_drafts_cannot_do_is_refused_by_name() -> None:
    sampling = Sampling(max_tokens=1, logprob_token_ids=(1, 2))
    asked = replace(request(3), sampling=sampling)
    engine_info(2).check(asked)
    drafting = replace(engine_info(2), speculation="ngram")
    drafting.check(request(3))
    with pytest.raises(BatonError, match=r"logprob_token_ids do not work .* ngram") as refused:
        drafting.check(asked)
    assert (refused.value.code, refused.value.param) == (
        Code.UNSUPPORTED_PARAMETER,
        "logprob_token_ids",
    )
