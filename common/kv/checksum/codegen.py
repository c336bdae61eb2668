"""The loops of the checksum as LLVM code, compiled for this processor.

This module is imported when the loops are made, not before. vLLM 0.32 looks at the attributes of
everything that modules have imported while it starts on a CPU, and llvmlite's library object makes
a function of every name that it is asked for, so vLLM would not start.

`docs/kv-checksum.md` says what the loops compute, and why they are not left to numba.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from llvmlite import binding, ir

from common.kv.checksum.definition import (
    KEYS,
    LANES,
    LINE_BYTES,
    ROW_BYTES,
    STEPS,
    WORD_BYTES,
    WORDS,
    Loop,
)

_BYTE, _I64 = ir.IntType(8), ir.IntType(64)
_WORD, _ADDRESS = ir.VectorType(_I64, LANES), ir.PointerType()
_engines: list[binding.ExecutionEngine] = []
"""The compiled code stays in memory as long as its engine is here."""


def loops(*, summing: bool) -> tuple[Loop, Loop, Loop]:
    """To read, to copy, and to copy with non-temporal stores. `summing`: False leaves the sums out.
    Raises RuntimeError, OSError."""
    module = ir.Module("kv")
    _write(module, "read", store=False, nontemporal=False, summing=summing)
    _write(module, "copy", store=True, nontemporal=False, summing=summing)
    _write(module, "copy_nontemporal", store=True, nontemporal=True, summing=summing)
    engine = compiled_module(module)
    arguments = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    shape = ctypes.CFUNCTYPE(None, *arguments)
    read, copy, copy_nontemporal = (
        shape(engine.get_function_address(name)) for name in ("read", "copy", "copy_nontemporal")
    )
    return read, copy, copy_nontemporal


def write_read_loop(module: ir.Module) -> ir.Function:
    """Writes the loop that sums up and copies nothing."""
    return _write(module, "read", store=False, nontemporal=False, summing=True)


def compiled_module(module: ir.Module) -> binding.ExecutionEngine:
    """It stays in memory for good."""
    engine = _compiled(str(module))
    _engines.append(engine)
    return engine


def _compiled(code: str) -> binding.ExecutionEngine:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
    )
    module = binding.parse_assembly(code)
    module.verify()
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options())
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _write(
    module: ir.Module, name: str, *, store: bool, nontemporal: bool, summing: bool
) -> ir.Function:
    """Writes a function with this name and the signature of `Loop`."""
    arguments = [_ADDRESS] * 4 + [_I64] * 3 + [_ADDRESS]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    target, target_at, source, source_at, pages, page_bytes, first_row, sums = function.args
    start, page, row, turn, end = (function.append_basic_block() for _ in range(5))
    make = ir.IRBuilder(start)
    state = SumState(make)
    state.begin(sums, first_row)
    number, offset = make.alloca(_I64), make.alloca(_I64)
    make.store(_I64(0), number)
    make.branch(page)

    make.position_at_end(page)
    here = make.load(number, typ=_I64)
    read_from = _place(make, source, source_at, here)
    write_to = _place(make, target, target_at, here) if store else None
    make.store(_I64(0), offset)
    make.branch(row)

    make.position_at_end(row)
    at = make.load(offset, typ=_I64)
    places = [make.add(at, _I64(WORD_BYTES * word)) for word in range(WORDS)]
    words = [
        make.load(make.gep(read_from, [place], source_etype=_BYTE), align=1, typ=_WORD)
        for place in places
    ]
    if write_to is not None:
        for word, place in zip(words, places, strict=True):
            written = make.gep(write_to, [place], source_etype=_BYTE)
            stored = make.store(word, written, align=LINE_BYTES if nontemporal else 1)
            if nontemporal:
                stored.set_metadata("nontemporal", module.add_metadata([ir.IntType(32)(1)]))
    if summing:
        state.add(words)
    following = make.add(at, _I64(ROW_BYTES))
    make.store(following, offset)
    make.cbranch(make.icmp_unsigned("<", following, page_bytes), row, turn)

    make.position_at_end(turn)
    there = make.add(here, _I64(1))
    make.store(there, number)
    make.cbranch(make.icmp_unsigned("<", there, pages), page, end)

    make.position_at_end(end)
    state.save(sums)
    if nontemporal:
        # Non-temporal stores may become visible late; after the function's return none may.
        make.fence("seq_cst")
    make.ret_void()
    return function


def _place(
    make: ir.IRBuilder, base: ir.Value, offsets: ir.Value, number: ir.Value
) -> ir.Instruction:
    offset = make.load(make.gep(offsets, [number], source_etype=_I64), typ=_I64)
    return make.gep(base, [offset], source_etype=_BYTE)


class SumState:
    """The sums and the keys of the present row, in variables that LLVM keeps in registers. It is
    made in the first block of a function."""

    def __init__(self, make: ir.IRBuilder) -> None:
        self._make = make
        self._sums = [make.alloca(_WORD) for _ in range(WORDS)]
        self._keys = [make.alloca(_WORD) for _ in range(WORDS)]

    def begin(self, sums: ir.Value, first_row: ir.Value) -> None:
        """`sums`: those of the rows before."""
        make = self._make
        rows = make.insert_element(ir.Constant(_WORD, ir.Undefined), first_row, _I64(0))
        nowhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
        rows = make.shuffle_vector(rows, rows, nowhere)
        for word in range(WORDS):
            make.store(make.load(self._sum(sums, word), align=1, typ=_WORD), self._sums[word])
            key = make.add(_constant(KEYS[word]), make.mul(rows, _constant(STEPS[word])))
            make.store(key, self._keys[word])

    def add(self, words: Sequence[ir.Value]) -> None:
        make = self._make
        sums = [make.load(lane, typ=_WORD) for lane in self._sums]
        half, low = _constant([32] * LANES), _constant([0xFFFFFFFF] * LANES)
        for number, word in enumerate(words):
            key = make.load(self._keys[number], typ=_WORD)
            make.store(make.add(key, _constant(STEPS[number])), self._keys[number])
            masked = make.xor(word, key)
            product = make.mul(make.and_(masked, low), make.lshr(masked, half))
            other = (number + 1) % WORDS
            sums[number] = make.add(sums[number], product)
            sums[other] = make.add(sums[other], word)
        for total, variable in zip(sums, self._sums, strict=True):
            make.store(total, variable)

    def save(self, sums: ir.Value) -> None:
        for word, variable in enumerate(self._sums):
            total = self._make.load(variable, typ=_WORD)
            self._make.store(total, self._sum(sums, word), align=1)

    def _sum(self, sums: ir.Value, word: int) -> ir.Instruction:
        return self._make.gep(sums, [_I64(word)], source_etype=_WORD)


def _constant(lanes: Sequence[int]) -> ir.Constant:
    return ir.Constant(_WORD, [_I64(lane) for lane in lanes])
