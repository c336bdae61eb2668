"""Bodies that ask for much work with few bytes, made from the fields of our OpenAPI document.

Each field of each route gets values of the wrong shape at several sizes. `KNOWN` are the bodies
that once stopped a gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

from services.gateway.http.openapi import document

KIB = 1 << 10
MIB = 1 << 20
#: From 1 KB to the limit of a body.
SIZES = (KIB, 30 * KIB, 500 * KIB, 8 * MIB - 4 * KIB)
HELLO = '"messages":[{"role":"user","content":"x"}]'
#: The models of the fleet: one that generates, and one that pools.
TEXT, VECTORS = "baton-tiny", "vectors"
PAIRS = '"query":"x","documents":["x"]'
#: The smallest good body of each route but for its model. What turns out to be valid ends soon.
_OF_TEXT: dict[str, str] = {
    "/v1/chat/completions": f'"max_tokens":4,{HELLO}',
    "/v1/chat/completions/batch": '"max_tokens":4,"messages":[[{"role":"user","content":"x"}]]',
    "/v1/completions": '"prompt":"x","max_tokens":4',
    "/v1/responses": '"input":"x","max_output_tokens":4',
    "/v1/messages": f'"max_tokens":4,{HELLO}',
    "/v1/messages/count_tokens": HELLO,
    "/tokenize": '"prompt":"x"',
    "/detokenize": '"tokens":[1]',
}
_OF_VECTORS: dict[str, str] = {
    "/v1/embeddings": '"input":"x"',
    "/classify": '"input":"x"',
    "/pooling": '"input":"x"',
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), PAIRS),
    **dict.fromkeys(("/score", "/v1/score"), '"queries":"x","documents":["x"]'),
}
BASE: dict[str, str] = {
    path: f'"model":"{model}",{about}'
    for model, bodies in ((TEXT, _OF_TEXT), (VECTORS, _OF_VECTORS))
    for path, about in bodies.items()
}


@dataclass(frozen=True, slots=True)
class HostileBody:
    """`make` builds its bytes, up to 8 MiB."""

    name: str
    path: str
    make: Callable[[], bytes]


def array(*elements: str) -> Callable[[int], str]:
    """An array of about `size` bytes that repeats the elements."""
    unit = ",".join(elements)
    return lambda size: f"[{','.join([unit] * max(1, size // (len(unit) + 1)))}]"


def wide(size: int) -> str:
    """An object of many keys."""
    return "{" + ",".join(f'"k{n}":{{}}' for n in range(max(1, size // 12))) + "}"


def deep(size: int) -> str:
    return "[" * (size // 2) + "]" * (size // 2)


def nested(size: int) -> str:
    """Objects within objects, and arrays of these."""
    one = '{"a":' * 30 + "1" + "}" * 30
    return array(one)(size)


VALUES: dict[str, Callable[[int], str]] = {
    "objects": array("{}"),
    "arrays": array("[]"),
    "texts": array('""'),
    "mixed": array("[]", "1"),
    "nulls": array("null"),
    "ids": array("7"),
    "typed": array('{"type":"x"}'),
    "messages": array('{"type":"message","role":"user","content":[{}]}'),
    "functions": array('{"type":"function"}'),
    "parts": lambda size: '[{"role":"user","content":' + array("{}")(size) + "}]",
    "wide": wide,
    "deep": deep,
    "nested": nested,
    "text": lambda size: f'"{"word, " * (size // 6)}"',
    "spaces": lambda size: f'"{" " * size}"',
    "escapes": lambda size: '"' + "\\u00e9" * (size // 6) + '"',
    "digits": lambda size: "9" * size,
}


def body(path: str, field: str, value: str, *more: str) -> bytes:
    """The smallest good body of a route, with one field replaced."""
    base = json.loads("{" + BASE[path] + "}")
    base.pop(field, None)
    kept = [f"{json.dumps(name)}:{json.dumps(good)}" for name, good in base.items()]
    return ("{" + ",".join([*kept, f"{json.dumps(field)}:{value}", *more]) + "}").encode()


def _one(path: str, field: str, value: str, size: int, *more: str) -> HostileBody:
    make = VALUES[value]
    name = f"{path} {field}={value} {size >> 10} KiB {','.join(more)}"
    return HostileBody(name.strip(), path, lambda: body(path, field, make(size), *more))


RESPONSES, CHAT, COMPLETION = "/v1/responses", "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RERANK, SCORE = "/v1/embeddings", "/rerank", "/score"
BATCH = f"{CHAT}/batch"
REQUIRED = '"tool_choice":"required"'
PROPERTIES = ",".join(f'"a{n}":{{"type":"string"}}' for n in range(20))
FUNCTION = f'"name":"f","parameters":{{"type":"object","properties":{{{PROPERTIES}}}}}'
SERVER = '{"type":"mcp","server_label":"a","server_url":"http://127.0.0.1:1/"}'


def _many(path: str, field: str, element: str, count: int, *more: str) -> HostileBody:
    """So many of an element that is good."""
    make = array(element)
    return HostileBody(
        f"{path} {field}={count} good {','.join(more)}",
        path,
        lambda: body(path, field, make(count * (len(element) + 1)), *more),
    )


#: What once stopped a gateway.
KNOWN: list[HostileBody] = [
    *(_one(RESPONSES, "input", "objects", size) for size in (2 * KIB, 8 * KIB, SIZES[-1])),
    _one(RESPONSES, "input", "typed", 8 * KIB),
    _one(RESPONSES, "input", "texts", 8 * KIB),
    _one(RESPONSES, "input", "messages", 30 * KIB),
    _one(RESPONSES, "tools", "objects", 30 * KIB),
    _one(CHAT, "messages", "objects", 500 * KIB, '"n":2'),
    _one(CHAT, "messages", "parts", 500 * KIB, '"n":2'),
    _one(COMPLETION, "prompt", "mixed", SIZES[-1]),
    _one(COMPLETION, "prompt", "arrays", 3 * MIB),
    _one(COMPLETION, "prompt", "text", SIZES[-1], '"truncate_prompt_tokens":5'),
    _many(CHAT, "messages", '{"role":"user","content":"x"}', 200_000),
    _many(COMPLETION, "prompt", '"x"', 256, '"n":128'),
    _many(CHAT, "tools", f'{{"type":"function","function":{{{FUNCTION}}}}}', 500, REQUIRED),
]
#: For a model that pools, of which the gateway itself loads nothing.
POOLING: list[HostileBody] = [
    _many(EMBEDDINGS, "input", '"x"', 10_000),
    _many(EMBEDDINGS, "input", "[1]", 2_048, '"encoding_format":"base64"'),
    _many(EMBEDDINGS, "input", "7", 500_000),
    _one(EMBEDDINGS, "input", "text", SIZES[-1], '"truncate_prompt_tokens":5'),
    _many(RERANK, "documents", '"x"', 2_048),
    _many(SCORE, "documents", f'"{"word, " * 600}"', 2_048),
]
#: Good ones that ask for about as much as they may.
DEMANDING: list[HostileBody] = [
    _many(BATCH, "messages", '[{"role":"user","content":"x"}]', 256),
    _many(COMPLETION, "prompt", '"x"', 256),
    _many(CHAT, "tools", f'{{"type":"function","function":{{{FUNCTION}}}}}', 200, REQUIRED),
    _many(RESPONSES, "tools", SERVER, 400),
]


def by_field() -> Iterator[HostileBody]:
    """Values and sizes take turns, so that each field meets several of both."""
    paths = json.loads(document("test", full_api=True))["paths"]
    values, sizes = cycle(VALUES), cycle(SIZES)
    for path in [path for path, about in paths.items() if "requestBody" in about.get("post", {})]:
        content = paths[path]["post"]["requestBody"]["content"]["application/json"]
        for field in content["schema"]["properties"]:
            for _ in range(4):
                yield _one(path, field, next(values), next(sizes))
            next(sizes)
    for path in BASE:
        for value in VALUES:
            yield _one(path, "unknown", value, next(sizes))


def whole() -> Iterator[HostileBody]:
    yield from KNOWN
    yield from POOLING
    yield from DEMANDING
    yield from by_field()
