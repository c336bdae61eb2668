"""Which requests get drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from common.engine.port import EngineRequest
from common.engine.vllm.sampling import sampling_params
from common.messages import Role, Sampling, Structured, StructureKind

if TYPE_CHECKING:
    from vllm import SamplingParams

REGEX = Structured(kind=StructureKind.REGEX, source="[a-z]+")


def params(emitted: int = 0, **asked: Any) -> SamplingParams:
    sampling = Sampling(max_tokens=8, **asked)
    request = EngineRequest("r", 1, Role.DECODE, [1, 2, 3], sampling, emitted=emitted)
    return sampling_params(request, resume_sampler=True)


def gets_drafts(asked: SamplingParams | None) -> bool:
    """vLLM is imported when tests run, and not when they are collected."""
    from common.engine.speculation import scheduler

    return scheduler.gets_drafts(asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.0, "frequency_penalty": 0.5},
        {"temperature": 0.0, "min_tokens": 3, "logprobs": 2},
        {"temperature": 0.0, "structured": REGEX},
        {"temperature": 0.0, "emitted": 2},
        {"temperature": 0.0, "emitted": 2, "structured": REGEX},
    ],
)
def test_what_the_sampler_of_drafts_does_exactly_gets_drafts(asked: dict[str, Any]) -> None:
    assert gets_drafts(params(**asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.0, "frequency_penalty": 0.5, "emitted": 2},
        {"temperature": 0.0, "bad_words": ("no",), "emitted": 2},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 0.0, "logit_bias": {3: 1.0}},
        {"temperature": 0.0, "thinking_token_budget": 5},
    ],
)
def test_what_it_does_not_gets_none(asked: dict[str, Any]) -> None:
    assert not gets_drafts(params(**asked))


def test_what_is_not_sampled_gets_none() -> None:
    assert not gets_drafts(None)


def test_drafts_of_such_requests_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    from common.engine.speculation.scheduler import SpeculatingScheduler

    def given(self: Any, drafts: Any) -> None:
        for name, ids in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            if name in self.requests:
                self.requests[name].spec_token_ids = ids

    monkeypatch.setattr(Scheduler, "update_draft_token_ids", given)
    scheduler = SpeculatingScheduler.__new__(SpeculatingScheduler)
    asked = {"greedy": params(temperature=0.0), "seeded": params(temperature=1.0, seed=3)}
    requests: dict[str, Any] = {
        name: SimpleNamespace(sampling_params=one, spec_token_ids=[]) for name, one in asked.items()
    }
    scheduler.requests = requests
    drafts: Any = SimpleNamespace(
        req_ids=["greedy", "seeded", "over"], draft_token_ids=[[5, 6], [7, 8], [9]]
    )
    scheduler.update_draft_token_ids(drafts)
    assert {name: one.spec_token_ids for name, one in requests.items()} == {
        "greedy": [5, 6],
        "seeded": [],
    }
