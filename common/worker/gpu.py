"""How busy GPUs are, by NVML: of the time since NVML looked last, the share in which a kernel ran,
and the share in which their memory was read or written.

NVML comes with vLLM for CUDA (`pynvml`). Where there is none, or no driver, there is no reader, and
nothing is reported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from common.errors import BatonError, Code


class GpuReading(NamedTuple):
    """The mean over some GPUs, each from 0 to 1."""

    #: Share of the time in which a kernel ran.
    busy: float
    #: Share of the time in which memory was read or written.
    memory_busy: float


class GpuReader(Protocol):
    """What reads them."""

    #: How many GPUs are read.
    count: int

    def read(self) -> GpuReading:
        """May take milliseconds. Raises BatonError."""
        ...


class NvmlReader:
    """`devices`: indices or UUIDs, as `CUDA_VISIBLE_DEVICES` has them; None = all of this host.
    Raises BatonError where NVML finds no GPU."""

    def __init__(self, nvml: Any, devices: Sequence[str] | None) -> None:
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            names = devices if devices is not None else map(str, range(nvml.nvmlDeviceGetCount()))
            self._handles = [self._handle(name) for name in names]
        except nvml.NVMLError as error:
            raise BatonError(Code.INTERNAL, f"NVML finds no GPU: {error}") from error
        if not self._handles:
            raise BatonError(Code.INTERNAL, "NVML finds no GPU: none is visible")
        self.count = len(self._handles)

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def read(self) -> GpuReading:
        try:
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(one) for one in self._handles]
        except self._nvml.NVMLError as error:
            raise BatonError(Code.INTERNAL, f"NVML cannot read its GPUs: {error}") from error
        count = 100.0 * len(rates)
        return GpuReading(sum(r.gpu for r in rates) / count, sum(r.memory for r in rates) / count)


def open_reader(environ: Mapping[str, str] = os.environ) -> NvmlReader:
    """Of the GPUs that this process may use. Raises BatonError, and says why there is none."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    devices = None if visible is None else [one for one in visible.split(",") if one.strip()]
    return NvmlReader(load_nvml(), devices)


def load_nvml() -> Any:
    """`pynvml`, not yet initialised. Raises BatonError where it is not installed."""
    try:
        import pynvml
    except ImportError as error:
        sentence = "pynvml is not installed; vLLM for CUDA brings it along"
        raise BatonError(Code.INTERNAL, sentence) from error
    return pynvml
