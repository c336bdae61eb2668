"""The reader of GPUs, over an NVML that is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import BatonError
from common.worker import gpu
from common.worker.gpu import GpuReading, NvmlReader


class Nvml:
    """As `pynvml` does; `rates`: of each GPU, in percent."""

    NVMLError = RuntimeError

    def __init__(self, *rates: tuple[int, int], driver: bool = True) -> None:
        self.rates, self.driver = list(rates), driver

    def nvmlInit(self) -> None:  # noqa: N802 - its name
        if not self.driver:
            raise RuntimeError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - its name
        return len(self.rates)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - its name
        if index >= len(self.rates):
            raise RuntimeError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:  # noqa: N802 - its name
        return ["GPU-a", "GPU-b"].index(name)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802 - its name
        busy, memory = self.rates[handle]
        if busy < 0:
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(gpu=busy, memory=memory)


@pytest.mark.parametrize(
    ("devices", "count", "reading"),
    [
        (None, 2, GpuReading(0.5, 0.3)),
        (["1"], 1, GpuReading(0.2, 0.1)),
        (["GPU-a"], 1, GpuReading(0.8, 0.5)),
    ],
)
def test_it_reads_the_gpus_that_may_be_used(
    devices: list[str] | None, count: int, reading: GpuReading
) -> None:
    reader = NvmlReader(Nvml((80, 50), (20, 10)), devices)
    assert reader.count == count
    assert reader.read() == pytest.approx(reading)


@pytest.mark.parametrize(
    ("nvml", "devices"), [(Nvml(driver=False), None), (Nvml(), None), (Nvml((1, 1)), ["7"])]
)
def test_where_there_is_none_it_says_so(nvml: Nvml, devices: list[str] | None) -> None:
    with pytest.raises(BatonError, match="NVML finds no GPU"):
        NvmlReader(nvml, devices)


def test_a_gpu_that_is_lost_is_an_error() -> None:
    with pytest.raises(BatonError, match="cannot read its GPUs: GPU is lost"):
        NvmlReader(Nvml((-1, 0)), None).read()


def test_the_environment_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "load_nvml", lambda: Nvml((80, 50), (20, 10)))
    assert gpu.open_reader({"CUDA_VISIBLE_DEVICES": "1"}).read() == pytest.approx((0.2, 0.1))
    assert gpu.open_reader({}).count == 2
    with pytest.raises(BatonError):
        gpu.open_reader({"CUDA_VISIBLE_DEVICES": ""})
