"""The loops between head-major pages and the canonical form as LLVM code, with the sum of what is
on the canonical side.

Theory of operation: a *tile* is one head of one canonical block, `TILE_ITEMS` tokens, and a whole
number of rows of the checksum. Its V is copied. Its K is transposed in squares of `TILE_ITEMS`
items by as many tokens, which lie in registers: interleaving the first half of a square's rows with
its second half, four times, transposes it. They pass through a few KB aside, so that the canonical
side is read and written from its first byte to its last: pieces of a line here and there took twice
as long. The tile is summed up while it is in the first cache. Where a line of a page has the items
of two tiles, both are done at once, so that whole lines are read and written. Where the canonical
side has another element type, items are converted in registers, and transposed in that type.

A loop gets *runs*, canonical blocks that follow each other in one page, and goes through them head
by head, in the order of memory.
Imported as `codegen` is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TypeVar

from llvmlite import ir

from common.blocks import ELEMENT_BYTES, Element
from common.kv.checksum.codegen import SumState, compiled_module, write_read_loop
from common.kv.checksum.definition import (
    LINE_BYTES,
    ROW_BYTES,
    RUN_FIELDS,
    TILE_ITEMS,
    WORDS,
    PageSizes,
    TileLoop,
)
from common.kv.checksum.vectorgen import converted, counted, lanes, transposed

_BIT, _BYTE, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_ADDRESS = ir.PointerType()
_LINE = ir.VectorType(_I64, LINE_BYTES // 8)
_SECOND_CACHE = 2  # of `llvm.prefetch`
AHEAD_BYTES = 4 << 10
"""So far ahead of what is read lines are fetched, at least. Squares of K jump from line to line, so
that the processor does not guess which come next; in the order of memory all do."""
Side = TypeVar("Side")


def tile_loops(
    page: PageSizes, *, on_lines: bool, convert: tuple[Element, Element] | None = None
) -> tuple[TileLoop, TileLoop]:
    """Into the canonical form, and out of it. The items of a head must be a multiple of
    `TILE_ITEMS`. `on_lines`: pages begin on lines, so that whole lines may be written past the
    caches. `convert`: the element types of the page and of the canonical form, if they differ.
    Raises RuntimeError, OSError."""
    module = ir.Module("tiles")
    read = write_read_loop(module)
    for name, gathers in (("gather", True), ("scatter", False)):
        _Tiles(module, read, page, on_lines=on_lines, convert=convert, gathers=gathers).write(name)
    engine = compiled_module(module)
    arguments = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
    shape = ctypes.CFUNCTYPE(None, *arguments)
    gather, scatter = (shape(engine.get_function_address(name)) for name in ("gather", "scatter"))
    return gather, scatter


class _Tiles:
    """Writes one of the two functions."""

    def __init__(
        self,
        module: ir.Module,
        read: ir.Function,
        page: PageSizes,
        *,
        on_lines: bool,
        convert: tuple[Element, Element] | None,
        gathers: bool,
    ) -> None:
        self._module, self._read, self._page = module, read, page
        self._on_lines, self._convert, self._gathers = on_lines, convert, gathers
        self._nontemporal = module.add_metadata([_I32(1)])
        self._copy = module.declare_intrinsic("llvm.memcpy", [_ADDRESS, _ADDRESS, _I64])
        fetched = ir.FunctionType(ir.VoidType(), [_ADDRESS, *[_I32] * 3])
        self._prefetch = module.globals.get("llvm.prefetch.p0") or ir.Function(
            module, fetched, "llvm.prefetch.p0"
        )
        self._step = page.tokens * page.item_bytes  # from an item of K to the next
        self._row = page.items * page.item_bytes  # K or V of one token
        self._head_bytes = page.tokens * 2 * self._row
        self._wire_item = ELEMENT_BYTES[convert[1]] if convert else page.item_bytes
        self._wire_row = page.items * self._wire_item
        self._tile_bytes = TILE_ITEMS * 2 * self._wire_row
        #: Whether tokens are whole rows of the checksum, so that it is computed as they pass.
        self._sums_rows = convert is None and 2 * self._row % ROW_BYTES == 0
        #: Whether two tiles share the lines of K.
        self._shares_lines = 2 * TILE_ITEMS * page.item_bytes == LINE_BYTES and not (
            self._step % LINE_BYTES
        )

    def write(self, name: str) -> None:
        """The loop over runs and heads."""
        kind = ir.FunctionType(ir.VoidType(), [*[_ADDRESS] * 3, _I64, _I64, _ADDRESS])
        function = ir.Function(self._module, kind, name)
        canonical, memory, table, runs, heads, sums = function.args
        make = self._make = ir.IRBuilder(function.append_basic_block())
        state = SumState(make)
        space = make.alloca(ir.ArrayType(_BYTE, self._page.tokens * self._wire_row))
        space.align = LINE_BYTES
        aside = make.inttoptr(make.ptrtoint(space, _I64), _ADDRESS)
        block_bytes = make.mul(heads, _I64(self._tile_bytes))
        with counted(make, runs) as number:
            wire, keys_at, values_at, parts = self._run(table, number)
            with counted(make, heads) as head:
                inside = make.mul(head, _I64(self._head_bytes))
                keys, values = (
                    self._at(memory, make.add(at, inside)) for at in (keys_at, values_at)
                )
                if self._gathers:
                    self._turn(keys, aside, parts)
                first = make.add(wire, make.mul(head, _I64(self._tile_bytes)))
                with counted(make, parts) as part:
                    at = make.add(first, make.mul(part, block_bytes))
                    of_keys = self._at(aside, make.mul(part, _I64(TILE_ITEMS * self._wire_row)))
                    of_values = self._at(values, make.mul(part, _I64(TILE_ITEMS * self._row)))
                    row = make.udiv(at, _I64(ROW_BYTES))
                    self._write_tile(
                        self._at(canonical, at), of_keys, of_values, (state, row, sums)
                    )
                if not self._gathers:
                    self._turn(keys, aside, parts)
        if not self._gathers:
            make.fence("seq_cst")
        make.ret_void()

    def _run(self, table: ir.Value, number: ir.Value) -> list[ir.Value]:
        make = self._make
        first = make.mul(number, _I64(RUN_FIELDS))
        places = [make.add(first, _I64(at)) for at in range(RUN_FIELDS)]
        return [
            make.load(make.gep(table, [place], source_etype=_I64), typ=_I64) for place in places
        ]

    def _write_tile(
        self,
        flat: ir.Value,
        aside: ir.Value,
        values: ir.Value,
        summing: tuple[SumState, ir.Value, ir.Value],
    ) -> None:
        """Between the canonical side and a tile's K aside and its V in the page. `summing`: also
        the number of the tile's first row, and the sums."""
        state, first_row, sums = summing
        if self._sums_rows:
            state.begin(sums, first_row)
            self._copy_and_sum(flat, aside, values, state)
            state.save(sums)
            return
        if not self._gathers:
            self._sum_up(flat, first_row, sums)
        with counted(self._make, _I64(TILE_ITEMS)) as token:
            self._copy_token(flat, aside, values, token)
        if self._gathers:
            self._sum_up(flat, first_row, sums)

    def _copy_and_sum(
        self, flat: ir.Value, aside: ir.Value, values: ir.Value, state: SumState
    ) -> None:
        """As `_copy_token` does token by token, summed up in the same pass."""
        make, row, token_bytes = self._make, self._row, 2 * self._row
        with counted(make, _I64(TILE_ITEMS)) as token:
            outside = self._at(flat, make.mul(token, _I64(token_bytes)))
            inside = make.mul(token, _I64(row))
            halves = [self._at(base, inside) for base in (aside, values)]
            if self._gathers:
                self._fetch(halves[1], row // LINE_BYTES, AHEAD_BYTES)
            lines: list[ir.Value] = []
            for at in range(0, token_bytes, LINE_BYTES):
                half, rest = divmod(at, row)
                places = self._at(halves[half], _I64(rest)), self._at(outside, _I64(at))
                source, target = self._in_order(places)
                lines.append(make.load(source, align=1, typ=_LINE))
                past = half == 1 and self._on_lines and not self._gathers
                stored = make.store(lines[-1], target, align=LINE_BYTES if past else 1)
                if past:
                    stored.set_metadata("nontemporal", self._nontemporal)
                if len(lines) == WORDS:
                    state.add(lines)
                    lines = []

    def _copy_token(
        self, flat: ir.Value, aside: ir.Value, values: ir.Value, token: ir.Value
    ) -> None:
        """K between the canonical side and aside, V between it and the page."""
        make = self._make
        outside = self._at(flat, make.mul(token, _I64(2 * self._wire_row)))
        beside = self._at(outside, _I64(self._wire_row))
        kept = self._at(aside, make.mul(token, _I64(self._wire_row)))
        inside = self._at(values, make.mul(token, _I64(self._row)))
        self._copy_row(*self._in_order((kept, outside)), self._wire_row, nontemporal=False)
        ends = self._in_order((inside, beside))
        if self._convert is not None:
            self._convert_row(*ends)
        else:
            self._copy_row(*ends, self._row, nontemporal=not self._gathers)

    def _copy_row(
        self, source: ir.Value, target: ir.Value, size: int, *, nontemporal: bool
    ) -> None:
        make = self._make
        if not (nontemporal and self._on_lines) or size % LINE_BYTES:
            make.call(self._copy, [target, source, _I64(size), _BIT(0)])
            return
        for at in range(0, size, LINE_BYTES):
            line = make.load(self._at(source, _I64(at)), align=1, typ=_LINE)
            stored = make.store(line, self._at(target, _I64(at)), align=LINE_BYTES)
            stored.set_metadata("nontemporal", self._nontemporal)

    def _convert_row(self, source: ir.Value, target: ir.Value) -> None:
        """V of one token, from the page or to it."""
        read, written = self._sizes
        for at in range(0, self._page.items, TILE_ITEMS):
            kind = ir.VectorType(ir.IntType(8 * read), TILE_ITEMS)
            place = self._at(source, _I64(at * read))
            line = self._in_other_type(self._make.load(place, align=read, typ=kind))
            self._store(line, self._at(target, _I64(at * written)), written)

    def _turn(self, keys: ir.Value, aside: ir.Value, parts: ir.Value) -> None:
        """Between the K of a run's tiles as it lies in its page and the same by tokens, square by
        square, in the order of the page."""
        make, step = self._make, TILE_ITEMS * self._page.item_bytes
        with counted(make, _I64(self._page.items // TILE_ITEMS)) as number:
            item = make.mul(number, _I64(TILE_ITEMS))
            of_items = self._at(keys, make.mul(item, _I64(self._step)))
            of_tokens = self._at(aside, make.mul(item, _I64(self._wire_item)))
            before, body, after = make.block, make.append_basic_block(), make.append_basic_block()
            make.branch(body)
            make.position_at_end(body)
            part = make.phi(_I64)
            part.add_incoming(_I64(0), before)
            if self._gathers:
                square_bytes, rows_bytes = TILE_ITEMS * step, TILE_ITEMS * self._step
                start = self._at(of_items, make.mul(part, _I64(square_bytes)))
                self._fetch(start, TILE_ITEMS, -(-AHEAD_BYTES // rows_bytes) * rows_bytes)
            in_page = self._at(of_items, make.mul(part, _I64(step)))
            by_token = self._at(of_tokens, make.mul(part, _I64(TILE_ITEMS * self._wire_row)))
            following = make.add(part, self._turn_some(in_page, by_token, make.sub(parts, part)))
            part.add_incoming(following, make.block)
            make.cbranch(make.icmp_unsigned("<", following, parts), body, after)
            make.position_at_end(after)

    def _turn_some(self, in_page: ir.Value, by_token: ir.Value, left: ir.Value) -> ir.Value:
        """The squares of two tiles if they share lines, or of one. Returns of how many."""
        if not self._shares_lines:
            self._turn_square(in_page, by_token, 1)
            return _I64(1)
        make = self._make
        offset = make.and_(make.ptrtoint(in_page, _I64), _I64(LINE_BYTES - 1))
        two_left = make.icmp_unsigned(">", left, _I64(1))
        at_once = make.and_(make.icmp_unsigned("==", offset, _I64(0)), two_left)
        with make.if_else(at_once) as (two, one):
            with two:
                self._turn_square(in_page, by_token, 2)
            with one:
                self._turn_square(in_page, by_token, 1)
        return make.select(at_once, _I64(2), _I64(1))

    def _turn_square(self, first: ir.Value, by_token: ir.Value, tiles: int) -> None:
        make, size = self._make, self._page.item_bytes
        in_page = [self._at(first, _I64(at * self._step)) for at in range(TILE_ITEMS)]
        if self._gathers:
            kind = ir.VectorType(ir.IntType(8 * size), TILE_ITEMS * tiles)
            lines = [make.load(at, align=size, typ=kind) for at in in_page]
            lines = [self._in_other_type(line) for line in lines]
            self._store_tokens(transposed(make, lines, TILE_ITEMS), by_token, tiles)
        else:
            lines = self._load_tokens(by_token, tiles)
            lines = transposed(make, lines, TILE_ITEMS * tiles)
            for line, at in zip(lines, in_page, strict=True):
                self._store(self._in_other_type(line), at, size)

    def _store_tokens(self, lines: Sequence[ir.Value], first: ir.Value, tiles: int) -> None:
        """Each of these lines has the items of as many tokens as there are tiles."""
        for number, line in enumerate(lines):
            for half in range(tiles):
                items = self._make.shuffle_vector(line, line, lanes(half * TILE_ITEMS, 1))
                place = self._at(first, _I64((number * tiles + half) * self._wire_row))
                self._make.store(items, place, align=self._wire_item)

    def _load_tokens(self, first: ir.Value, tiles: int) -> list[ir.Value]:
        """The reverse."""
        make, kind = self._make, ir.VectorType(ir.IntType(8 * self._wire_item), TILE_ITEMS)
        places = [self._at(first, _I64(at * self._wire_row)) for at in range(TILE_ITEMS * tiles)]
        tokens = [make.load(place, align=self._wire_item, typ=kind) for place in places]
        if tiles == 1:
            return tokens
        pairs = zip(tokens[::2], tokens[1::2], strict=True)
        return [make.shuffle_vector(*pair, lanes(0, 2)) for pair in pairs]

    def _fetch(self, first: ir.Value, lines: int, ahead: int) -> None:
        """Brings so many lines, which begin so many bytes after the first, to the second cache."""
        for at in range(0, lines * LINE_BYTES, LINE_BYTES):
            line = self._at(first, _I64(ahead + at))
            self._make.call(self._prefetch, [line, _I32(0), _I32(_SECOND_CACHE), _I32(1)])

    def _store(self, line: ir.Value, place: ir.Value, size: int) -> None:
        """Items of so many bytes, past the caches if they are a whole line of a page."""
        whole = not self._gathers and self._on_lines and line.type.count * size == LINE_BYTES
        stored = self._make.store(line, place, align=LINE_BYTES if whole else size)
        if whole:
            stored.set_metadata("nontemporal", self._nontemporal)

    def _in_other_type(self, line: ir.Value) -> ir.Value:
        """Items as they are read as they are written."""
        if self._convert is None:
            return line
        return converted(self._make, line, *self._in_order(self._convert))

    def _in_order(self, pair: tuple[Side, Side]) -> tuple[Side, Side]:
        """What is read and what is written, of a page's or aside, and of the canonical side's."""
        return pair if self._gathers else (pair[1], pair[0])

    @property
    def _sizes(self) -> tuple[int, int]:
        """Bytes of an item as it is read and as it is written, between page and wire."""
        return self._in_order((self._page.item_bytes, self._wire_item))

    def _sum_up(self, canonical: ir.Value, first_row: ir.Value, sums: ir.Value) -> None:
        """A tile. `read` adds offsets to the address that it is given, here one of 0."""
        nothing = ir.Constant(_ADDRESS, None)
        where = [nothing, nothing, canonical, self._zero()]
        self._make.call(self._read, [*where, _I64(1), _I64(self._tile_bytes), first_row, sums])

    def _zero(self) -> ir.Value:
        """The address of an offset of 0."""
        name = "zero"
        if name not in self._module.globals:
            zero = ir.GlobalVariable(self._module, _I64, name)
            zero.initializer, zero.global_constant, zero.linkage = _I64(0), True, "internal"
        found = self._make.ptrtoint(self._module.globals[name], _I64)
        return self._make.inttoptr(found, _ADDRESS)

    def _at(self, base: ir.Value, offset: ir.Value) -> ir.Value:
        return self._make.gep(base, [offset], source_etype=_BYTE)
