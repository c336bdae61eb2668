"""A fleet file with several models: which worker serves which, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common import config as configuration
from common.config import Config, from_mapping
from common.errors import ConfigError
from common.messages import Role

TWO: dict[str, Any] = {
    "models": {"chat": {"path": "a/chat"}, "code": {"path": "a/code", "name": "coder"}},
    "prefill": {"p0": {"model": "chat"}, "p1": {"model": "code"}},
    "decode": {"d0": {"model": "chat"}, "d1": {"model": "code"}},
}
FILE = """
[engine.args]
max_logprobs = 5
[models.chat]
path = "a/chat"
[models.chat.args]
revision = "one"
[models.code]
path = "a/code"
[models.code.args]
max_logprobs = 9
[decode.d0]
model = "chat"
[decode.d1]
model = "code"
[decode.d1.engine.args]
enforce_eager = true
"""


def changed(**sections: Any) -> Config:
    return from_mapping(TWO | sections)


def test_each_worker_serves_the_model_that_it_names() -> None:
    config = changed()
    assert {name: model.path for name, model in config.served.items()} == {
        "chat": "a/chat",
        "coder": "a/code",
    }
    assert config.model.served_name == "chat"
    assert config.of_worker(Role.DECODE, "d1").model.served_name == "coder"
    assert config.of_model("coder").model.path == "a/code"
    with pytest.raises(ConfigError, match="no such worker"):
        config.of_worker(Role.PREFILL, "d0")


def test_a_fleet_with_one_model_names_it_nowhere() -> None:
    config = from_mapping({"model": {"path": "a/b"}, "decode": {"d0": {}}})
    assert list(config.served) == ["b"]
    assert config.of_worker(Role.DECODE, "d0") == config.of_model("b") == config
    alone = from_mapping({"models": {"b": {"path": "a/x"}}, "decode": {"d0": {}}})
    assert alone.of_worker(Role.DECODE, "d0").model.served_name == "b"


def test_a_model_says_its_text_its_answers_length_and_its_prices_over_those_of_the_fleet() -> None:
    coder = {"text": "light", "default_max_tokens": 64, "prices": {"decode": 3.0}}
    config = changed(
        models={"chat": {"path": "a/chat"}, "code": {"path": "a/code"} | coder},
        gateway={"text": "vllm", "default_max_tokens": 512},
        prices={"prefill": 1.0, "decode": 8.0, "currency": "EUR"},
    )
    chat, code = config.of_model("chat"), config.of_model("code")
    assert (chat.gateway.text, chat.gateway.default_max_tokens) == ("vllm", 512)
    assert (code.gateway.text, code.gateway.default_max_tokens) == ("light", 64)
    assert (chat.prices.decode, code.prices.decode) == (8.0, 3.0)
    assert (code.prices.prefill, code.prices.currency) == (1.0, "EUR")
    assert config.of_worker(Role.DECODE, "d1") == code
    with pytest.raises(ConfigError, match=r"^models.code.*'decoded'"):
        changed(models={"chat": {}, "code": {"prices": {"decoded": 3.0}}})


def test_engine_arguments_of_a_model_are_over_those_of_all_and_under_the_workers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    config = configuration.load(path, {})
    assert config.decode["d0"].engine.args == {"max_logprobs": 5, "revision": "one"}
    assert config.decode["d1"].engine.args == {"max_logprobs": 9, "enforce_eager": True}
    assert config.of_model("chat").model_args == {"max_logprobs": 5, "revision": "one"}
    shown = dict(configuration.flatten(config))
    assert shown["models.code.path"] == "a/code"
    assert not any(key.startswith("model.") for key in shown)


def test_workers_of_two_models_may_differ_where_those_of_one_may_not() -> None:
    args = {"engine": {"args": {"max_logprobs": 9}}}
    changed(decode={"d0": {"model": "chat"}, "d1": {"model": "code"} | args}, prefill={})
    with pytest.raises(ConfigError, match=r"decode\.d1\.engine.*all workers must compute"):
        changed(decode={"d0": {"model": "chat"}, "d1": {"model": "chat"} | args}, prefill={})


@pytest.mark.parametrize(
    ("sections", "key", "sentence"),
    [
        ({"model": {"path": "x"}}, "model", "the file has [models.NAME], too"),
        ({"decode": {"d0": {"model": "nope"}}}, "decode.d0.model", "(there: chat, code)"),
        ({"decode": {"d0": {}}}, "decode.d0.model", "says no model, and the file has several"),
        ({"models": {"a": {"name": "x"}, "b": {"name": "x"}}}, "models", "have the name 'x'"),
        ({"models": {"a": {"pth": "x"}}}, "models.a", "unknown key 'pth'"),
        ({"models": {"a\n": {}}}, "models.'a\\n'", "1 to 64 printable characters"),
        ({"models": {"n" * 65: {}}}, f"models.'{'n' * 64}'", "1 to 64 printable characters"),
    ],
)
def test_what_cannot_be_meant_is_refused(sections: dict[str, Any], key: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        changed(**({"prefill": {}, "decode": {}} | sections))
    assert raised.value.param == key
    assert sentence in raised.value.message


def test_a_worker_cannot_name_a_model_where_the_file_has_one() -> None:
    with pytest.raises(ConfigError, match="no such model in the file"):
        from_mapping({"decode": {"d0": {"model": "baton-tiny"}}})


def test_single_is_one_decode_worker_of_each_model() -> None:
    changed(prefill={}, router={"mode": "single"})
    more = {"d0": {"model": "chat"}, "d1": {"model": "chat"}}
    with pytest.raises(ConfigError, match="single is exactly one decode worker"):
        changed(prefill={}, router={"mode": "single"}, decode=more)


def test_a_decode_worker_may_be_warm_and_a_prefill_worker_may_not() -> None:
    config = changed(decode={"d0": {"model": "chat"}, "d1": {"model": "code", "state": "warm"}})
    assert [worker.state for worker in config.decode.values()] == ["active", "warm"]
    with pytest.raises(ConfigError, match=r"^prefill.p1.state: only decode workers can be warm"):
        changed(prefill={"p0": {"model": "chat"}, "p1": {"model": "code", "state": "warm"}})


def test_a_worker_of_either_table_may_begin_in_both_roles() -> None:
    both = {"model": "chat", "role": "mixed"}
    config = changed(prefill={"p0": both}, decode={"d0": both, "d1": {"model": "code"}})
    assert [worker.role for worker in config.decode.values()] == ["mixed", ""]
    assert config.worker(Role.PREFILL, "p0").role == "mixed"
    with pytest.raises(ConfigError, match=r"^decode.d0.role: .*'mixed'"):
        changed(decode={"d0": {"model": "chat", "role": "prefill"}})
    with pytest.raises(ConfigError, match=r"^decode.d0.role: a warm worker sleeps"):
        changed(decode={"d0": {**both, "state": "warm"}})
    with pytest.raises(ConfigError, match=r"^decode.d0.role: mode replicated has decode workers"):
        changed(prefill={}, decode={"d0": both}, router={"mode": "replicated"})


def test_a_floor_that_the_workers_of_the_model_cannot_reach_is_refused() -> None:
    models = {"chat": {"path": "a/chat", "floor": 2}, "code": {"path": "a/code"}}
    with pytest.raises(ConfigError, match=r"^models.chat.floor: 2 decode .* the file has 1 of it"):
        changed(models=models)
    decode = {name: {"model": "chat"} for name in ("d0", "d2")} | {"d1": {"model": "code"}}
    assert changed(models=models, decode=decode).of_model("chat").model.floor == 2
