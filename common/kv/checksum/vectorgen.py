"""Pieces of LLVM code: a counted loop, matrices transposed in vectors, and vectors of one element
type as those of another, which is what `compression/elements.py` does with numpy.

Imported as `codegen` is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from llvmlite import ir

from common.blocks import Element
from common.kv.checksum.definition import TILE_ITEMS

_FLOAT16_MAX = 65504.0
_QUIET_NAN = 0x7FC00000
_I32, _I64 = ir.IntType(32), ir.IntType(64)


@contextlib.contextmanager
def counted(make: ir.IRBuilder, count: ir.Value) -> Iterator[ir.Value]:
    """A loop over [0, count), with at least one turn."""
    before, body, after = make.block, make.append_basic_block(), make.append_basic_block()
    make.branch(body)
    make.position_at_end(body)
    number = make.phi(_I64)
    number.add_incoming(_I64(0), before)
    yield number
    following = make.add(number, _I64(1))
    number.add_incoming(following, make.block)
    make.cbranch(make.icmp_unsigned("<", following, count), body, after)
    make.position_at_end(after)


def transposed(make: ir.IRBuilder, lines: Sequence[ir.Value], rows: int) -> list[ir.Value]:
    """Of a matrix with so many rows, a power of two, that these lines are one after another."""
    found, half = list(lines), len(lines) // 2
    width = found[0].type.count
    low, high = (
        ir.Constant(
            ir.VectorType(_I32, width),
            [_I32(side) for at in range(first, first + width // 2) for side in (at, width + at)],
        )
        for first in (0, width // 2)
    )
    for _ in range(rows.bit_length() - 1):
        found = [
            make.shuffle_vector(found[at], found[at + half], mask)
            for at in range(half)
            for mask in (low, high)
        ]
    return found


def lanes(first: int, vectors: int) -> ir.Constant:
    """The mask of `TILE_ITEMS` lanes for each of so many vectors, from this lane on."""
    count = TILE_ITEMS * vectors
    return ir.Constant(ir.VectorType(_I32, count), [_I32(first + at) for at in range(count)])


def converted(make: ir.IRBuilder, line: ir.Value, own: Element, wanted: Element) -> ir.Value:
    """The bits of the nearest items of another type, ties to even. What is too large for float16
    becomes its largest, infinities too; NaN stays NaN."""
    count = line.type.count
    values = _widened(make, line, own, count)
    if wanted == "float32":
        return make.bitcast(values, ir.VectorType(ir.IntType(32), count))
    bits = make.bitcast(values, ir.VectorType(ir.IntType(32), count))
    is_nan = make.fcmp_unordered("uno", values, values)
    bits = make.select(is_nan, _whole(_QUIET_NAN, count), bits)
    if wanted == "bfloat16":
        return _upper_half(make, bits, count)
    return _half(make, make.bitcast(bits, values.type), count)


def _widened(make: ir.IRBuilder, line: ir.Value, own: Element, count: int) -> ir.Value:
    floats = ir.VectorType(ir.FloatType(), count)
    if own == "float32":
        return make.bitcast(line, floats)
    if own == "float16":
        return make.fpext(make.bitcast(line, ir.VectorType(ir.HalfType(), count)), floats)
    bits = make.zext(line, ir.VectorType(ir.IntType(32), count))
    return make.bitcast(make.shl(bits, _whole(16, count)), floats)


def _upper_half(make: ir.IRBuilder, bits: ir.Value, count: int) -> ir.Value:
    """bfloat16, rounded."""
    odd = make.and_(make.lshr(bits, _whole(16, count)), _whole(1, count))
    rounded = make.add(bits, make.add(odd, _whole(0x7FFF, count)))
    upper = make.lshr(rounded, _whole(16, count))
    return make.trunc(upper, ir.VectorType(ir.IntType(16), count))


def _half(make: ir.IRBuilder, values: ir.Value, count: int) -> ir.Value:
    """float16, rounded, and bounded by its largest."""
    largest, least = (
        ir.Constant(values.type, [ir.FloatType()(bound)] * count)
        for bound in (_FLOAT16_MAX, -_FLOAT16_MAX)
    )
    values = make.select(make.fcmp_ordered(">", values, largest), largest, values)
    values = make.select(make.fcmp_ordered("<", values, least), least, values)
    halves = make.fptrunc(values, ir.VectorType(ir.HalfType(), count))
    return make.bitcast(halves, ir.VectorType(ir.IntType(16), count))


def _whole(number: int, count: int) -> ir.Constant:
    kind = ir.IntType(32)
    return ir.Constant(ir.VectorType(kind, count), [kind(number)] * count)
