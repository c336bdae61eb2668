"""Stored responses through the official client."""

from __future__ import annotations

from typing import Any

import openai

from tests.rigs.fleet import wait_until

MODEL = "baton-tiny"
AT_WORK = ("queued", "in_progress")


def asked(api: openai.OpenAI, **about: Any) -> Any:
    """A response to a short request."""
    body: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}
    return api.responses.create(**body | about)


def streamed(api: openai.OpenAI, **about: Any) -> Any:
    """The same as a stream; each event that has the response names the same one."""
    events = list(asked(api, stream=True, **about))
    ids = {event.response.id for event in (*events[:2], events[-1])}
    assert ids == {events[-1].response.id}
    return events[-1].response


def answered(api: openai.OpenAI, response_id: str, seconds: float = 60.0) -> Any:
    """It, once it is not under way any more."""
    found: list[Any] = []

    def over() -> bool:
        found[:] = [api.responses.retrieve(response_id)]
        return found[0].status not in AT_WORK

    wait_until(f"{response_id} is over", over, seconds)
    return found[0]


def resumed(api: openai.OpenAI, response_id: str, **about: Any) -> Any:
    """The stream of its events. `about`: perhaps `starting_after`."""
    return api.responses.retrieve(response_id, stream=True, **about)


def deltas(told: list[Any]) -> str:
    """The text in these events."""
    texts = [event.delta for event in told if event.type == "response.output_text.delta"]
    return "".join(texts)


def listed(api: openai.OpenAI, response_id: str) -> list[str]:
    """The texts of its input items, the first first."""
    items: Any = api.responses.input_items.list(response_id, order="asc")
    return [item.content[0].text for item in items]
