"""A client that loses its connection comes back to its stream, whatever else fails meanwhile."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

ASK = {
    "model": "baton-tiny",
    "prompt": "All happy families are alike. " * 30,
    "max_tokens": 300,
    "temperature": 1.0,
    "seed": 5,
    "presence_penalty": 0.5,
    "stream": True,
    "stream_options": {"include_usage": True},
}
ON = {"x-resumable": "true"}


@pytest.fixture
def two_decodes() -> Iterator[Fleet]:
    with fleet("--engine", "sim", "--decode", "2") as running:
        yield running.wait_ready()


class Read:
    """What a client has of a stream; it stops reading after `events_max`."""

    def __init__(self) -> None:
        self.stream = ""
        self.last = 0
        self.text = ""
        self.usage: dict[str, int] = {}
        self.done = False

    def read(self, response: httpx.Response, events_max: int = 1_000_000) -> None:
        self.stream = response.headers["x-stream-id"]
        for line in response.iter_lines():
            if line.startswith("id: "):
                assert int(line[4:]) == self.last + 1
                self.last += 1
            elif line == "data: [DONE]":
                self.done = True
            elif line.startswith("data: "):
                body = json.loads(line[6:])
                self.text += "".join(choice["text"] for choice in body["choices"])
                self.usage = body.get("usage") or self.usage
            elif self.last >= events_max:
                return


def begin(client: httpx.Client, events_max: int = 1_000_000) -> Read:
    got = Read()
    with client.stream("POST", "/v1/completions", json=ASK, headers=ON) as response:
        assert response.status_code == 200, response.read()
        got.read(response, events_max)
    return got


def finish(client: httpx.Client, got: Read) -> Read:
    headers = {"Last-Event-ID": str(got.last)}
    with client.stream("GET", f"/v1/streams/{got.stream}", headers=headers) as response:
        assert response.status_code == 200, response.read()
        got.read(response)
    return got


def test_a_stream_is_read_in_three_pieces_while_its_worker_is_killed(two_decodes: Fleet) -> None:
    with httpx.Client(base_url=two_decodes.url, timeout=30) as client:
        undisturbed = begin(client)
        assert undisturbed.done
        got = begin(client, events_max=5)
        assert got.last == 5
        (request,) = two_decodes.ctl("requests")
        name = request["decode"]
        two_decodes.children()[name].send_signal(signal.SIGKILL)
        wait_until(
            "the stream goes on without a client",
            lambda: "request.recovered" in two_decodes.log("g0"),
        )
        assert f"decode worker {name} was lost" in two_decodes.log("g0")
        whole = finish(client, got)
    assert whole.done
    assert whole.text == undisturbed.text
    assert whole.usage == undisturbed.usage
    assert whole.usage["completion_tokens"] == 300
    assert not two_decodes.ctl("requests")
