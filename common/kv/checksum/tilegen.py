"""The loops between a head-major page and the canonical form as LLVM code, with the sum of what is
on the canonical side.

Theory of operation: a *tile* is one head of one canonical block, `TILE_ITEMS` tokens, and a whole
number of rows of the checksum. Its V is copied. Its K is transposed in squares of `TILE_ITEMS`
items by as many tokens, which lie in registers: interleaving the first half of a square's rows with
its second half, four times, transposes it. They pass through a few KB aside, so that the canonical
side is read and written from its first byte to its last: pieces of a line here and there took twice
as long. The tile is summed up while it is in the first cache.
Imported as `codegen` is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from llvmlite import ir

from common.kv.checksum.codegen import compiled_module, write_read_loop
from common.kv.checksum.definition import LINE_BYTES, ROW_BYTES, TILE_ITEMS, TileLoop

_BYTE, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_ADDRESS = ir.PointerType()
_LINE = ir.VectorType(_I64, LINE_BYTES // 8)
_SECOND_CACHE = 2  # of `llvm.prefetch`
_ROUNDS = TILE_ITEMS.bit_length() - 1


def tile_loops(
    items: int, item_bytes: int, tokens: int, *, on_lines: bool
) -> tuple[TileLoop, TileLoop]:
    """Into the canonical form, and out of it. `items`: of the K of one head and token, a multiple
    of `TILE_ITEMS`. `tokens`: of a page. `on_lines`: pages begin on lines, so that whole lines may
    be written past the caches. Raises RuntimeError, OSError."""
    module = ir.Module("tiles")
    read = write_read_loop(module)
    tiles = _Tiles(module, read, items, item_bytes, tokens, on_lines=on_lines)
    tiles.write("gather", gathers=True)
    tiles.write("scatter", gathers=False)
    engine = compiled_module(module)
    arguments = [ctypes.c_void_p] * 5 + [ctypes.c_int64, ctypes.c_void_p]
    shape = ctypes.CFUNCTYPE(None, *arguments)
    gather, scatter = (shape(engine.get_function_address(name)) for name in ("gather", "scatter"))
    return gather, scatter


class _Tiles:
    """Writes the two functions."""

    def __init__(
        self,
        module: ir.Module,
        read: ir.Function,
        items: int,
        item_bytes: int,
        tokens: int,
        *,
        on_lines: bool,
    ) -> None:
        self._module, self._read, self._on_lines = module, read, on_lines
        self._nontemporal = module.add_metadata([_I32(1)])
        self._copy = module.declare_intrinsic("llvm.memcpy", [_ADDRESS, _ADDRESS, _I64])
        fetched = ir.FunctionType(ir.VoidType(), [_ADDRESS, *[_I32] * 3])
        self._prefetch = ir.Function(module, fetched, "llvm.prefetch.p0")
        self._item_bytes = item_bytes
        self._step = tokens * item_bytes  # from an item of K to the next
        self._row = items * item_bytes  # K or V of one token
        self._items = items
        self._vector = ir.VectorType(ir.IntType(8 * item_bytes), TILE_ITEMS)
        self._tile_bytes = TILE_ITEMS * 2 * self._row

    def write(self, name: str, *, gathers: bool) -> None:
        kind = ir.FunctionType(ir.VoidType(), [*[_ADDRESS] * 5, _I64, _ADDRESS])
        function = ir.Function(self._module, kind, name)
        canonical, canonical_at, memory, keys_at, values_at, tiles, sums = function.args
        start, tile, end = (function.append_basic_block() for _ in range(3))
        make = self._make = ir.IRBuilder(start)
        number, self._first_item = make.alloca(_I64), make.alloca(_I64)
        space = make.alloca(ir.ArrayType(_BYTE, TILE_ITEMS * self._row))
        space.align = LINE_BYTES
        rows = make.inttoptr(make.ptrtoint(space, _I64), _ADDRESS)
        make.store(_I64(0), number)
        make.branch(tile)

        make.position_at_end(tile)
        here = make.load(number, typ=_I64)
        place = make.gep(canonical_at, [here], source_etype=_I64)
        flat = self._listed(canonical, canonical_at, here)
        keys, values = (self._listed(memory, offsets, here) for offsets in (keys_at, values_at))
        there = make.add(here, _I64(1))
        if gathers:
            following = make.select(make.icmp_unsigned("<", there, tiles), there, here)
            next_keys = self._listed(memory, keys_at, following)
            self._turn(keys, rows, (next_keys, self._listed(memory, values_at, following)))
        else:
            self._sum_up(canonical, place, sums)
        for token in range(TILE_ITEMS):
            aside, inside = (self._at(of, _I64(token * self._row)) for of in (rows, values))
            outside = [self._at(flat, _I64((2 * token + half) * self._row)) for half in (0, 1)]
            for ours, theirs, lasts in ((aside, outside[0], False), (inside, outside[1], True)):
                source, target = (ours, theirs) if gathers else (theirs, ours)
                self._copy_row(source, target, nontemporal=lasts and not gathers)
        if gathers:
            self._sum_up(canonical, place, sums)
        else:
            self._turn(keys, rows)
        make.store(there, number)
        make.cbranch(make.icmp_unsigned("<", there, tiles), tile, end)
        make.position_at_end(end)
        if not gathers:
            make.fence("seq_cst")
        make.ret_void()

    def _copy_row(self, source: ir.Value, target: ir.Value, *, nontemporal: bool) -> None:
        make = self._make
        if not (nontemporal and self._on_lines) or self._row % LINE_BYTES:
            make.call(self._copy, [target, source, _I64(self._row), ir.IntType(1)(0)])
            return
        for at in range(0, self._row, LINE_BYTES):
            line = make.load(self._at(source, _I64(at)), align=1, typ=_LINE)
            stored = make.store(line, self._at(target, _I64(at)), align=LINE_BYTES)
            stored.set_metadata("nontemporal", self._nontemporal)

    def _turn(
        self, keys: ir.Value, rows: ir.Value, ahead: tuple[ir.Value, ir.Value] | None = None
    ) -> None:
        """Between the K of a tile as it lies in its page and the same by tokens, square by
        square. What is written after it comes after all squares. `ahead`: the K and the V of the
        next tile, if they are read."""
        make, size, gathers = self._make, self._item_bytes, ahead is not None
        square, after = (make.function.append_basic_block() for _ in range(2))
        make.store(_I64(0), self._first_item)
        make.branch(square)
        make.position_at_end(square)
        item = make.load(self._first_item, typ=_I64)
        in_page, by_token = (
            [self._at(first, _I64(at * step)) for at in range(TILE_ITEMS)]
            for first, step in (
                (self._at(keys, make.mul(item, _I64(self._step))), self._step),
                (self._at(rows, make.mul(item, _I64(size))), self._row),
            )
        )
        if ahead is not None:
            self._fetch_square(*ahead, item)
        source, target = (in_page, by_token) if gathers else (by_token, in_page)
        lines = [make.load(at, align=size, typ=self._vector) for at in source]
        whole = not gathers and self._on_lines and TILE_ITEMS * size == LINE_BYTES
        for line, at in zip(self._transposed(lines), target, strict=True):
            stored = make.store(line, at, align=LINE_BYTES if whole else size)
            if whole:
                stored.set_metadata("nontemporal", self._nontemporal)
        following = make.add(item, _I64(TILE_ITEMS))
        make.store(following, self._first_item)
        make.cbranch(make.icmp_unsigned("<", following, _I64(self._items)), square, after)
        make.position_at_end(after)

    def _fetch_square(self, keys: ir.Value, values: ir.Value, item: ir.Value) -> None:
        """Brings a square's share of a tile to the second cache. The lines of K are too far from
        each other for the processor to guess, and too alike in their addresses for the first."""
        make, share = self._make, TILE_ITEMS * self._item_bytes
        of_keys = self._at(keys, make.mul(item, _I64(self._step)))
        of_values = self._at(values, make.mul(item, _I64(share)))
        places = [(of_keys, at * self._step) for at in range(TILE_ITEMS)]
        places += [(of_values, at) for at in range(0, TILE_ITEMS * share, LINE_BYTES)]
        for base, at in places:
            line = self._at(base, _I64(at))
            make.call(self._prefetch, [line, _I32(0), _I32(_SECOND_CACHE), _I32(1)])

    def _transposed(self, rows: Sequence[ir.Value]) -> list[ir.Value]:
        half = TILE_ITEMS // 2
        low, high = (
            ir.Constant(
                ir.VectorType(_I32, TILE_ITEMS),
                [_I32(side) for at in range(first, first + half) for side in (at, TILE_ITEMS + at)],
            )
            for first in (0, half)
        )
        found = list(rows)
        for _ in range(_ROUNDS):
            found = [
                self._make.shuffle_vector(found[at], found[at + half], mask)
                for at in range(half)
                for mask in (low, high)
            ]
        return found

    def _sum_up(self, canonical: ir.Value, place: ir.Value, sums: ir.Value) -> None:
        """`place`: the address of the tile's offset."""
        nothing = ir.Constant(_ADDRESS, None)
        first_row = self._make.udiv(self._make.load(place, typ=_I64), _I64(ROW_BYTES))
        where = [nothing, nothing, canonical, place]
        self._make.call(self._read, [*where, _I64(1), _I64(self._tile_bytes), first_row, sums])

    def _listed(self, base: ir.Value, offsets: ir.Value, number: ir.Value) -> ir.Value:
        place = self._make.gep(offsets, [number], source_etype=_I64)
        return self._at(base, self._make.load(place, typ=_I64))

    def _at(self, base: ir.Value, offset: ir.Value) -> ir.Value:
        return self._make.gep(base, [offset], source_etype=_BYTE)
