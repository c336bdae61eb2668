"""Each of vLLM's engine arguments stands in one table, with the type that vLLM gives it."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import pytest
from vllm.config.quantization import QuantizationConfigArgs
from vllm.engine import arg_utils

from common.engine.vllm.argument_table import (
    KV_ARGUMENTS,
    OWN_KEYS,
    REFUSED,
    TEXT_ARGUMENTS,
    UNTESTED,
    WORKS,
)

FIELDS = {field.name: field for field in dataclasses.fields(arg_utils.EngineArgs)}
TABLES = (WORKS, UNTESTED, REFUSED, OWN_KEYS)
#: Types of vLLM's that a TOML file gives as a string or a number.
GIVEN_AS = {"attention_backend": {"str"}, "optimization_level": {"int"}}


def kinds_of(annotation: Any) -> set[str]:
    """The words of the tables for a type; `any` for one of several or of vLLM's own."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        inner = [kinds_of(one) for one in typing.get_args(annotation) if one is not type(None)]
        return set().union(*inner)
    if origin is typing.Literal:
        return {type(value).__name__ for value in typing.get_args(annotation)}
    plain = origin or annotation
    if plain in (bool, int, float, str, dict):
        return {plain.__name__}
    if plain in (list, set, tuple):
        return {"list"}
    return {"dict"} if dataclasses.is_dataclass(plain) else {"any"}


def test_each_argument_of_vllm_is_in_exactly_one_table() -> None:
    """It fails with the names that a new vLLM brought or took away: try them with a handoff and
    put them into `WORKS`, `REFUSED` or, untried, `UNTESTED_BY_KIND`."""
    placed = [name for table in TABLES for name in table]
    assert sorted(placed) == sorted(FIELDS)


def test_each_type_is_the_one_that_vllm_takes() -> None:
    names = {**vars(arg_utils), "QuantizationConfigArgs": QuantizationConfigArgs}
    hints = typing.get_type_hints(arg_utils.EngineArgs, names)
    table = UNTESTED | {name: works.kind for name, works in WORKS.items()}
    wrong = {
        name: (kind, kinds)
        for name, kind in table.items()
        if kind not in (kinds := GIVEN_AS.get(name, kinds_of(hints[name])))
        and not (kind == "any" and len(kinds) > 1)
    }
    assert wrong == {}


def test_what_is_harmless_begins_with_the_default_of_vllm() -> None:
    given = {name: refused.harmless[0] for name, refused in REFUSED.items() if refused.harmless}
    assert given == {name: FIELDS[name].default for name in given}


@pytest.mark.parametrize("names", [KV_ARGUMENTS, TEXT_ARGUMENTS])
def test_only_arguments_that_vllm_gets_are_passed_on(names: frozenset[str]) -> None:
    assert names <= WORKS.keys() | UNTESTED.keys()
