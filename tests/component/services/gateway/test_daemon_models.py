"""A gateway that serves two models: which one a request reaches, what is listed, and what a key
allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.messages import Message, Submit
from common.security.api_keys import KeyRecord, edited, new_key
from tests.component.services.gateway.rig import MakeRig, Rig, refuse_with

TWO: dict[str, Any] = {
    "chat": {"path": "a/chat", "aliases": ["gpt-4o"]},
    "code": {"path": "a/code"},
}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
PLAIN = {"prompt": "hi", "max_tokens": 2}


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    rig = await make_rig(models=TWO)
    await rig.ready()
    rig.router.answer = refuse_with("overloaded")
    return rig


async def listed(rig: Rig, headers: dict[str, str] | None = None) -> list[str]:
    async with rig.http.get(f"{rig.url}/v1/models", headers=headers) as response:
        return [card["id"] for card in (await response.json())["data"]]


@pytest.mark.parametrize(
    ("asked", "reaches"), [("chat", "chat"), ("gpt-4o", "chat"), ("code", "code")]
)
async def test_a_request_reaches_the_model_that_it_names(
    rig: Rig, asked: str, reaches: str
) -> None:
    submits: list[Submit] = []
    refuse = rig.router.answer

    def answer(submit: Submit) -> Message | None:
        submits.append(submit)
        return refuse(submit)

    rig.router.answer = answer
    for path, body in (("/v1/completions", PLAIN), ("/v1/chat/completions", CHAT)):
        response = await rig.post(path, **body | {"model": asked})
        assert response.status == 503
    assert [submit.model for submit in submits] == [reaches, reaches]


async def test_models_and_aliases_are_listed(rig: Rig) -> None:
    assert await listed(rig) == ["chat", "gpt-4o", "code"]
    async with rig.http.get(f"{rig.url}/v1/models/gpt-4o") as response:
        assert (response.status, (await response.json())["id"]) == (200, "gpt-4o")
    async with rig.http.get(f"{rig.url}/v1/models/nope") as response:
        assert response.status == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"model": "nope"}, "the model 'nope' does not exist"),
        ({}, "name a model"),
    ],
)
async def test_an_unknown_model_is_a_404_with_the_names(
    rig: Rig, body: dict[str, Any], says: str
) -> None:
    response = await rig.post("/v1/completions", **PLAIN | body)
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (404, "model_not_found")
    assert error["message"] == f"{says}; this server serves 'chat', 'gpt-4o', 'code'"


async def test_a_key_reaches_only_its_models(make_rig: MakeRig, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, key_id, sha256 = new_key()
    with edited(path) as records:
        records.append(KeyRecord(id=key_id, sha256=sha256, tenant="t", models=("code",)))
    rig = await make_rig(models=TWO, keys_file=str(path))
    rig.router.answer = refuse_with("overloaded")
    await rig.ready()
    headers = {"Authorization": f"Bearer {key}"}
    assert await listed(rig, headers) == ["code"]
    statuses = {}
    for name in ("chat", "gpt-4o", "code"):
        body = json.dumps(PLAIN | {"model": name})
        sent = {**headers, "Content-Type": "application/json"}
        async with rig.http.post(f"{rig.url}/v1/completions", data=body, headers=sent) as response:
            statuses[name] = response.status
            message = (await response.json())["error"]["message"]
            assert name == "code" or message.endswith("this server serves 'code'")
    assert statuses == {"chat": 404, "gpt-4o": 404, "code": 503}
