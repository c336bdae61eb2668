"""LoRA adapters in a fleet of real daemons, with simulated engines whose text depends on them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rigs.adapters import make_adapter
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import add_key

PROMPT = "The quick brown fox jumps over the lazy dog. " * 30
NAMES = ("law", "sql")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def keys(root: Path) -> dict[str, str]:
    clients, operators = root / "keys.json", root / "operators.json"
    return {
        "file": str(clients),
        "operators": str(operators),
        "all": add_key(clients, "all"),
        "limited": add_key(clients, "limited", "--model", "sql"),
        "operator": add_key(operators, "operator"),
    }


@pytest.fixture(scope="module")
def running(root: Path, keys: dict[str, str]) -> Iterator[Fleet]:
    env = {
        f"BATON_ADAPTERS__{name.upper()}__PATH": str(make_adapter(root / name, seed))
        for seed, name in enumerate(NAMES)
    }
    env["BATON_GATEWAY__OPERATOR_KEYS_FILE"] = keys["operators"]
    env["BATON_ENGINE__SIM__DECODE_STEP_MS"] = "20"
    flags = ("--engine", "sim", "--decode", "2", "--keys", keys["file"])
    with fleet(*flags, env=env) as up:
        yield up.wait_ready()


def post(
    running: Fleet, path: str, key: str, body: dict[str, Any], seconds: float = 60
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{running.url}{path}", json=body, headers=headers, timeout=seconds)


def ask(running: Fleet, key: str, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 24, **more}
    return post(running, "/v1/completions", key, body)


def text(running: Fleet, key: str, model: str, **more: Any) -> str:
    answer = ask(running, key, model, **more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    found: str = answer.json()["choices"][0]["text"]
    return found


def rows(running: Fleet, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = running.ctl("adapter", "list", f"name={name}")
    return found


def test_each_name_has_its_own_text_and_is_listed_with_its_base(
    running: Fleet, keys: dict[str, str], root: Path
) -> None:
    texts = {name: text(running, keys["all"], name) for name in ("baton-tiny", *NAMES)}
    assert len(set(texts.values())) == 3
    assert texts["sql"] == text(running, keys["all"], "sql", user="u" * 9_000), "by a helper"
    headers = {"Authorization": f"Bearer {keys['all']}"}
    listed = httpx.get(f"{running.url}/v1/models", headers=headers, timeout=10).json()["data"]
    assert [(card["id"], card["parent"]) for card in listed] == [
        ("baton-tiny", None),
        ("law", "baton-tiny"),
        ("sql", "baton-tiny"),
    ]
    assert listed[2]["root"] == str(root / "sql")
    told = rows(running, "sql")
    assert [row["worker"] for row in told] == ["d0", "d1", "p0"]
    assert {row["digest"] for row in told} == {told[0]["digest"]}
    assert {row["state"] for row in told} <= {"in memory", "loaded"}


@pytest.mark.long
def test_what_vllm_s_classes_answer_has_the_adapter_s_text_and_name(
    running: Fleet, keys: dict[str, str]
) -> None:
    """Two choices are beyond the gateway's own path. The first request of these classes imports
    them, which takes a minute where both cores are busy."""
    plain = text(running, keys["all"], "sql")
    body = {"model": "sql", "prompt": PROMPT, "max_tokens": 24, "n": 2}
    answer = post(running, "/v1/completions", keys["all"], body, seconds=150)
    assert (answer.status_code, answer.json()["model"]) == (200, "sql"), answer.text
    assert [choice["text"] for choice in answer.json()["choices"]] == [plain, plain]
    body = {"model": "law", "prompt": "hi"}
    assert post(running, "/tokenize", keys["all"], body).status_code == 200
    assert post(running, "/tokenize", keys["all"], body | {"model": "no"}).status_code == 404


def test_a_key_that_is_limited_to_an_adapter_gets_nothing_else(
    running: Fleet, keys: dict[str, str]
) -> None:
    assert ask(running, keys["limited"], "sql").status_code == 200
    for name in ("baton-tiny", "law"):
        refused = ask(running, keys["limited"], name)
        assert refused.status_code == 404
        assert refused.json()["error"]["message"].endswith("this server serves 'sql'")


def test_an_operator_loads_one_and_lets_it_go(
    running: Fleet, keys: dict[str, str], root: Path
) -> None:
    order = {"lora_name": "poems", "lora_path": str(make_adapter(root / "poems", 7))}
    refused = post(running, "/v1/load_lora_adapter", keys["all"], order)
    assert refused.status_code == 401, refused.text
    assert "needs a key of gateway.operator_keys_file" in refused.json()["error"]["message"]
    refused = post(running, "/v1/load_lora_adapter", keys["operator"], {"lora_path": "/x"})
    assert refused.status_code == 400
    assert "must be an object with lora_name" in refused.json()["error"]["message"]
    unknown = ask(running, keys["all"], "poems")
    assert unknown.status_code == 404
    message = unknown.json()["error"]["message"]
    assert message.endswith("this server serves 'baton-tiny', 'law', 'sql'")
    done = post(running, "/v1/load_lora_adapter", keys["operator"], order)
    assert (done.status_code, done.text.split()[0]) == (200, "Success:")
    assert len(text(running, keys["all"], "poems")) > 0
    again = post(running, "/v1/load_lora_adapter", keys["operator"], order)
    assert again.status_code == 200, "the same files"
    make_adapter(root / "other", 8)
    other = {**order, "lora_path": str(root / "other")}
    changed = post(running, "/v1/load_lora_adapter", keys["operator"], other)
    assert changed.status_code == 400
    assert "unload it first" in changed.json()["error"]["message"]
    gone = post(running, "/v1/unload_lora_adapter", keys["operator"], {"lora_name": "poems"})
    assert gone.status_code == 200
    wait_until("poems is gone", lambda: ask(running, keys["all"], "poems").status_code == 404)
    gone = post(running, "/v1/unload_lora_adapter", keys["operator"], {"lora_name": "poems"})
    assert gone.status_code == 404


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "rank",
            "its rank is 64, and the engines take 16 at most; set [engine.args] max_lora_rank",
        ),
        ("layers", "it is of another base"),
        ("damaged", "adapter_model.safetensors is damaged"),
        ("missing", "there is no folder"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(
    running: Fleet, keys: dict[str, str], root: Path, fault: str, says: str
) -> None:
    folder = root / fault
    if fault != "missing":
        ranks, layers = {"rank": 64}, {"layers": 9}
        make_adapter(folder, 3, rank=ranks.get(fault, 8), layers=layers.get(fault, 0))
    if fault == "damaged":
        (folder / "adapter_model.safetensors").write_bytes(b"\0" * 64)
    order = {"lora_name": f"bad-{fault}", "lora_path": str(folder)}
    refused = post(running, "/v1/load_lora_adapter", keys["operator"], order)
    assert refused.status_code == 400, refused.text
    message = refused.json()["error"]["message"]
    assert message.startswith("d0, d1, p0: ")
    assert message.count(says) == 1, "once for all workers"
    (row,) = [row for row in rows(running, f"bad-{fault}") if row["worker"] == "d0"]
    assert row["state"] == "failed"
    assert says in row["error"]
    assert ask(running, keys["all"], f"bad-{fault}").status_code == 404
    assert ask(running, keys["all"], "sql").status_code == 200


def test_a_worker_that_joins_later_gets_what_the_others_were_ordered(
    running: Fleet, keys: dict[str, str], root: Path
) -> None:
    path = str(make_adapter(root / "late", 9))
    running.ctl("adapter", "load", "name=late", f"path={path}")
    wait_until("all have it", lambda: _held(running, "late") == 3)
    running.children()["p0"].send_signal(signal.SIGKILL)
    wait_until("p0 is lost", lambda: _held(running, "late") == 2)
    wait_until("p0 has it again", lambda: _held(running, "late") == 3, 60)
    assert len(text(running, keys["all"], "late")) > 0


def _held(running: Fleet, name: str) -> int:
    return sum(row["state"] in ("in memory", "loaded") for row in rows(running, name))


@pytest.mark.long
def test_a_stream_goes_on_with_its_adapter_when_its_worker_dies(
    running: Fleet, keys: dict[str, str]
) -> None:
    """The last test of this fleet."""
    whole = text(running, keys["all"], "law", max_tokens=300)
    assert whole != text(running, keys["all"], "baton-tiny", max_tokens=300)
    body = {"model": "law", "prompt": PROMPT, "max_tokens": 300, "stream": True}
    headers = {"Authorization": f"Bearer {keys['all']}"}
    seen, killed = "", False
    with httpx.stream(
        "POST", f"{running.url}/v1/completions", json=body, headers=headers, timeout=60
    ) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = httpx.Response(200, content=line.removeprefix("data: ")).json()
            seen += chunk["choices"][0]["text"]
            if len(seen) > 20 and not killed:
                (busy,) = [r for r in running.ctl("requests") if r["state"] == "decoding"]
                running.children()[busy["decode"]].send_signal(signal.SIGKILL)
                killed = True
    assert killed
    assert seen == whole
