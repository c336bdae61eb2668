"""Asks the `openai` client, streamed or not, and hands back one form."""

from __future__ import annotations

from typing import Any

import openai

from tests.e2e.api.cases import HELLO, MODEL
from tests.e2e.api.told import Told, chat, completion

TOKENS = 12


class Asks:
    """Greedy, `TOKENS` long, and whatever else a test says."""

    def __init__(self, client: openai.OpenAI, *, stream: bool) -> None:
        self._client = client
        self._stream = stream

    def chat(self, **fields: Any) -> Told:
        about = {"model": MODEL, "messages": HELLO, "max_tokens": TOKENS, "temperature": 0}
        create = self._client.chat.completions.create
        return chat(create, stream=self._stream, **(about | fields))

    def completion(self, **fields: Any) -> Told:
        about = {"model": MODEL, "prompt": "hello", "max_tokens": TOKENS, "temperature": 0}
        create = self._client.completions.create
        return completion(create, stream=self._stream, **(about | fields))
