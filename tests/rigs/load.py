"""Open-loop streams through the gateway whose every token is known beforehand.

A simulated engine's text is a function of the prompt, so each answer is compared with what it must
be: a token twice, a gap, another's token, a wrong usage all differ. For a real engine the texts are
those of an undisturbed run (`learn`).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass

import aiohttp

from common.engine.sim.model import SimText

MODEL = "baton-tiny"
LETTERS = b"abcdefghijklmnopqrstuvwxyz     "
TIMEOUT_SECONDS = 120.0
FULL_SECONDS = 0.02
KINDS = ("failed", "duplicate tokens", "missing tokens", "other tokens", "wrong usage")


@dataclass(frozen=True)
class Ask:
    """What requests look like. `prompts`: 0 = each its own, else drawn from so many. `at_once`: no
    other is begun while so many run: a host that falls behind is not given ever more to do."""

    prompt_tokens: tuple[int, int] = (20, 500)
    max_tokens: int = 32
    prompts: int = 0
    at_once: int = 1_000_000


@dataclass
class Answer:
    """`fault` is empty when text, usage and finish_reason are as they must be, or when it was
    `refused`: at once, with a Retry-After; `kind`: of the fault, one of `KINDS`. `gap`: the longest
    pause between two tokens, `gap_at` its end; `status`: of HTTP, 0 = no answer."""

    number: int
    prompt: list[int]
    began: float
    status: int = 0
    text: str = ""
    finish: str = ""
    usage: tuple[int, int] = (0, 0)
    first: float = 0.0
    ended: float = 0.0
    gap: float = 0.0
    gap_at: float = 0.0
    done: bool = False
    error: str = ""
    refused: bool = False
    fault: str = ""
    kind: str = ""


class Load:
    """Poisson arrivals from `seed`. `answers`: of all that ended."""

    def __init__(self, url: str, *, rate: float, ask: Ask | None = None, seed: int = 1) -> None:
        self._url = f"{url}/v1/completions"
        self._rate = rate
        self._ask = ask or Ask()
        self._random = random.Random(seed)
        self._expected: dict[tuple[int, ...], str] = {}
        self._stopped = asyncio.Event()
        self._pool = [self._draw() for _ in range(self._ask.prompts)]
        self.answers: list[Answer] = []
        self.running: dict[int, Answer] = {}
        self.started = 0

    def stop(self) -> None:
        self._stopped.set()

    async def learn(self) -> None:
        """What an undisturbed fleet says to each prompt of the pool."""
        async with aiohttp.ClientSession() as session:
            for prompt in self._pool:
                answer = Answer(-1, prompt, time.monotonic())
                await self._stream(session, answer)
                assert answer.done, answer.error
                self._expected[tuple(prompt)] = answer.text

    async def one(self) -> Answer:
        """A single stream, to its end."""
        number, self.started = self.started, self.started + 1
        async with aiohttp.ClientSession() as session:
            await self._one(session, number)
        return next(answer for answer in reversed(self.answers) if answer.number == number)

    async def run(self) -> list[Answer]:
        """Until `stop`; returns when all that were started have ended."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            due = time.monotonic()
            while not self._stopped.is_set():
                group.create_task(self._one(session, self.started))
                self.started += 1
                due += self._random.expovariate(self._rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                while len(self.running) >= self._ask.at_once:
                    await asyncio.sleep(FULL_SECONDS)
                    due = time.monotonic()
        return self.answers

    async def _one(self, session: aiohttp.ClientSession, number: int) -> None:
        prompt = self._random.choice(self._pool) if self._pool else self._draw()
        answer = Answer(number, prompt, time.monotonic())
        self.running[number] = answer
        try:
            await self._stream(session, answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.ended = time.monotonic()
        answer.kind, answer.fault = self._judge(answer)
        del self.running[number]
        self.answers.append(answer)

    async def _stream(self, session: aiohttp.ClientSession, answer: Answer) -> None:
        body = {
            "model": MODEL,
            "prompt": answer.prompt,
            "max_tokens": self._ask.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with session.post(self._url, json=body) as response:
            answer.status = response.status
            if response.status != 200:
                answer.refused = response.status in (429, 503) and "Retry-After" in response.headers
                answer.error = (await response.text())[:300]
                return
            async for line in response.content:
                if line.startswith(b"data: "):
                    _read(answer, line[6:].strip(), time.monotonic())

    def _judge(self, answer: Answer) -> tuple[str, str]:
        """Kind and description of what is wrong with it; both empty: nothing."""
        if answer.refused:
            return "", ""
        if answer.error:
            return "failed", f"{answer.status}: {answer.error}"
        if not answer.done:
            return "failed", "the stream just stopped"
        expected = self._text(answer.prompt)
        if answer.text != expected:
            return kind_of(answer.text, expected), f"{answer.text!r} is not {expected!r}"
        if answer.usage != (len(answer.prompt), self._ask.max_tokens):
            return "wrong usage", f"wrong usage {answer.usage}"
        good = answer.finish == "length"
        return ("", "") if good else ("failed", f"finish_reason {answer.finish!r}")

    def _text(self, prompt: list[int]) -> str:
        known = self._expected.get(tuple(prompt))
        if known is not None:
            return known
        text = SimText(prompt, None, 0)
        return bytes(text.next_token() for _ in range(self._ask.max_tokens)).decode()

    def _draw(self) -> list[int]:
        return self._random.choices(LETTERS, k=self._random.randint(*self._ask.prompt_tokens))


def _read(answer: Answer, data: bytes, now: float) -> None:
    if data == b"[DONE]":
        answer.done = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        answer.error = chunk["error"]["message"]
        return
    if chunk.get("usage"):
        usage = chunk["usage"]
        answer.usage = (usage["prompt_tokens"], usage["completion_tokens"])
    for choice in chunk["choices"]:
        answer.finish = choice["finish_reason"] or answer.finish
        if choice["text"]:
            last = answer.ended or now
            answer.first = answer.first or now
            if now - last > answer.gap:
                answer.gap, answer.gap_at = now - last, now
            answer.ended = now
            answer.text += choice["text"]


def kind_of(text: str, expected: str) -> str:
    """What is wrong with a text that is not as expected: too much of it, too little, or others."""
    if len(text) > len(expected):
        return "duplicate tokens"
    return "missing tokens" if len(text) < len(expected) else "other tokens"


def faults_of(answers: list[Answer]) -> list[str]:
    return [f"{a.number} (began {a.began:.1f}): {a.fault}" for a in answers if a.fault]


def kinds_of(answers: list[Answer]) -> Counter[str]:
    """How many of each of `KINDS`."""
    return Counter(a.kind for a in answers if a.kind)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
