"""Which layers of vLLM's source a registered model may have, followed by name without importing it.

A class or function of a model is a place: `(module, name)`. It leads to each place that its text
names, whatever the platform or the configuration: so what is found is all that a model can have,
and more.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from common.model.architectures import GENERATING, REGISTRY
from common.model.vllm_source import literal_tables

Place: TypeAlias = tuple[str, str]
MODELS = "vllm.model_executor.models"
#: Where models and the layers of attention are; a walk goes no further.
SCOPE = (
    MODELS,
    "vllm.models",
    "vllm.model_executor.layers.attention",
    "vllm.v1.attention.backends.mla.sparse_swa",
)
HANDED_OVER = frozenset(
    {
        "FullAttentionSpec",
        "MLAAttentionSpec",
        "SlidingWindowSpec",
        "ChunkedLocalAttentionSpec",
        "MambaSpec",
    }
)
#: Fields that make of these something else.
ODD_FIELDS = frozenset({"cache_role", "tokens_per_state", "non_causal"})
LATENT = "MLAAttention"
ENCODER_ONLY = "EncoderOnlyAttention"


class Module:
    """What stands at a module's top level, and what it imports anywhere."""

    def __init__(self, name: str, path: Path) -> None:
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, set[Place]] = {}
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for statement in _top_level(tree.body):
            for defined in _defined(statement):
                self.definitions.setdefault(defined, []).append(statement)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                source = _source(node, package)
                for alias in node.names:
                    place = (source, alias.name)
                    self.imports.setdefault(alias.asname or alias.name, set()).add(place)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If | ast.Try):
            yield from _top_level([*statement.body, *statement.orelse])
        else:
            yield statement


def _defined(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _source(node: ast.ImportFrom, package: str) -> str:
    """The module that is imported from, by its whole name."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


@functools.cache
def module(name: str) -> Module | None:
    """None if vLLM has none of that name, or it is out of `SCOPE`."""
    found = find_spec("vllm")
    if found is None or not name.startswith(SCOPE):
        return None
    (root,) = found.submodule_search_locations or [""]
    path = Path(root).joinpath(*name.split(".")[1:])
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return Module(name, file)
    return None


@functools.cache
def places(source: str, name: str) -> frozenset[Place]:
    """Where that is defined which a module knows by this name."""
    return frozenset(_places(source, name, set()))


def _places(source: str, name: str, seen: set[Place]) -> Iterator[Place]:
    known = module(source)
    if known is None or (source, name) in seen:
        return
    seen.add((source, name))
    if name in known.definitions:
        yield source, name
    for imported_from, original in known.imports.get(name, ()):
        yield from _places(imported_from, original, seen)


@functools.cache
def next_places(place: Place) -> frozenset[Place]:
    """A string that names an architecture leads to it, too."""
    source, name = place
    known = module(source)
    assert known is not None
    found: set[Place] = set()
    for definition in known.definitions[name]:
        for node in ast.walk(definition):
            match node:
                case ast.Name(id=other):
                    found |= places(source, other)
                case ast.Constant(value=str(text)) if text in registered():
                    found |= registered()[text]
    return frozenset(found)


@functools.cache
def registered() -> dict[str, frozenset[Place]]:
    """By architecture, the classes that vLLM may take for it."""
    tables = literal_tables("vllm", REGISTRY)
    entries = {name: entry for table in GENERATING for name, entry in tables[table].items()}
    whole = {
        name: (source if source.startswith("vllm.") else f"{MODELS}.{source}", made)
        for name, (source, made) in entries.items()
    }
    return {name: places(*place) for name, place in whole.items()}


def reached(architecture: str) -> set[Place]:
    todo = list(registered()[architecture])
    seen = set(todo)
    while todo:
        new = next_places(todo.pop()) - seen
        seen |= new
        todo += new
    return seen


@functools.cache
def keeps_another_kind(place: Place) -> bool:
    """Whether it is a layer that says of its KV something else than what is handed over."""
    source, name = place
    known = module(source)
    assert known is not None
    calls = [
        (function.name, call)
        for definition in known.definitions[name]
        if isinstance(definition, ast.ClassDef) and name != LATENT
        for function in definition.body
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]
    return name == ENCODER_ONLY or any(_is_odd(function, call) for function, call in calls)


def _is_odd(function: str, call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Name)
    made, given = call.func.id, {keyword.arg: keyword.value for keyword in call.keywords}
    if made.endswith(LATENT):  # a window makes another kind of it
        window = given.get("sliding_window", ast.Constant(None))
        return not (isinstance(window, ast.Constant) and window.value is None)
    if function != "get_kv_cache_spec":
        return False
    other = made.endswith("Spec") and made not in HANDED_OVER
    return other or ((made == "replace" or made.endswith("Spec")) and bool(ODD_FIELDS & {*given}))
