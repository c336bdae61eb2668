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

from common.config.sections import Config

INTRODUCTION = """\
# Configuration

`baton config --reference` prints this page; a test keeps the two equal. Edit the strings under the
keys in `common/config/`, not this file.

One TOML file describes the fleet, and every daemon reads the same one. The environment overrides
the file: `BATON_ROUTER__MAX_QUEUE=64` sets `max_queue` of `[router]`. An unknown key or a bad
value is fatal. `baton check --config FILE` validates a file, and `baton config --config FILE`
prints each effective value with where it came from.

A worker is a table `[prefill.NAME]` or `[decode.NAME]`. Its sub-tables `engine` and `kv`, such as
`[decode.d0.kv]`, override single keys of `[engine]` and `[kv]` for this worker.

Units stand in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes, `_mib` MiB. Lengths of
a prompt or of KV are in tokens. A name that ends in `_max` is a limit.
"""


def reference() -> str:
    """The whole page."""
    root = type_info(Config)
    assert isinstance(root, StructType)
    return "\n".join([INTRODUCTION, *_sections_inside(root, "")])


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


def _table(section: StructType) -> str:
    sentences = key_sentences(section.cls)
    keys = [field for field in section.fields if not isinstance(field.type, StructType)]
    rows = [_row(field, sentences[field.name]) for field in keys]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def _row(field: Field, sentence: str) -> str:
    default = "none" if field.default is msgspec.NODEFAULT else f"`{_toml(field.default)}`"
    return f"| `{field.name}` | {_values(field.type)} | {default} | {sentence} |"


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
