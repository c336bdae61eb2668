"""The light text layer: what it reads from a model's folder, and its chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors

from common.config import from_mapping
from common.errors import BatonError, Code, ConfigError
from common.model.byte_tokenizer import build_tokenizer
from services.gateway.text.light import LightText, light_text
from services.gateway.text.port import SamplingDefaults


def folder(tmp_path: Path, config: dict[str, Any], *, bos_in_processor: bool = False) -> Path:
    tokenizer = build_tokenizer()
    if bos_in_processor:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", 256)]
        )
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|bos|>", **config}))
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 300, "max_position_embeddings": 77})
    )
    return tmp_path


USER = [{"role": "user", "content": "hi"}]


def test_the_embedded_model(light: LightText) -> None:
    text = light.render_chat(USER)
    ids = light.tokenize(text, add_special_tokens=False)
    assert ids == [256, 260, *b"hi", 257, 261]
    assert light.detokenizer(ids).push(ids) == "hi"


def test_sizes_and_defaults(tmp_path: Path) -> None:
    here = folder(tmp_path, {})
    (here / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "x": 1}')
    light = LightText(here)
    assert (light.vocab_size, light.context) == (300, 77)
    assert light.defaults == SamplingDefaults(temperature=0.6, top_k=20)


@pytest.mark.parametrize("in_processor", [False, True])
@pytest.mark.parametrize("asked", [None, True, False])
def test_bos_is_added_once_and_only_to_completions(
    tmp_path: Path, in_processor: bool, asked: bool | None
) -> None:
    config = {} if asked is None else {"add_bos_token": asked}
    light = LightText(folder(tmp_path, config, bos_in_processor=in_processor))
    expected = [256] if in_processor or asked is True else []
    assert light.tokenize("a", add_special_tokens=True) == [*expected, 97]
    assert light.tokenize("a", add_special_tokens=False) == [97]


def test_a_template_file_goes_before_the_configs(tmp_path: Path) -> None:
    here = folder(tmp_path, {"chat_template": "config"})
    assert LightText(here).render_chat(USER) == "config"
    (here / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert LightText(here).render_chat(USER) == "file <|bos|>"


def test_a_list_of_named_templates(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert LightText(folder(tmp_path, {"chat_template": templates})).render_chat(USER) == "d"


def test_tokens_written_as_objects(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<|eos|>"}, "chat_template": "{{ eos_token }}"}
    assert LightText(folder(tmp_path, config)).render_chat(USER) == "<|eos|>"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}\n  {{- m['role'] }}\n{% endfor %}", "user\n"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% for m in [1, 2] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% if tools is none and add_generation_prompt %}ok{% endif %}", "ok"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_what_templates_use(tmp_path: Path, template: str, expected: str) -> None:
    assert LightText(folder(tmp_path, {"chat_template": template})).render_chat(USER) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ nothing.at.all }}", "nothing"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_is_the_clients_400(
    tmp_path: Path, template: str, message: str
) -> None:
    light = LightText(folder(tmp_path, {"chat_template": template}))
    with pytest.raises(BatonError, match=message) as refused:
        light.render_chat(USER)
    assert (refused.value.code, refused.value.param) == (Code.INVALID_REQUEST, "messages")


def test_no_template_at_all(tmp_path: Path) -> None:
    with pytest.raises(BatonError, match="/v1/completions"):
        LightText(folder(tmp_path, {})).render_chat(USER)


@pytest.mark.parametrize("broken", ["no file", "no json", "template"])
def test_an_unusable_folder_is_fatal_in_one_sentence(tmp_path: Path, broken: str) -> None:
    here = folder(tmp_path, {"chat_template": "{% if %}"} if broken == "template" else {})
    if broken == "no file":
        (here / "tokenizer.json").unlink()
    if broken == "no json":
        (here / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError):
        LightText(here)


def test_tokens_min_is_a_lower_bound(tmp_path: Path) -> None:
    here = folder(tmp_path, {})
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken("abcdefgh")])
    (here / "tokenizer.json").write_text(tokenizer.to_str())
    light = LightText(here)
    for text in ("", "abcdefgh" * 5, "x" * 40, "é" * 9):
        assert light.tokens_min(text) <= len(light.tokenize(text, add_special_tokens=False))


def test_a_model_with_a_vision_tower_takes_images(tmp_path: Path) -> None:
    model = folder(tmp_path, {})
    assert not LightText(model).takes_images
    (model / "config.json").write_text(json.dumps({"vision_config": {}, "vocab_size": 300}))
    assert LightText(model).takes_images


def asked(here: Path, **arguments: object) -> LightText:
    """As the fleet's file says it, with engine arguments."""
    worker = {"engine": {"args": arguments}}
    model = {"path": str(here), "chat_template": ""}
    return light_text(from_mapping({"model": model, "decode": {"d0": worker}}))


def test_engine_arguments_that_concern_text_are_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = folder(tmp_path, {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "generation_config.json").write_text('{"top_p": 0.1}')
    (here / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    (here / "other").mkdir()
    (here / "other" / "generation_config.json").write_text('{"top_p": 0.5}')
    assert asked(here).defaults == SamplingDefaults(temperature=0.6, top_k=20)
    assert asked(here, generation_config="vllm").defaults == SamplingDefaults()
    other = str(here / "other")
    assert asked(here, generation_config=other).defaults == SamplingDefaults(top_p=0.5)
    over = asked(here, override_generation_config={"temperature": 0.1}).defaults
    assert over == SamplingDefaults(temperature=0.1, top_k=20)
    assert asked(here, hf_overrides={"max_position_embeddings": 9}).context == 9


def test_a_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    here = folder(tmp_path, {"chat_template": "elsewhere"})
    (here / "elsewhere").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (here / name).rename(here / "elsewhere" / name)
    text = asked(here, tokenizer=str(here / "elsewhere"))
    assert text.tokenize("a", add_special_tokens=False) == [97]
    assert text.render_chat(USER) == "elsewhere"
    assert text.context == 77
    with pytest.raises(ConfigError, match=r"engine\.args\.tokenizer: no tokenizer at 'none'"):
        asked(here, tokenizer="none")


def test_a_template_of_the_fleet_file_comes_first(tmp_path: Path) -> None:
    here = folder(tmp_path, {"chat_template": "the model's"})
    template = tmp_path / "own.jinja"
    template.write_text("{{ bos_token }}{{ messages[0].content }}")
    model = {"path": str(here), "chat_template": str(template)}
    assert light_text(from_mapping({"model": model})).render_chat(USER) == "<|bos|>hi"
    template.unlink()
    with pytest.raises(ConfigError, match=r"model\.chat_template: .*own\.jinja cannot be read"):
        light_text(from_mapping({"model": model}))
