"""Which tool wrote a file, and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from common.errors import ConfigError
from loadtest.results import aiperf, baton, vllm
from loadtest.results.seen import Seen


class Tool(NamedTuple):
    """`name`: of the file it writes. `seen` raises msgspec.ValidationError."""

    name: str
    is_one: Callable[[dict[str, Any]], bool]
    seen: Callable[[dict[str, Any]], Seen]


TOOLS = tuple(Tool(each.NAME, each.is_one, each.seen) for each in (baton, vllm, aiperf))
BYTES_MAX = 1 << 30


def read(path: Path) -> Seen:
    """Raises ConfigError that says what the file lacks."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ConfigError(str(path), f"is larger than {BYTES_MAX >> 20} MiB")
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not one JSON object: {error}") from error
    for tool in TOOLS:
        if tool.is_one(fields):
            try:
                return tool.seen(fields)
            except msgspec.ValidationError as error:
                raise ConfigError(str(path), f"is not as {tool.name} writes it: {error}") from error
    names = ", ".join(tool.name for tool in TOOLS)
    raise ConfigError(str(path), f"is none of these: {names}")
