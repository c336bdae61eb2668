"""The names of the parsers that the installed vLLM has, without importing it.

The names are the keys of a table in the source of each of vLLM's two parser packages; a test
compares them with the registries.
"""

from __future__ import annotations

from common.model.vllm_source import literal_tables

TOOL = ("tool_parsers", "_TOOL_PARSERS_TO_REGISTER")
REASONING = ("reasoning", "_REASONING_PARSERS_TO_REGISTER")


def known_parsers(where: tuple[str, str]) -> tuple[str, ...]:
    """`where`: `TOOL` or `REASONING`. Sorted; empty where vLLM is not installed, or keeps its names
    otherwise."""
    package, table = where
    return tuple(sorted(literal_tables("vllm", f"{package}/__init__.py").get(table) or ()))
