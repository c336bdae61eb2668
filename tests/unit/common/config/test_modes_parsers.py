"""The names of parsers are checked when the fleet file is read."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import from_mapping, modes
from common.errors import ConfigError
from common.model.parsers import REASONING, TOOL


def read(**model: str) -> Any:
    return from_mapping({"model": model})


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[Any, tuple[str, ...]]:
    """What vLLM has here."""
    known: dict[Any, tuple[str, ...]] = {TOOL: ("hermes", "xlam"), REASONING: ("qwen3",)}
    monkeypatch.setattr(modes, "known_parsers", lambda where: known[where])
    return known


def test_known_names_and_no_names_are_taken(names: object) -> None:
    read()
    read(tool_parser="hermes", reasoning_parser="qwen3")


@pytest.mark.parametrize(
    ("key", "name", "allowed"),
    [("tool_parser", "hermess", "hermes, xlam"), ("reasoning_parser", "hermes", "qwen3")],
)
def test_an_unknown_name_is_refused_with_the_known_ones(
    names: object, key: str, name: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read(**{key: name})
    assert raised.value.param == f"model.{key}"
    assert raised.value.message == (f"model.{key}: vLLM has no parser {name!r}; allowed: {allowed}")


def test_without_vllm_no_name_is_refused(names: dict[Any, tuple[str, ...]]) -> None:
    names[TOOL] = names[REASONING] = ()
    read(tool_parser="hermess", reasoning_parser="qwen")


def test_a_gateway_that_loads_no_parser_is_refused(names: object) -> None:
    with pytest.raises(ConfigError, match='"light" cannot parse reasoning'):
        from_mapping({"model": {"reasoning_parser": "qwen3"}, "gateway": {"text": "light"}})
    with pytest.raises(ConfigError, match='"light" cannot parse reasoning'):
        from_mapping({"model": {"reasoning_parser": "qwen3", "text": "light"}})
    model = {"reasoning_parser": "qwen3", "text": "auto"}
    assert from_mapping({"model": model, "gateway": {"text": "light"}}).model.text == "auto"
