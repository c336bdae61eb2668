"""Checks an endpoint before a load: its model and the longest prompt."""

from __future__ import annotations

from typing import Any, NamedTuple

import aiohttp
import msgspec

from loadtest.bench.prompts import Api, Measure

PROBE_SECONDS = 10.0
PROBE_CHARS = (200, 1_000)


class Endpoint(NamedTuple):
    """What an endpoint serves."""

    model: str
    #: 0 if the endpoint does not name it.
    max_model_len: int


class DeadEndpointError(Exception):
    """The URL is no working OpenAI endpoint; the text names the cause."""


async def discover(url: str, model: str, api_key: str) -> Endpoint:
    """The model and its context length. Raises DeadEndpointError."""
    rows = (await _ask(url, "/v1/models", api_key)).get("data", [])
    served = {str(row.get("id")): row for row in rows if isinstance(row, dict)}
    if not served:
        raise DeadEndpointError(f"{url}/v1/models names no model")
    if not model and len(served) > 1:
        raise DeadEndpointError(f"{url} serves {', '.join(served)}: say which with --model")
    if model and model not in served:
        raise DeadEndpointError(f"{url} does not serve {model}; it has {', '.join(served)}")
    chosen = model or next(iter(served))
    return Endpoint(chosen, int(served[chosen].get("max_model_len") or 0))


async def measure(url: str, model: str, api: Api, api_key: str) -> Measure:
    """How many characters of our text make a token in a chat, by two small requests."""
    if api == "completions":
        return Measure()
    tokens = []
    for chars in PROBE_CHARS:
        text = ("abcde " * chars)[:chars]
        fields = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
        }
        answer = await _ask(url, "/v1/chat/completions", api_key, fields)
        tokens.append(int(answer.get("usage", {}).get("prompt_tokens", 0)))
    grown = tokens[1] - tokens[0]
    if grown <= 0:
        return Measure()
    per_token = (PROBE_CHARS[1] - PROBE_CHARS[0]) / grown
    return Measure(per_token, max(0, round(tokens[0] - PROBE_CHARS[0] / per_token)))


async def _ask(
    url: str, path: str, api_key: str, fields: dict[str, Any] | None = None
) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.request("POST" if fields else "GET", url + path, json=fields) as response,
        ):
            text = await response.text(errors="replace")
    except (aiohttp.ClientError, aiohttp.InvalidURL) as error:
        raise DeadEndpointError(f"nobody answers at {url}: {error}") from error
    except TimeoutError as error:
        raise DeadEndpointError(f"{url}{path}: no answer in {PROBE_SECONDS:g} s") from error
    if response.status != 200:
        raise DeadEndpointError(f"{url}{path} answers {response.status}: {text[:200]}")
    try:
        answer: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise DeadEndpointError(f"{url}{path} answers no JSON object: {text[:80]!r}") from error
    return answer
