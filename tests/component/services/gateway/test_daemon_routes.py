"""The routes beside those that generate: what a vLLM server has too, and what a gateway has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.messages import Submit
from common.security.api_keys import KeyRecord, edited, new_key
from services.gateway.http.unserved import unserved
from tests.component.services.gateway.rig import MakeRig, Rig, delta, refuse_with

COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi", "max_tokens": 2}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(("method", "path"), [row[:2] for row in unserved()])
async def test_what_vllm_serves_and_a_gateway_does_not_is_named(
    rig: Rig, method: str, path: str
) -> None:
    response = await rig.http.request(method, rig.url + path.replace("{response_id}", "resp_1"))
    assert response.status == 501
    error = (await response.json())["error"]
    assert error["code"] == "not_served"
    assert path in error["message"]


async def test_no_served_route_is_called_unserved(rig: Rig) -> None:
    routes = [(method, path) for method, path in rig.gateway.http_routes if method != "HEAD"]
    assert len(routes) == len(set(routes))


async def test_ping_version_and_load(rig: Rig) -> None:
    await rig.ready()
    for method in ("GET", "POST"):
        assert (await rig.http.request(method, f"{rig.url}/ping")).status == 200
    assert (await (await rig.http.get(f"{rig.url}/version")).json())["version"]
    posted = rig.ask("/v1/completions", **COMPLETION)
    await rig.router.next(Submit)
    assert await (await rig.http.get(f"{rig.url}/load")).json() == {"server_load": 1}
    posted.leave()


@pytest.mark.parametrize(
    ("body", "object_"),
    [({"messages": MESSAGES}, "chat.completion"), ({"prompt": "hi"}, "text_completion")],
)
async def test_an_invocation_is_what_its_body_says(
    rig: Rig, body: dict[str, Any], object_: str
) -> None:
    worker = await rig.worker()
    posted = rig.ask("/invocations", **body)
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "ok", finish_reason="length"))
    answer = await (await posted.response()).json()
    assert answer["object"] == object_


@pytest.mark.parametrize("body", [b"{}", b"[]", b"{", b'{"input": "x"}', b"\xff"])
async def test_an_invocation_that_says_nothing_is_refused(rig: Rig, body: bytes) -> None:
    response = await rig.http.post(
        f"{rig.url}/invocations", data=body, headers={"Content-Type": "application/json"}
    )
    assert response.status == 400


async def test_whole_answers_have_vllms_fields_that_are_null(rig: Rig) -> None:
    worker = await rig.worker()
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "hi", "prompt_logprobs": None}),
    ):
        posted = rig.ask(path, **body)
        submit = await rig.router.next(Submit)
        worker.send(delta(submit, 0, "ok", finish_reason="length"))
        answer = await (await posted.response()).json()
        fields = answer | answer["choices"][0]
        assert fields["prompt_logprobs"] is None
        assert fields["system_fingerprint"] is None


async def test_all_routes_are_there_under_the_root_path_too(
    make_rig: MakeRig, keys_file: str
) -> None:
    rig = await make_rig(root_path="/llm", keys_file=keys_file)
    for prefix in ("", "/llm"):
        assert (await rig.http.get(f"{rig.url}{prefix}/live")).status == 200
        assert (await rig.http.get(f"{rig.url}{prefix}/v1/models")).status == 401
        assert (await rig.post(f"{prefix}/v1/completions", **COMPLETION)).status == 401
    rig = await make_rig(root_path="/llm")
    await rig.ready()
    rig.router.answer = refuse_with("queue_full")
    assert (await rig.post("/llm/v1/completions", **COMPLETION)).status == 429
    assert (await rig.post("/other/v1/completions", **COMPLETION)).status == 404


async def test_the_page_of_documents_loads_nothing(rig: Rig) -> None:
    response = await rig.http.get(f"{rig.url}/docs")
    page = await response.text()
    assert "/v1/chat/completions" in page
    assert "max_completion_tokens" in page
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    for foreign in ("<script", "src=", "http://", "https://", "@import", "url("):
        assert foreign not in page


# ---------------------------------------------------------------- metrics


def add_key(path: Path) -> dict[str, str]:
    key, key_id, sha256 = new_key()
    with edited(path) as records:
        records.append(KeyRecord(id=key_id, sha256=sha256, tenant="t"))
    return {"Authorization": f"Bearer {key}"}


async def samples(rig: Rig) -> dict[str, float]:
    text = await (await rig.http.get(f"{rig.url}/metrics")).text()
    return {
        sample.name + sample.labels.get("le", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("model_name", "m") == "m"
    }


async def test_metrics_have_vllms_names_where_they_mean_the_same(rig: Rig) -> None:
    worker = await rig.worker()
    posted = rig.ask("/v1/completions", **COMPLETION)
    submit = await rig.router.next(Submit)
    await rig.turn()
    found = await samples(rig)
    live = found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"]
    assert live == found["baton_gateway_live_requests"] == 1
    worker.send(delta(submit, 0, "ok", finish_reason="length"))
    await (await posted.response()).read()
    found = await samples(rig)
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert found["vllm:prompt_tokens_total"] == 2
    assert found["vllm:generation_tokens_total"] == 2
    for name in ("time_to_first_token", "e2e_request_latency"):
        assert found[f"vllm:{name}_seconds_count"] == 1
        assert found[f"vllm:{name}_seconds_bucket+Inf"] == 1


async def test_who_waits_is_not_called_running(rig: Rig) -> None:
    await rig.ready()
    rig.router.answer = lambda _: None
    posted = rig.ask("/v1/completions", **COMPLETION)
    await rig.router.next(Submit)
    found = await samples(rig)
    assert (found["vllm:num_requests_waiting"], found["vllm:num_requests_running"]) == (1, 0)
    posted.leave()


async def test_metrics_are_for_operators(make_rig: MakeRig, tmp_path: Path) -> None:
    clients, operators = tmp_path / "keys.json", tmp_path / "operators.json"
    client, operator = add_key(clients), add_key(operators)
    rig = await make_rig(keys_file=str(clients), operator_keys_file=str(operators), root_path="/x")
    for path in ("/metrics", "/x/metrics"):
        url = rig.url + path
        assert (await rig.http.get(url, headers=operator)).status == 200
        assert (await rig.http.get(url, headers=client)).status == 401
        assert (await rig.http.get(url)).status == 401
    assert (await rig.http.get(f"{rig.url}/v1/models", headers=operator)).status == 401


async def test_without_operators_keys_nobodys_key_reads_metrics(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    client = add_key(tmp_path / "keys.json")
    rig = await make_rig(keys_file=str(tmp_path / "keys.json"))
    response = await rig.http.get(f"{rig.url}/metrics", headers=client)
    assert response.status == 403
    assert "operator_keys_file" in (await response.json())["error"]["message"]
    assert (await rig.http.get(f"{rig.url}/metrics")).status == 401


async def test_one_of_several_processes_does_not_show_its_own_metrics(make_rig: MakeRig) -> None:
    rig = await make_rig(processes=2)
    response = await rig.http.get(f"{rig.url}/metrics")
    assert response.status == 501
    assert "health daemon" in (await response.json())["error"]["message"]
