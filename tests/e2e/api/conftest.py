"""The servers that the tests of this folder share: one fleet on real vLLM, and vLLM's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.api.asks import Asks
from tests.e2e.api.peer import peer
from tests.rigs.fleet import Fleet, fleet
from tests.rigs.processes import add_key


@dataclass(frozen=True)
class Stack:
    """`key` has no limits; `rated` may make one request a minute."""

    fleet: Fleet
    key: str
    rated: str


@dataclass(frozen=True)
class Both:
    ours: httpx.Client
    theirs: httpx.Client

    def ask(self, path: str, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
        return self.ours.post(path, json=body), self.theirs.post(path, json=body)


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    key = add_key(file, "plain")
    rated = add_key(file, "rated", "--requests-per-min", "1")
    with fleet("--prefill", "1", "--decode", "1", "--keys", str(file)) as running:
        yield Stack(running.wait_ready(), key, rated)


@pytest.fixture(scope="package")
def both(stack: Stack) -> Iterator[Both]:
    about = {"authorization": f"Bearer {stack.key}"}
    with (
        peer() as url,
        httpx.Client(base_url=stack.fleet.url, timeout=180, headers=about) as ours,
        httpx.Client(base_url=url, timeout=180) as theirs,
    ):
        yield Both(ours, theirs)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="package")
def client(stack: Stack) -> openai.OpenAI:
    url = f"{stack.fleet.url}/v1"
    return openai.OpenAI(base_url=url, api_key=stack.key, max_retries=0, timeout=180)


@pytest.fixture
def asks(client: openai.OpenAI, stream: bool) -> Asks:
    return Asks(client, stream=stream)
