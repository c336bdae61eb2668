"""Open-loop streams against a fleet, and what became of each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import openai

from tests.fleet.running import Fleet

MODEL = "baton-tiny"


@dataclass
class Load:
    """`tokens`: chunks with text that each finished stream had; `errors`: one line each."""

    finished: int = 0
    tokens: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Streams:
    """Starts a stream every `gap_seconds` until told to stop; each makes `max_tokens` tokens."""

    def __init__(self, fleet: Fleet, *, gap_seconds: float, max_tokens: int, prompt: str) -> None:
        self._fleet = fleet
        self._gap = gap_seconds
        self._max_tokens = max_tokens
        self._prompt = prompt
        self._stopped = asyncio.Event()
        self.running = 0
        self.started = 0
        self.load = Load()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> Load:
        """Returns when all that were started have ended."""
        api = openai.AsyncOpenAI(
            base_url=f"{self._fleet.url}/v1", api_key="none", max_retries=0, timeout=60
        )
        async with asyncio.TaskGroup() as group:
            while not self._stopped.is_set():
                group.create_task(self._one(api, self.started))
                self.started += 1
                await asyncio.sleep(self._gap)
        return self.load

    async def one(self) -> None:
        """A single stream, to its end."""
        api = openai.AsyncOpenAI(
            base_url=f"{self._fleet.url}/v1", api_key="none", max_retries=0, timeout=60
        )
        self.started += 1
        await self._one(api, self.started)

    async def _one(self, api: openai.AsyncOpenAI, number: int) -> None:
        self.running += 1
        try:
            stream = await api.completions.create(
                model=MODEL,
                prompt=f"{number} {self._prompt}",
                max_tokens=self._max_tokens,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            usage, finish = 0, ""
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].finish_reason:
                    finish = chunk.choices[0].finish_reason
                usage = chunk.usage.completion_tokens if chunk.usage else usage
            self.load.tokens.append(usage)
            self.load.finished += finish == "length"
        except openai.OpenAIError as error:
            self.load.errors.append(f"{number}: {error}")
        finally:
            self.running -= 1
