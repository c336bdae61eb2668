"""The configuration reference as Markdown, made from the sections and the strings under their keys.

`baton config --reference` prints it, and `docs/configuration.md` is its output.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

import msgspec
from msgspec.inspect import (
    BoolType,
    DictType,
    Field,
    FloatType,
    IntType,
    LiteralType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from common.config.base import Section
from common.config.gateway import CellConfig
from common.config.sections import AdapterConfig, Config
from common.engine.vllm.argument_table import (
    KV_ARGUMENTS,
    OWN_KEYS,
    REFUSED,
    TEXT_ARGUMENTS,
    UNTESTED,
    WORKS,
    Works,
)

INTRODUCTION = """\
# Configuration

`baton config --reference` prints this page; a test keeps the two equal. Edit the strings under the
keys in `common/config/`, not this file.

One TOML file describes the fleet, and every daemon reads the same one. The environment overrides
the file: `BATON_ROUTER__MAX_QUEUE=64` sets `max_queue` of `[router]`. An unknown key or a bad
value is fatal. `baton check --config FILE` validates a file, and `baton config --config FILE`
prints each effective value with where it came from.

A worker is a table `[prefill.NAME]` or `[decode.NAME]`. Its sub-tables `engine` and `kv`, such as
`[decode.d0.kv]`, override single keys of `[engine]` and `[kv]` for this worker. With
`role = "mixed"` it begins as a worker of both roles, on one engine.

A pool is a table `[pool.NAME]`: a daemon that stores KV for the workers of a model and computes
nothing. `[pool.s0.kv]` overrides keys of `[kv]` for it, and `[pool.s0.kv.store] ram_mib` says how
much it holds; with several models `model` says whose KV. The workers need a store of their own,
out of which a pool gets its blocks.

A fleet that serves one model has it in `[model]`. One that serves several has a table
`[models.NAME]` for each, with the keys of `[model]`, and each worker says which it serves:
`[decode.d0]` with `model = "NAME"`. Nothing that the router measures of one model counts for
another, and the limits of `[router]` are for each model.

A model may have LoRA adapters, `[adapters.NAME]`. Each of its workers loads them when it starts,
and clients ask for one by its NAME.

Units stand in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes, `_mib` MiB. Lengths of
a prompt or of KV are in tokens. A name that ends in `_max` is a limit.
"""
ENGINE_ARGUMENTS = f"""\
## Engine arguments

`[engine.args]` takes the engine arguments of vLLM 0.32 by name, as `vllm serve` does with dashes;
`[decode.NAME.engine.args]` sets one for one worker. They are checked when the file is read, and
`baton check`, `baton doctor` and `baton up` say what is wrong before anything starts. An argument
that vLLM does not have is refused with the nearest name.

Some change what KV means: they must be alike on all workers, and the fingerprint has them, so that
workers which differ never exchange KV. They are
{", ".join(f"`{n}`" for n in sorted(KV_ARGUMENTS))}.

