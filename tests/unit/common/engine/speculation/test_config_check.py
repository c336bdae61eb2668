"""`[speculation]`: decode workers take it over, and what cannot work is refused by its key."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import from_mapping, parse
from common.errors import ConfigError

NGRAM = {"method": "ngram"}
DRAFTER = {"method": "draft_model", "drafter": "/models/small"}
EAGLE = {"method": "eagle", "drafter": "/models/head"}
EAGLE_3 = {"method": "eagle3", "drafter": "/models/head"}
MTP = {"method": "mtp"}


def fleet(speculation: dict[str, Any], **more: Any) -> dict[str, Any]:
    worker = {"speculation": speculation, "engine": more.pop("engine", {})}
    return {"decode": {"d0": worker}, **more}


def test_decode_workers_take_the_section_over_and_prefill_workers_do_not() -> None:
    config = parse(
        '[speculation]\nmethod = "ngram"\ntokens = 3\n[prefill.p0]\n[decode.d0]\n'
        "[decode.d1.speculation]\ntokens = 6\n[decode.d2.speculation]\nmethod = 'none'\n"
    )
    taken = {name: worker.speculation for name, worker in config.decode.items()}
    assert [(one.method, one.tokens) for one in taken.values()] == [
        ("ngram", 3),
        ("ngram", 6),
        ("none", 3),
    ]
    assert config.prefill["p0"].speculation.method == "none"


def test_prefill_workers_take_a_draft_model_whose_kv_is_handed_over() -> None:
    section = '[speculation]\nmethod = "draft_model"\ndrafter = "/m"\n'
    workers = "[prefill.p0]\n[decode.d0]\n"
    assert parse(section + workers).prefill["p0"].speculation.method == "none"
    config = parse(section + "hand_over = true\n" + workers)
    assert config.prefill["p0"].speculation == config.decode["d0"].speculation
    assert config.prefill["p0"].speculation.drafter == "/m"


def test_a_step_makes_a_draft_and_one_more() -> None:
    config = from_mapping(fleet(NGRAM | {"tokens": 3}))
    assert config.decode["d0"].speculation.step_tokens == 4
    assert from_mapping(fleet({"tokens": 3})).decode["d0"].speculation.step_tokens == 1


@pytest.mark.parametrize(
    ("speculation", "after"),
    [
        ({}, "none"),
        (NGRAM, "none"),
        (DRAFTER, "all"),
        (EAGLE, "all"),
        (EAGLE_3, "all"),
        (MTP, "all"),
        (EAGLE | {"hand_over": True}, "canonical"),
        (MTP | {"hand_over": True}, "canonical"),
    ],
)
def test_a_drafter_with_kv_starts_cold_unless_it_is_handed_over(
    speculation: dict[str, Any], after: str
) -> None:
    config = from_mapping(fleet(speculation))
    assert config.decode["d0"].speculation.cold_after == after


@pytest.mark.parametrize(
    "speculation",
    [
        {},
        NGRAM,
        DRAFTER,
        {"method": "suffix"},
        EAGLE,
        EAGLE_3,
        EAGLE | {"hand_over": True},
        MTP,
        MTP | {"hand_over": True, "batch_max": 8},
    ],
)
def test_what_may_work_is_taken(speculation: dict[str, Any]) -> None:
    from_mapping(fleet(speculation))


@pytest.mark.parametrize(
    ("speculation", "more", "says"),
    [
        (
            {"method": "medusa"},
            {},
            r"method: .*allowed: 'none', .*'draft_model', 'eagle', 'eagle3'",
        ),
        (MTP | {"drafter": "/m"}, {}, r"drafter: mtp drafts with the model's own layers"),
        ({"method": "suffix", "batch_max": 8}, {}, r"batch_max: .*cannot be switched off"),
        ({"method": "draft_model"}, {}, r"d0\.speculation\.drafter: draft_model needs the folder"),
        ({"method": "eagle"}, {}, r"d0\.speculation\.drafter: eagle needs the folder"),
        (NGRAM | {"drafter": "/m"}, {}, r"drafter: ngram drafts without a model"),
        (NGRAM | {"ngram_min": 3, "ngram_max": 2}, {}, r"ngram_min: 3 is more than ngram_max, 2"),
        (NGRAM | {"tokens": 0}, {}, r"tokens"),
        (NGRAM, {"model": {"task": "embed"}}, r"method: a pooling model makes no text"),
        (
            NGRAM,
            {"engine": {"args": {"logprobs_mode": "processed_logits"}}},
            r'args\.logprobs_mode: cannot be "processed_logits" with speculation\.method = "ngram"',
        ),
        (
            NGRAM,
            {"engine": {"args": {"tensor_parallel_size": 2}}},
            r'tensor_parallel_size: speculation \("ngram"\) was tried on one rank only',
        ),
        (NGRAM, {"engine": {"args": {"enable_lora": True}}}, r'"ngram" was never tried with LoRA'),
        (NGRAM, {"adapters": {"a": {"path": "/a"}}}, r'"ngram" was never tried with LoRA'),
        (NGRAM, {"engine": {"args": {"worker_cls": "a.B"}}}, r"worker_cls: is set by Baton"),
        (NGRAM, {"engine": {"args": {"scheduler_cls": "a.B"}}}, r"scheduler_cls: is set by Baton"),
        (NGRAM, {"engine": {"args": {"async_scheduling": True}}}, r"async_scheduling: is set by"),
        (NGRAM, {"engine": {"args": {"pipeline_parallel_size": 2}}}, r"pipeline_parallel_size"),
        (NGRAM, {"engine": {"args": {"speculative_config": NGRAM}}}, r"use \[speculation\]"),
        ({}, {"prefill": {"p0": {"speculation": NGRAM}}}, r"prefill\.p0\.speculation: .*leave it"),
        (
            {},
            {"prefill": {"p0": {"speculation": DRAFTER}}},
            r"prefill\.p0\.speculation: .*leave it",
        ),
        (NGRAM | {"hand_over": True}, {}, r"hand_over: ngram has no KV of its own"),
        (
            {},
            {"prefill": {"p0": {"speculation": {**NGRAM, "hand_over": True}}}},
            r"prefill\.p0\.speculation\.hand_over: ngram",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    speculation: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        from_mapping(fleet(speculation, **dict(more)))


def test_a_raw_mode_and_one_rank_are_no_obstacles() -> None:
    arguments = {"logprobs_mode": "raw_logits", "tensor_parallel_size": 1}
    from_mapping(fleet(NGRAM, engine={"args": arguments}))
