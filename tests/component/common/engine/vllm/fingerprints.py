"""Makes vLLM's configuration for each fleet on standard input, as a worker does, in a process that
imports vLLM once. Reads a JSON list of fleets, each with what the processor shall be said to have
where that is to be pretended, and prints a JSON list of fingerprint parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from common.config import from_mapping
from common.engine.vllm.args import make_vllm_config, prepare_process
from common.messages import Role
from common.model.resolve import model_folder


@contextmanager
def processor(has: dict[str, bool]) -> Iterator[None]:
    """As if it had AMX or not, and bfloat16 among its vector instructions or not."""
    import torch

    amx, vectors = has["amx"], has["avx512_bf16"]
    with mock.patch.multiple(
        torch.cpu,
        _init_amx=lambda: amx,
        _is_amx_tile_supported=lambda: amx,
        _is_avx512_bf16_supported=lambda: vectors,
    ):
        yield


def parts_of_fleet(fleet: dict[str, Any]) -> dict[str, str]:
    """Those of its worker d0."""
    has = fleet.pop("processor", None)
    if has is not None:
        with processor(has):
            return parts_of_fleet(fleet)
    config = from_mapping(fleet)
    worker = config.worker(Role.DECODE, "d0")
    prepare_process(worker.engine, 1, eager=True)
    setup: dict[str, Any] = {"name": "d0", "incarnation": "i"}
    make_vllm_config(config, worker, model_folder(config), setup)
    parts: dict[str, str] = setup["fingerprint_parts"]
    return parts


if __name__ == "__main__":
    made = [parts_of_fleet(fleet) for fleet in json.load(sys.stdin)]
    sys.stdout.write(f"\n{json.dumps(made)}\n")
