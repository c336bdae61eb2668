"""Tables in the source of the installed vLLM and transformers, read without importing either.

Importing them takes seconds, and a router's host need not have them. A table is a literal that is
assigned to a name at the top level of a file; tests compare what is read with what the libraries
themselves have.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def installed_text(package: str, file: str) -> str:
    """The text of a file of an installed package; empty where there is none."""
    spec = find_spec(package)
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        path = Path(folder) / file
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return ""


def literal_tables(package: str, file: str) -> dict[str, Any]:
    """By name, what stands there: a list, a tuple, or a dictionary, of whose entries those are left
    out that are not literal. Empty where the package is not installed."""
    tables: dict[str, Any] = {}
    for node in ast.parse(installed_text(package, file)).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        tables[name] = _evaluated(value)
    return tables


def _evaluated(node: ast.expr) -> Any:
    """`OrderedDict([...])` is its list; None stands for what is no literal."""
    match node:
        case ast.Call(args=[ast.List() as pairs]):
            return _evaluated(pairs)
        case ast.Dict(keys=keys, values=values):
            entries = [(key, value) for key, value in zip(keys, values, strict=True) if key]
            return {_evaluated(key): _evaluated(value) for key, value in entries}
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
