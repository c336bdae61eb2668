"""A whole fleet of real daemons with simulated engines, used as clients and operators use it."""

import asyncio
import http.client
import json
import subprocess
from typing import Any

import openai
import pytest

from tests.rigs.fleet import Fleet, wait_until

MODEL = "baton-tiny"
LONG = "The quick brown fox jumps over the lazy dog. " * 40


def client(fleet: Fleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0, timeout=30)


def post(fleet: Fleet, path: str, body: bytes | dict[str, Any]) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_the_printed_curl_works_when_pasted(sim_fleet: Fleet) -> None:
    printed = "\n".join(sim_fleet.lines)
    start = printed.index("curl ")
    command = printed[start : printed.index("\n\n", start)]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["usage"]["completion_tokens"] == 32
    assert answer["choices"][0]["finish_reason"] == "length"


def test_streamed_and_whole_answers_agree(sim_fleet: Fleet) -> None:
    api = client(sim_fleet)
    messages: Any = [{"role": "user", "content": LONG}]
    whole = api.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=24, temperature=0
    )
    chunks = list(
        api.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_a_long_prompt_moves_its_kv_and_explain_tells_the_story(sim_fleet: Fleet) -> None:
    answer = client(sim_fleet).completions.create(
        model=MODEL, prompt="unseen " + LONG, max_tokens=4, temperature=0
    )
    wait_until("the request ended", lambda: not sim_fleet.ctl("requests"))
    told = json.dumps(sim_fleet.ctl("explain", answer.id))
    assert "payload_bytes" in told
    worker = sim_fleet.ctl("workers")[0]
    blocks = -(-(answer.usage.prompt_tokens if answer.usage else 0) // worker["block_tokens"])
    assert f'"payload_bytes": {blocks * worker["kv_block_bytes"]}' in told


def test_hundreds_at_once_all_finish_whole(sim_fleet: Fleet) -> None:
    async def run() -> list[Any]:
        api = openai.AsyncOpenAI(
            base_url=f"{sim_fleet.url}/v1", api_key="none", max_retries=0, timeout=60
        )
        return await asyncio.gather(
            *(
                api.completions.create(model=MODEL, prompt=f"{i} " + LONG[: i * 7], max_tokens=8)
                for i in range(300)
            )
        )

    answers = asyncio.run(run())
    assert [a.usage.completion_tokens for a in answers] == [8] * 300
    wait_until("no request is left", lambda: not sim_fleet.ctl("requests"))


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/chat/completions", b'{"model": ', 400, "invalid_request"),
        ("/v1/chat/completions", b"\xff\xfe", 400, "invalid_request"),
        ("/v1/completions", {"model": "nope", "prompt": "x"}, 404, "model_not_found"),
        ("/v1/completions", {"model": MODEL, "prompt": ""}, 400, "invalid_request"),
        ("/v1/chat/completions", {"model": MODEL, "messages": []}, 400, "invalid_request"),
        (
            "/v1/completions",
            {"model": MODEL, "prompt": "x" * 20_000},
            400,
            "context_length_exceeded",
        ),
        (
            "/v1/completions",
            {"model": MODEL, "prompt": "x", "max_tokens": -1},
            400,
            "invalid_request",
        ),
        (
            "/v1/completions",
            {"model": MODEL, "prompt": "x", "max_tokens": "many"},
            400,
            "invalid_request",
        ),
        (
            "/v1/completions",
            {"model": MODEL, "prompt": "x", "temperature": 9},
            400,
            "invalid_request",
        ),
        ("/v1/completions", {"model": MODEL, "prompt": {"a": 1}}, 400, "invalid_request"),
        (
            "/v1/completions",
            {"model": MODEL, "prompt": "x", "best_of": 4},
            400,
            "unsupported_parameter",
        ),
        ("/v1/nothing", {"model": MODEL}, 404, "not_found"),
    ],
)
def test_bad_input_is_refused_in_openais_shape(
    sim_fleet: Fleet, path: str, body: bytes | dict[str, Any], status: int, code: str
) -> None:
    before = {name: process.pid for name, process in sim_fleet.children().items()}
    got, answer = post(sim_fleet, path, body)
    assert got == status, answer
    assert set(answer["error"]) >= {"message", "type", "param", "code"}
    assert answer["error"]["code"] == code
    assert {name: process.pid for name, process in sim_fleet.children().items()} == before
    assert post(sim_fleet, "/v1/completions", {"model": MODEL, "prompt": "x"})[0] == 200


def test_a_client_that_leaves_frees_the_workers(sim_fleet: Fleet) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", sim_fleet.port, timeout=30)
    body = {"model": MODEL, "prompt": LONG, "max_tokens": 4000, "stream": True}
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    assert len(sim_fleet.ctl("requests")) == 1
    answer.close()
    connection.close()
    wait_until("the request is gone", lambda: not sim_fleet.ctl("requests"))
    wait_until("no KV is held", lambda: all(w["kv_used"] == 0 for w in sim_fleet.ctl("workers")))


def test_models_and_health_say_what_is_served(sim_fleet: Fleet) -> None:
    models = client(sim_fleet).models.list().data
    assert [m.id for m in models] == [MODEL]
    connection = http.client.HTTPConnection("127.0.0.1", sim_fleet.port, timeout=5)
    for path in ("/health", "/live"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    health = http.client.HTTPConnection("127.0.0.1", sim_fleet.health_port, timeout=5)
    health.request("GET", "/metrics")
    assert b"baton_health_verdict" in health.getresponse().read()


def test_the_admin_verbs_answer(sim_fleet: Fleet) -> None:
    workers = {w["name"]: w["role"] for w in sim_fleet.ctl("workers")}
    assert workers == {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode"}
    assert "explain" in json.dumps(sim_fleet.ctl("help"))
    assert sim_fleet.ctl("status")["ready"] is True
