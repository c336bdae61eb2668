"""The kernels become machine code for GPUs, which needs no GPU. A program of its own, because the
programs beside it interpret them."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from common.kv.device import kernels

COPY = dict.fromkeys(("paged", "wire", "places", "sums", "keys"), "*i64")
COPY |= dict.fromkeys(("block_count", "page_rows", "row_count"), "i32")
JOIN = {"sums": "*i64", "total": "*i64", "count": "i32"}


def compiled(kernel: object, arguments: dict[str, str], capability: int, **fixed: object) -> bytes:
    """For an NVIDIA GPU of this compute capability."""
    signature = arguments | dict.fromkeys(fixed, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    options = {"num_warps": kernels.WARPS}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    code: bytes = made.asm["cubin"]
    return code


def check(capability: int) -> None:
    size = {"SUMS": True, "ROWS": kernels.ROWS, "PARTS": kernels.PARTS}
    for gathers in (True, False):
        for in_runs in (True, False):
            form = {"GATHERS": gathers, "IN_RUNS": in_runs}
            assert compiled(kernels._copy_pages, COPY, capability, **form, **size)
    tile = {"COLUMNS": kernels.JOINED_COLUMNS, "ROWS": kernels.JOINED_ROWS}
    assert compiled(kernels._join_sums, JOIN, capability, **tile)


if __name__ == "__main__":
    for one in (80, 90):
        check(one)
        print(f"right: {one}")
