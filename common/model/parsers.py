"""The names of the parsers that the installed vLLM has, without importing it.

Importing vLLM takes seconds, and a router's host need not have it. The names are the keys of a
literal table in the source of each of vLLM's two parser packages; a test compares them with the
registries.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

TOOL = ("tool_parsers", "_TOOL_PARSERS_TO_REGISTER")
REASONING = ("reasoning", "_REASONING_PARSERS_TO_REGISTER")


def known_parsers(where: tuple[str, str]) -> tuple[str, ...]:
    """`where`: `TOOL` or `REASONING`. Sorted; empty where vLLM is not installed, or keeps its names
    otherwise."""
    package, table = where
    spec = find_spec("vllm")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        file = Path(folder) / package / "__init__.py"
        for node in ast.parse(file.read_bytes()).body if file.is_file() else ():
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
                continue
            if any(isinstance(target, ast.Name) and target.id == table for target in node.targets):
                return tuple(sorted(ast.literal_eval(node.value)))
    return ()
