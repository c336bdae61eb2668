"""`task`: what makes no sense with a pooling model is refused by its key."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import from_mapping
from common.errors import ConfigError

TASKS = ("embed", "rerank", "classify")


def fleet(task: str, **more: Any) -> dict[str, Any]:
    model = {"path": "some/model", "task": task, **more.pop("model", {})}
    return {"model": model, "decode": {"d0": {}, "d1": {}}, **more}


@pytest.mark.parametrize("task", TASKS)
def test_decode_workers_alone_serve_a_pooling_model(task: str) -> None:
    config = from_mapping(fleet(task))
    assert config.model.pools
    assert not from_mapping(fleet("generate")).model.pools


def test_models_of_both_kinds_stand_in_one_file() -> None:
    models = {"chat": {"path": "baton-tiny"}, "vectors": {"path": "some/model", "task": "embed"}}
    decode = {"d0": {"model": "chat"}, "d1": {"model": "vectors"}}
    config = from_mapping(
        {"models": models, "decode": decode, "prefill": {"p0": {"model": "chat"}}}
    )
    assert [model.pools for model in config.served.values()] == [False, True]
    both = {"p0": {"model": "chat"}, "p1": {"model": "vectors"}}
    with pytest.raises(ConfigError, match=r"prefill\.p1: a pooling model hands no KV over"):
        from_mapping({"models": models, "decode": decode, "prefill": both})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"model": {"task": "sing"}}, "model.task"),
        ({"model": {"tool_parser": "hermes"}}, "model.tool_parser: .* makes no text"),
        ({"model": {"reasoning_parser": "qwen3"}}, "model.reasoning_parser: .* makes no text"),
        ({"model": {"text": "light"}}, "model.text: .* needs vLLM's classes"),
        ({"gateway": {"text": "light"}}, "model.text: .* needs vLLM's classes"),
        ({"prefill": {"p0": {}}}, r"prefill\.p0: a pooling model hands no KV over"),
        ({"decode": {"d0": {"state": "warm"}}}, r"decode\.d0\.state: workers of a pooling model"),
        ({"decode": {"d0": {"role": "mixed"}}}, r"decode\.d0\.role: a pooling model hands no KV"),
        ({"pool": {"s0": {"kv": {"store": {"ram_mib": 8}}}}}, r"pool\.s0: "),
        ({"adapters": {"sql": {"path": "/s"}}}, r"adapters\.sql: a pooling model has no adapters"),
        ({"engine": {"args": {"runner": "pooling"}}}, "`task` of the model says what it is for"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_key(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_mapping(fleet("embed", **more))
    if "task" not in more.get("model", {}) and "engine" not in more and "pool" not in more:
        from_mapping(fleet("generate", **more))
