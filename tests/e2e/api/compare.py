"""Two answers, field by field: how they differ where they may not.

A stream is first gathered, since where it is cut into chunks depends on time: texts and lists of a
choice are joined, of other fields the last value counts. A field that is null equals one that is
not there: the plain path does not write, with each token, what was not asked for.
"""

from __future__ import annotations

import json
import re
from typing import Any

ALLOWED = {
    r"id|.*\.id|.*item_id|.*call_id": "made at random by each",
    r"created|created_at|.*\.created_at|.*completed_at": "the time of asking",
    r"(.*\.)?system_fingerprint": "a hash of the server's settings, which differ",
    r".*kv_transfer_params": "vLLM's own; Baton's handoff does not use it",
}


def may_differ(path: str) -> bool:
    return any(re.fullmatch(pattern, path) for pattern in ALLOWED)


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    if may_differ(path):
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for name in {**theirs, **ours}:
            inner = f"{path}.{name}" if path else name
            found += differences(ours.get(name), theirs.get(name), inner)
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for at, (a, b) in pairs for line in differences(a, b, f"{path}.{at}")]
    if isinstance(ours, float) and isinstance(theirs, float):
        return [] if abs(ours - theirs) <= 1e-4 else [f"{path}: {ours} and {theirs}"]
    return [] if ours == theirs else [f"{path}: {ours!r} and {theirs!r}"]


def events(body: str) -> list[Any]:
    """The data of server-sent events; [DONE] as it is."""
    datas = re.findall(r"^data: (.*)$", body, flags=re.MULTILINE)
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def gathered(found: list[Any]) -> dict[str, Any]:
    """A stream of chat or completion chunks as one object."""
    whole: dict[str, Any] = {"choices": {}, "done": found[-1] == "[DONE]"}
    for chunk in found[:-1]:
        for name, value in chunk.items():
            if name != "choices":
                whole[name] = value if value is not None else whole.get(name)
        for choice in chunk["choices"]:
            _join(whole["choices"].setdefault(str(choice["index"]), {}), choice)
    return whole


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        held = whole.get(name)
        if name == "tool_calls":
            calls = whole.setdefault(name, {})
            for call in value or ():
                _join(calls.setdefault(str(call["index"]), {}), call)
        elif isinstance(value, dict):
            if held is None:
                whole[name] = held = {}
            _join(held, value)
        elif isinstance(value, list) and isinstance(held, list):
            held += value
        elif isinstance(value, str) and isinstance(held, str) and name not in FIXED:
            whole[name] = held + value
        elif value is not None or name not in whole:
            whole[name] = value


FIXED = frozenset({"role", "finish_reason", "stop_reason", "type", "id", "name"})


def typed(found: list[Any]) -> dict[str, Any]:
    """A stream of typed events (Responses, Messages): the kinds in order without repeats, the text
    that was streamed, and the last event that carries a whole answer."""
    kinds: list[str] = []
    text = ""
    last: Any = None
    for event in found:
        if not kinds or kinds[-1] != event["type"]:
            kinds.append(event["type"])
        delta = event.get("delta")
        if isinstance(delta, str):
            text += delta
        elif isinstance(delta, dict):
            text += delta.get("text") or delta.get("partial_json") or ""
            last = delta if "stop_reason" in delta else last
        last = event.get("response", last)
    return {"kinds": kinds, "text": text, "last": last}