Some change how text becomes tokens and what a request may ask for: they must be alike on all
workers, too, and the gateway's text classes get them. They are
{", ".join(f"`{n}`" for n in sorted(TEXT_ARGUMENTS))}.
"""


def reference() -> str:
    """The whole page."""
    root = type_info(Config)
    assert isinstance(root, StructType)
    tables: dict[str, type[Section]] = {"gateway.cells": CellConfig, "adapters": AdapterConfig}
    named = [_named_table(path, keys) for path, keys in tables.items()]
    sections = _sections_inside(root, "")
    return "\n".join([INTRODUCTION, *sections, *named, *_engine_arguments()])


def key_sentences(section: type) -> dict[str, str]:
    """By key, the string that stands under it in the source of this section."""
    source = ast.parse(textwrap.dedent(inspect.getsource(section)))
    assert isinstance(source.body[0], ast.ClassDef)
    sentences: dict[str, str] = {}
    key = ""
    for node in source.body[0].body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=key)):
                pass
            case ast.Expr(value=ast.Constant(value=str(text))) if key:
                sentences[key] = " ".join(text.split())
    return sentences


def _sections_inside(section: StructType, prefix: str) -> Iterator[str]:
    """Each section with a table of its keys, and after it the sections inside it."""
    for field in section.fields:
        if isinstance(field.type, StructType):
            yield f"## `[{prefix}{field.name}]`\n\n{inspect.getdoc(field.type.cls)}\n"
            yield _table(field.type)
            yield from _sections_inside(field.type, f"{prefix}{field.name}.")


def _named_table(path: str, keys: type[Section]) -> str:
    """A table of the file that is no section, has a name of its own, and keys."""
    section = type_info(keys)
    assert isinstance(section, StructType)
    return f"## `[{path}.NAME]`\n\n{inspect.getdoc(keys)}\n\n{_table(section)}"


def _engine_arguments() -> Iterator[str]:
    """What becomes of each of vLLM's engine arguments."""
    yield ENGINE_ARGUMENTS
    yield "### Tried with a handoff\n\n| argument | values | meaning |\n|---|---|---|"
    for name, works in sorted(WORKS.items()):
        yield f"| `{name}` | {_argument_values(works)} | {works.sentence} |"
    names = ", ".join(f"`{name}`" for name in sorted(UNTESTED))
    yield f"\n### Passed on with a warning\n\nThese were never tried with a handoff: {names}.\n"
    yield "### Refused\n\n| arguments | why, and what to do |\n|---|---|"
    for sentence in dict.fromkeys(refused.sentence for refused in REFUSED.values()):
        refused_names = [name for name in sorted(REFUSED) if REFUSED[name].sentence == sentence]
        yield f"| {', '.join(map(_refused_argument, refused_names))} | {sentence} |"
    yield "\n### Set by Baton\n\n| argument | key to use |\n|---|---|"
    for name, key in sorted(OWN_KEYS.items()):
        yield f"| `{name}` | {f'`{key}`' if key else 'none'} |"
    yield ""


def _refused_argument(name: str) -> str:
    taken = " or ".join(f"`{_toml(value)}`" for value in REFUSED[name].harmless)
    return f"`{name}` (but {taken})" if taken else f"`{name}`"


def _argument_values(works: Works) -> str:
    nouns = {"bool": "true or false", "int": "whole number", "float": "number", "str": "string"}
    if works.values:
        return ", ".join(f"`{_toml(value)}`" for value in works.values)
    least = "" if works.least is None else f", >= {works.least}"
    return nouns.get(works.kind, "table") + least


def _table(section: StructType) -> str:
    sentences = key_sentences(section.cls)
    keys = [field for field in section.fields if not isinstance(field.type, StructType)]
    rows = [_row(field, sentences[field.name]) for field in keys]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def _row(field: Field, sentence: str) -> str:
    default = "none" if field.default is msgspec.NODEFAULT else f"`{_toml(field.default)}`"
    return f"| `{field.encode_name}` | {_values(field.type)} | {default} | {sentence} |"


def _values(kind: Type) -> str:
    match kind:
        case BoolType():
            return "true or false"
        case IntType() | FloatType():
            noun = "whole number" if isinstance(kind, IntType) else "number"
            bounds = ((">=", kind.ge), (">", kind.gt), ("<=", kind.le), ("<", kind.lt))
            given = [f"{sign} {bound}" for sign, bound in bounds if bound is not None]
            return ", ".join([noun, *given])
        case LiteralType():
            return ", ".join(f"`{_toml(value)}`" for value in kind.values)
        case UnionType():
            return " or ".join(_values(one) for one in kind.types)
        case StrType():
            return "string"
        case VarTupleType(item_type=StrType()):
            return "list of strings"
        case DictType(value_type=StrType()):
            return "table of strings"
        case DictType():
            return "table"
    raise TypeError(f"a configuration key cannot be {kind}")


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode()
