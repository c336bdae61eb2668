"""Detects the tool that wrote a file and reads the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from common.errors import ConfigError
from loadtest.comparison import aiperf, baton, vllm
from loadtest.comparison.load_summary import LoadSummary


class Tool(NamedTuple):
    """The format of one tool."""

    #: What the tool calls its file.
    name: str
    matches: Callable[[dict[str, Any]], bool]
    #: Converts a file. Raises msgspec.ValidationError.
    summary: Callable[[dict[str, Any]], LoadSummary]


TOOLS = tuple(Tool(tool.NAME, tool.matches, tool.summary) for tool in (baton, vllm, aiperf))
BYTES_MAX = 1 << 30


def read(path: Path) -> LoadSummary:
    """Raises ConfigError that names what the file lacks."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ConfigError(str(path), f"is larger than {BYTES_MAX >> 20} MiB")
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not one JSON object: {error}") from error
    for tool in TOOLS:
        if tool.matches(fields):
            try:
                return tool.summary(fields)
            except msgspec.ValidationError as error:
                raise ConfigError(str(path), f"is not as {tool.name} writes it: {error}") from error
    names = ", ".join(tool.name for tool in TOOLS)
    raise ConfigError(str(path), f"is none of these: {names}")
