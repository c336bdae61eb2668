"""`[adapters.NAME]`: names that clash, bases that do not exist, and whose adapters are whose."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import from_mapping
from common.errors import ConfigError

TWO = {"chat": {"path": "baton-tiny", "aliases": ["talk"]}, "code": {"path": "baton-tiny"}}
WORKERS = {"decode": {"d0": {"model": "chat"}, "d1": {"model": "code"}}}


def adapters(**tables: Any) -> dict[str, Any]:
    return {"adapters": tables}


def test_each_model_has_its_own() -> None:
    given = adapters(sql={"path": "/s", "base": "code"}, law={"path": "/l", "base": "chat"})
    config = from_mapping({"models": TWO, **WORKERS, **given})
    assert list(config.of_model("chat").model_adapters) == ["law"]
    assert list(config.of_model("code").model_adapters) == ["sql"]


@pytest.mark.parametrize("base", ["", "baton-tiny"])
def test_the_only_model_need_not_be_named(base: str) -> None:
    config = from_mapping({"decode": {"d0": {}}, **adapters(sql={"path": "/s", "base": base})})
    assert list(config.model_adapters) == ["sql"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (adapters(sql={"path": "/s"}), "adapters.sql.base: says no model (there: chat, code)"),
        (adapters(sql={"path": "/s", "base": "x"}), "adapters.sql.base: there is no model 'x'"),
        (adapters(chat={"path": "/s", "base": "chat"}), "adapters.chat: a model has this name"),
        (adapters(talk={"path": "/s", "base": "chat"}), "adapters.talk: a model has this name"),
        (adapters(**{"a@b": {"path": "/s", "base": "chat"}}), "printable characters without an @"),
        (adapters(sql={"base": "chat"}), "adapters.sql: Object missing required field path"),
        (adapters(sql={"path": "/s", "rank": 8}), "unknown key 'rank'; allowed: path, base"),
        (
            {"adapters": {f"a{n}": {"path": "/s", "base": "chat"} for n in range(129)}},
            "adapters: has 129; a worker takes 128",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_key(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_mapping({"models": TWO, **WORKERS, **given})
    assert says in refused.value.message
