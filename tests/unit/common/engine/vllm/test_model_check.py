"""What of a fleet's engines does not fit its model is said before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.config import Config, from_mapping
from common.engine.vllm import model_check
from common.engine.vllm.model_check import check_model
from common.errors import ConfigError

LLAMA = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 8}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with all files that `load_format = "dummy"` needs."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def fleet(model: object, *, template: str = "", **engine: Any) -> Config:
    engine["args"] = {"load_format": "dummy", **engine.get("args", {})}
    return from_mapping(
        {
            "model": {"path": str(model), "chat_template": template},
            "decode": {"d0": {"engine": engine}},
        }
    )


def said(config: Config) -> str:
    with pytest.raises(ConfigError) as refused:
        check_model(config)
    return refused.value.message


@pytest.mark.parametrize("where", ["baton-tiny", ""])
def test_blocks_that_cpu_kernels_cannot_use_are_refused(
    model: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = where or model
    assert "engine.block_tokens: 16 is no multiple of 32" in said(fleet(path, block_tokens=16))
    check_model(fleet(path, block_tokens=64))
    check_model(fleet(path))
    monkeypatch.setattr(model_check, "_is_on_cpu", lambda: False)
    check_model(fleet(path, block_tokens=16))


def test_mtp_needs_a_model_that_has_such_layers(model: Path) -> None:
    drafting = from_mapping(
        {
            "model": {"path": str(model)},
            "decode": {
                "d0": {
                    "engine": {"args": {"load_format": "dummy"}},
                    "speculation": {"method": "mtp"},
                }
            },
        }
    )
    assert 'decode.d0.speculation.method: "mtp" needs a model with MTP layers' in said(drafting)
    for layers in ({"num_nextn_predict_layers": 1}, {"text_config": {"mtp_num_hidden_layers": 1}}):
        (model / "config.json").write_text(json.dumps(LLAMA | layers))
        check_model(drafting)
    (model / "config.json").write_text(json.dumps(LLAMA | {"num_nextn_predict_layers": 0}))
    assert "needs a model with MTP layers" in said(drafting)


def test_vllm_chooses_the_blocks_of_latent_attention(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(LLAMA | {"kv_lora_rank": 512}))
    check_model(fleet(model, block_tokens=16))


@pytest.mark.parametrize("inside", [False, True])
def test_ranks_that_cannot_share_the_heads_are_refused(model: Path, inside: bool) -> None:
    if inside:
        told = {"architectures": LLAMA["architectures"], "text_config": LLAMA}
        (model / "config.json").write_text(json.dumps(told))
    check_model(fleet(model, args={"tensor_parallel_size": 4}))
    sentence = said(fleet(model, args={"tensor_parallel_size": 3}))
    assert "cannot be 3: the model has 8 attention heads; use 1, 2, 4 or 8" in sentence


def test_overrides_are_looked_at_too(model: Path) -> None:
    overrides = {"architectures": ["BertModel"]}
    assert "BertModel is an embedding" in said(fleet(model, args={"hf_overrides": overrides}))
    inside = {"text_config": {"is_encoder_decoder": True}}
    assert "has an encoder" in said(fleet(model, args={"hf_overrides": inside}))


def test_a_tokenizer_and_a_template_elsewhere_are_looked_at(model: Path) -> None:
    (model / "elsewhere").mkdir()
    elsewhere = {"tokenizer": str(model / "elsewhere")}
    assert "elsewhere has no tokenizer.json" in said(fleet(model, args=elsewhere))
    (model / "tokenizer.json").rename(model / "elsewhere" / "tokenizer.json")
    check_model(fleet(model, args=elsewhere))
    sentence = said(fleet(model, template="/no/such.jinja", args=elsewhere))
    assert "model.chat_template: there is no file /no/such.jinja; leave it out" in sentence


def test_a_revision_is_of_a_cached_id_only(model: Path) -> None:
    sentence = said(fleet(model, args={"revision": "v2"}))
    assert "engine.args.revision" in sentence
    assert "leave it out" in sentence
    wanted = said(fleet("nobody/nothing", args={"revision": "v2"}))
    assert "fetch it first with `hf download nobody/nothing --revision v2`" in wanted


def test_a_cached_revision_is_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(model / "hub"))
    repository = model / "hub" / "models--some--model"
    for revision, heads in (("main", 8), ("v2", 6)):
        commit = f"{heads}" * 40
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps(LLAMA | {"num_attention_heads": heads}))
        (snapshot / "tokenizer.json").write_text("{}")
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / revision).write_text(commit)
    check_model(fleet("some/model", args={"tensor_parallel_size": 4}))
    sentence = said(fleet("some/model", args={"tensor_parallel_size": 4, "revision": "v2"}))
    assert "the model has 6 attention heads" in sentence
