"""Without recovery, every client whose worker dies is told so by the `openai` library itself."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import openai

from tests.rigs.fleet import Fleet, fleet, wait_until

ROUNDS = 3
EACH = 6
OFF = {"BATON_GATEWAY__RECOVERY": "false"}


async def ask(api: openai.AsyncOpenAI, number: int, *, stream: bool) -> str:
    """`raised`, or what was taken for a whole answer."""
    body: dict[str, Any] = {"model": "baton-tiny", "max_tokens": 2_000, "temperature": 0}
    try:
        if stream:
            chunks = await api.completions.create(prompt=f"{number}", stream=True, **body)
            told = [chunk async for chunk in chunks]
            return f"{len(told)} chunks and no error"
        messages: list[Any] = [{"role": "user", "content": f"{number}"}]
        await api.chat.completions.create(messages=messages, **body)
    except openai.APIError as error:
        return "raised" if "d0" in str(error) else f"raised {error}"
    return "an answer and no error"


async def one_round(running: Fleet, first: int) -> list[str]:
    """`first`: number of its first prompt. A prompt that was on dying workers before runs alone."""
    api = openai.AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=60
    )
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(ask(api, number, stream=number % 2 == 0))
            for number in range(first, first + 2 * EACH)
        ]
        await loop.run_in_executor(None, kill_when_all_decode, running)
    return [task.result() for task in asked]


def kill_when_all_decode(running: Fleet) -> None:
    wait_until(
        "all requests are with d0",
        lambda: [r["decode"] for r in running.ctl("requests")] == ["d0"] * 2 * EACH,
        30,
    )
    running.children()["d0"].send_signal(signal.SIGKILL)


def test_the_openai_client_raises_in_every_case() -> None:
    with fleet("--engine", "sim", env=OFF) as running:
        running.wait_ready()
        for nth in range(ROUNDS):
            pid = running.children()["d0"].pid
            assert asyncio.run(one_round(running, nth * 2 * EACH)) == ["raised"] * 2 * EACH
            wait_until("d0 is back", lambda pid=pid: back(running, pid), 30)  # type: ignore[misc]
        assert served(running) == 8


def served(running: Fleet) -> int:
    """The number of tokens that a request of eight tokens gets."""
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as api:
        answer = api.completions.create(model="baton-tiny", prompt="again", max_tokens=8)
    assert answer.usage is not None
    return answer.usage.completion_tokens


def back(running: Fleet, old_pid: int) -> bool:
    child = running.children().get("d0")
    ready = [worker["state"] for worker in running.ctl("workers") if worker["name"] == "d0"]
    return child is not None and child.pid != old_pid and ready == ["ready"]
