"""Two models of different weights in one fleet on real vLLM: they answer as plain engines do, what
is measured of one is not of the other, and a queue of one wakes that model's warm worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import httpx
import msgspec
import pytest

from common.messages import CanaryAnswer
from common.model.embedded import ensure_embedded_model
from common.model.weights import Recipe
from tests.e2e.reference import plain_answers
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import said

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SEEDS = {"eighteen": 18, "forty": 40}
WORKERS = {
    "eighteen": {"prefill.p0", "decode.d0"},
    "forty": {"prefill.p1", "decode.d1", "decode.d2"},
}
PROMPTS = [[(7 * i + n) % 240 + 1 for i in range(200 + 90 * n)] for n in range(3)]
MAX_TOKENS, LONG = 12, 200
AT_ONCE = 12
SECONDS = 90.0
SETTINGS = {
    "BATON_ENGINE__KV_CACHE_MIB": "256",
    "BATON_ENGINE__MAX_NUM_SEQS": "2",
    "BATON_DECODE__D2__MODEL": "forty",
    "BATON_DECODE__D2__STATE": "warm",
    "BATON_HEALTH__CANARY_INTERVAL_S": "0",
    "BATON_ROUTER__WARM_IDLE_MS": "1000",
}
"""A worker has two slots, so that a queue forms, and the canaries here are the test's own."""
FLOAT32 = {f"BATON_MODELS__{name.upper()}__DTYPE": "float32" for name in SEEDS}
"""vLLM takes a model in float32 as bfloat16 unless told; the plain engine computes in float32."""
EAGER = {f"BATON_{w}__ENGINE__ARGS__ENFORCE_EAGER": "true" for w in ("PREFILL__P1", "DECODE__D1")}
EAGER |= {"BATON_DECODE__D2__ENGINE__ARGS__ENFORCE_EAGER": "true"}
"""The other model is compiled, as it is where nobody says otherwise; to compile takes long."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: ensure_embedded_model(root, Recipe(seed=seed)) for name, seed in SEEDS.items()}


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, list[list[int]]]:
    """By model, the long answers of plain engines, which have ended before the fleet starts."""
    told = {name: plain_answers(PROMPTS, LONG, model=folder) for name, folder in folders.items()}
    assert told["eighteen"] != told["forty"]
    return told


@pytest.fixture(scope="module")
def running(folders: dict[str, Path], expected: dict[str, list[list[int]]]) -> Iterator[Fleet]:
    assert expected
    flags = [f for name, path in folders.items() for f in ("--model", str(path), "--name", name)]
    with fleet(*flags, env=SETTINGS | FLOAT32 | EAGER) as up:
        yield up.wait_ready()


def answer(running: Fleet, model: str, prompt: list[int], most: int = MAX_TOKENS) -> list[int]:
    body = {"model": model, "prompt": prompt, "max_tokens": most, "temperature": 0}
    options = {"return_token_ids": True, "ignore_eos": True}
    told = httpx.post(f"{running.url}/v1/completions", json=body | options, timeout=120)
    assert told.status_code == 200, told.text
    tokens: list[int] = told.json()["choices"][0]["token_ids"]
    return tokens


def state(running: Fleet, worker: str) -> str:
    return str({row["name"]: row["state"] for row in running.ctl("workers")}[worker])


def metrics(running: Fleet) -> list[str]:
    """Of all daemons of the host."""
    url = f"http://127.0.0.1:{running.health_port}/metrics"
    return httpx.get(url, timeout=30).text.splitlines()


def value(lines: list[str], name: str, *labels: str) -> float:
    """The sum of the samples of this name that have all of these labels."""
    found = [
        line for line in lines if line.startswith(f"{name}{{") and all(at in line for at in labels)
    ]
    assert found, (name, labels)
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def test_tokens_of_two_models_are_those_of_plain_engines(
    running: Fleet, expected: dict[str, list[list[int]]]
) -> None:
    asked = [(name, prompt) for prompt in PROMPTS for name in SEEDS]
    with ThreadPoolExecutor(len(asked)) as clients:
        got = list(clients.map(lambda ask: answer(running, *ask), asked))
    for (name, prompt), tokens in zip(asked, got, strict=True):
        assert tokens == expected[name][PROMPTS.index(prompt)][:MAX_TOKENS], name
    rows = running.ctl("workers")
    prints = {row["model"]: row["fingerprint"] for row in rows}
    assert len(set(prints.values())) == 2
    assert all(row["fingerprint"] == prints[row["model"]] for row in rows)
    assert not any(row["unlike"] for row in rows)
    assert running.ctl("status")["totals"]["placed_local"] == 0


def test_what_is_measured_of_one_model_is_not_of_the_other(running: Fleet) -> None:
    """Asked of one model alone, and learned of that one alone."""

    def learned() -> dict[str, object]:
        return {row["model"]: row["estimates"] for row in running.ctl("status")["models"]}

    def made(name: str) -> float:
        labels = ('phase="decode"', f'model="{name}"')
        return value(metrics(running), "baton_router_tokens_total", *labels)

    answer(running, "eighteen", PROMPTS[0])
    wait_until("all is recorded", lambda: min(map(made, SEEDS)) > 0, SECONDS)
    before, learned_before = {name: made(name) for name in SEEDS}, learned()
    for prompt in PROMPTS:
        answer(running, "eighteen", [*prompt, 7])
    more = len(PROMPTS) * MAX_TOKENS
    wait_until("they count", lambda: made("eighteen") >= before["eighteen"] + more, SECONDS)
    assert made("forty") == before["forty"]
    assert learned()["forty"] == learned_before["forty"] != learned()["eighteen"]
    lines = metrics(running)
    for name, workers in WORKERS.items():
        labels = (f'model="{name}"', 'role="prefill"')
        assert value(lines, "baton_router_model_workers_ready", *labels) == 1
        for worker in workers:
            labels = (f'model="{name}"', f'worker="{worker.split(".")[1]}"')
            assert value(lines, "baton_router_worker_kv_used_ratio", *labels) >= 0
        asked = value(lines, "baton_gateway_requests_total", f'model="{name}"')
        assert asked >= len(PROMPTS)


def test_canaries_are_compared_within_a_model(running: Fleet) -> None:
    """All workers of a model make the same tokens, and the other model makes others."""

    async def run_canary(worker: str) -> CanaryAnswer:
        connector = aiohttp.UnixConnector(path=f"{running.run_dir}/{worker}.metrics.sock")
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post("http://worker/canary?ms=20000") as told,
        ):
            return msgspec.json.decode(await told.read(), type=CanaryAnswer)

    async def all_of(workers: set[str]) -> list[CanaryAnswer]:
        return [await run_canary(worker) for worker in sorted(workers)]

    wait_until("d2 sleeps", lambda: state(running, "d2") == "warm", SECONDS)
    made = {}
    for name, workers in WORKERS.items():
        told = asyncio.run(all_of(workers - {"decode.d2"}))
        assert [one.sentence for one in told] == ["", ""]
        (made[name],) = {(one.fingerprint, one.tokens) for one in told}
    assert made["eighteen"][0] != made["forty"][0]
    assert made["eighteen"][1] != made["forty"][1]


def test_each_model_is_profiled_and_planned_by_itself(running: Fleet, tmp_path: Path) -> None:
    fleet_flags = ("--url", running.url, "--run-dir", str(running.run_dir))
    size = ("--prompt-max", "256", "--batch-max", "1", "--repeats", "1", "--bandwidth", "1e9")
    for name in SEEDS:
        out = ("--out", str(tmp_path / f"{name}.toml"))
        said("profile", *fleet_flags, "--model", name, *size, *out)
        assert f'model = "{name}"' in (tmp_path / f"{name}.toml").read_text()
    tables = [f'[{name}]\nprofile = "{name}.toml"\nrate = 0.1\n' for name in SEEDS]
    (tmp_path / "models.toml").write_text("".join(tables))
    load = ("--requests", "20", "--scale", "0.2", "--slo", "ttft=60000,itl=60000")
    file = str(tmp_path / "models.toml")
    told = said("plan", "--models", file, "--workers", "4", *load)
    assert told.index("model eighteen") < told.index("model forty") < told.index("Together")


def test_a_queue_wakes_the_warm_worker_of_its_model(
    running: Fleet, expected: dict[str, list[list[int]]]
) -> None:
    wait_until("d2 sleeps", lambda: state(running, "d2") == "warm", SECONDS)
    asked = [PROMPTS[nth % len(PROMPTS)] for nth in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as clients:
        got = list(clients.map(lambda prompt: answer(running, "forty", prompt, LONG), asked))
    assert got == [expected["forty"][PROMPTS.index(prompt)] for prompt in asked]
    told = [row for row in running.ctl("events")["events"] if row["event"] == "worker.woken"]
    assert told, "the queue was not long enough to wake it"
    assert "decode worker d2 of forty wakes: the queue takes" in told[-1]["sentence"]
    shares = {row["name"]: row["model"] for row in running.ctl("workers")}
    assert shares["d2"] == "forty"
    print(told[-1]["sentence"])
    wait_until("d2 sleeps again", lambda: state(running, "d2") == "warm", SECONDS)
    assert answer(running, "forty", PROMPTS[0]) == expected["forty"][0][:MAX_TOKENS]
