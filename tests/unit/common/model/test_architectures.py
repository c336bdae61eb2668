"""A model that generates no text is refused by its architecture, with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from common.model import architectures
from common.model.architectures import (
    GENERATING,
    REGISTRY,
    why_not_pooled,
    why_not_served,
)
from common.model.vllm_source import literal_tables

OWN_CODE = {
    "AutoConfig": "configuration_own.Own",
    "AutoModel": "modeling_own.OwnModel",
    "AutoModelForCausalLM": "modeling_own.Own",
}
NO_BASE = {key: place for key, place in OWN_CODE.items() if key != "AutoModel"}
OWN_FILES = ["config.json", "configuration_own.py", "modeling_own.py"]


def said(name: str, *, trusted: bool = False, files: list[str] | None = None, **more: Any) -> str:
    config = {"architectures": [name] if name else [], **more}
    return why_not_served(config, trusted=trusted, files=files or ["config.json"])


@pytest.mark.parametrize("table", GENERATING)
def test_architectures_that_generate_text_are_taken(table: str) -> None:
    names = list(literal_tables("vllm", REGISTRY)[table])
    assert len(names) > 20
    for name in (names[0], names[len(names) // 2], names[-1]):
        assert said(name) == ""


@pytest.mark.parametrize(
    ("name", "more", "sentence"),
    [
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "has an encoder"),
        ("Own", {"text_config": {"is_encoder_decoder": True}}, "name a decoder-only model"),
        ("BertModel", {}, "BertModel is an embedding model, which makes no text"),
        ("BertModel", {}, 'set task = "embed" for it under [model]'),
        ("BertForSequenceClassification", {}, 'set task = "classify" or "rerank" for it'),
        ("Qwen3Model", {}, 'set task = "embed"'),
        ("LlamaForCausalLM", {"files": ["modules.json"]}, 'set task = "embed"'),
        ("Qwen3Model", {}, "is an embedding model"),
        ("LlamaForSequenceClassification", {}, "is a classification model"),
        ("BertForTokenClassification", {}, "is a classification model"),
        ("Qwen2ForRewardModel", {}, "is a reward model"),
        ("HF_ColBERT", {}, "is a retrieval model"),
        ("EagleLlamaForCausalLM", {}, "name the model that it drafts for"),
        ("LlamaForCausalLM", {"speculators_config": {}}, "name the model that it drafts for"),
        ("LlamaForCausalLM", {"files": ["modules.json"]}, "sentence-transformers"),
        ("MPTForCausalLM", {}, "until 0.28.0 and no longer does"),
        ("BartModel", {}, "only with a plugin (https://"),
        ("GPTNeoForCausalLM", {"model_type": "gpt_neo"}, "cannot use vLLM's attention"),
        ("LLamaForCausalLM", {}, "'LLamaForCausalLM' (LlamaForCausalLM is known)"),
        ("OwnForCausalLM", {}, "know no architecture 'OwnForCausalLM'"),
        ("", {}, "names no `architectures`"),
        ("OwnForCausalLM", {"auto_map": OWN_CODE}, "set `trust_remote_code = true`"),
        ("LlamaForCausalLM", {"auto_map": OWN_CODE, "model_type": "own"}, "if you trust that code"),
        (
            "OwnForCausalLM",
            {"auto_map": OWN_CODE, "trusted": True, "files": OWN_FILES[:2]},
            "names code that is not there: modeling_own.py",
        ),
        (
            "OwnForCausalLM",
            {"auto_map": NO_BASE, "trusted": True, "files": OWN_FILES},
            "`auto_map` in config.json does not name",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_way_out(
    name: str, more: dict[str, Any], sentence: str
) -> None:
    assert sentence in said(name, **more)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("OwnForCausalLM", {"auto_map": OWN_CODE, "trusted": True, "files": OWN_FILES}),
        ("OwnForCausalLM", {"auto_map": {"AutoModel": "a/b--own.Own"}, "trusted": True}),
        ("LlamaForCausalLM", {"auto_map": OWN_CODE, "model_type": "llama"}),
        ("LlamaForCausalLM", {"auto_map": NO_BASE, "trusted": True, "files": OWN_FILES}),
        ("DeepseekV32ForCausalLM", {"auto_map": OWN_CODE, "model_type": "deepseek_v32"}),
        ("HeliumForCausalLM", {"model_type": "helium"}),
        ("Gemma2Model", {"architectures": ["Gemma2Model", "Gemma2ForCausalLM"]}),
    ],
)
def test_what_vllm_runs_all_the_same_is_taken(name: str, more: dict[str, Any]) -> None:
    assert said(name, **more) == ""


def test_a_plugin_may_bring_any_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "_has_plugins", lambda: True)
    assert said("OwnForCausalLM") == ""
    assert "embedding" in said("BertModel")


def test_without_vllm_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "literal_tables", lambda *_: {})
    assert said("BertModel") == ""


def pooled(name: str, *, trusted: bool = False, files: list[str] | None = None, **more: Any) -> str:
    config = {"architectures": [name] if name else [], **more}
    return why_not_pooled(config, trusted=trusted, files=files or ["config.json"])


@pytest.mark.parametrize(
    "name", ["BertModel", "BertForSequenceClassification", "Qwen3ForCausalLM", "Qwen3Model"]
)
def test_with_a_task_models_of_any_purpose_are_taken(name: str) -> None:
    assert pooled(name, files=["config.json", "modules.json"]) == ""


@pytest.mark.parametrize(
    ("name", "more", "sentence"),
    [
        ("", {}, "names no `architectures`"),
        ("T5Model", {"is_encoder_decoder": True}, "has an encoder beside its decoder"),
        ("OwnModel", {"auto_map": OWN_CODE}, "set `trust_remote_code = true`"),
    ],
)
def test_what_cannot_be_pooled(name: str, more: dict[str, Any], sentence: str) -> None:
    assert sentence in pooled(name, **more)
