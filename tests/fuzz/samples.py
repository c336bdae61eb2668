"""Messages of a union as plain values, seeded, made from the types themselves: a new message or
field is under test by itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from msgspec import inspect

INTS = (0, 1, 2, 3, 7, 16, 1000, -1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.0, 1.0, 0.5, 12.5, -1.0, 1e300, -1e300, 1e-320, float("inf"), float("nan"))
TEXTS = ("", "r", "p0", "d0", "g0", "d0|1", "1", "\0", "é" * 40, "x" * 300, "../..", "\U0001f600")
BYTES = (b"", b"a", b"abcd", bytes(8), bytes(16), b"\xff" * 33, bytes(400))
WRONG: tuple[Any, ...] = (None, True, -1, 1.5, "text", b"bytes", [], {}, [[]], {"type": "Hello"})

PLAIN: dict[type[inspect.Type], Sequence[Any]] = {
    inspect.IntType: INTS,
    inspect.FloatType: FLOATS,
    inspect.StrType: TEXTS,
    inspect.BytesType: BYTES,
    inspect.BoolType: (True, False),
    inspect.NoneType: (None,),
    inspect.AnyType: WRONG,
}


class Samples:
    """`odd`: share of the values that are of another type than the message says. `words`: by field
    name, values that make messages fit together, taken half of the time."""

    def __init__(
        self, rng: random.Random, *, odd: float = 0.0, words: dict[str, Sequence[Any]] | None = None
    ) -> None:
        self._rng = rng
        self._odd = odd
        self._words = words or {}

    def of(self, union: Any, count: int) -> list[Any]:
        """Values of the union, as MessagePack would carry them."""
        kind = inspect.type_info(union)
        return [self._value(kind) for _ in range(count)]

    def _value(self, kind: inspect.Type) -> Any:
        rng = self._rng
        if self._odd and rng.random() < self._odd:
            return rng.choice(WRONG)
        plain = PLAIN.get(type(kind))
        if plain is not None:
            return rng.choice(plain if self._odd else _allowed(kind, plain))
        match kind:
            case inspect.UnionType(types=types):
                return self._value(rng.choice(types))
            case inspect.StructType():
                return self._struct(kind)
            case inspect.EnumType(cls=cls):
                return rng.choice(list(cls)).value
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case _:
                return self._container(kind)

    def _container(self, kind: inspect.Type) -> Any:
        size = self._rng.choice((0, 1, 2, 5))
        match kind:
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                return [self._value(item) for _ in range(size)]
            case inspect.TupleType(item_types=items):
                return [self._value(item) for item in items]
            case inspect.DictType(key_type=key, value_type=value):
                keys = INTS if isinstance(key, inspect.IntType) else TEXTS
                return {self._rng.choice(keys): self._value(value) for _ in range(size)}
            case _:
                raise TypeError(f"no samples of {kind}")

    def _struct(self, kind: inspect.StructType) -> Any:
        rng = self._rng
        values = {}
        for field in kind.fields:
            if not field.required and rng.random() < 0.4 and not kind.array_like:
                continue
            fitting = self._words.get(field.name)
            fits = fitting is not None and rng.random() < 0.8
            values[field.encode_name] = (
                rng.choice(fitting) if fitting and fits else self._value(field.type)
            )
        if kind.array_like:
            return list(values.values())
        if kind.tag_field is not None:
            values = {kind.tag_field: kind.tag} | values
        return values


def _allowed(kind: inspect.Type, values: Sequence[Any]) -> Sequence[Any]:
    """Those within the bounds that the message sets."""
    if isinstance(kind, inspect.StrType | inspect.BytesType):
        longest = kind.max_length
        return [value for value in values if longest is None or len(value) <= longest]
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return values
    least, most = kind.ge, kind.le
    return [
        value
        for value in values
        if (least is None or value >= least) and (most is None or value <= most)
    ]
