"""An NVML that is played, and a host in a folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class NotSupportedError(Exception):
    """As NVMLError_NotSupported."""


class PlayedNvml:
    """As `pynvml` does, with `gpus` equal GPUs of which 0 and 1, 2 and 3 and so on have NVLink.
    `refused`: questions that the driver does not answer. `apart`: pairs of which the first cannot
    read the second's memory."""

    NVMLError = NotSupportedError
    #: pynvml has this tuple by mistake, and ctypes refuses it.
    NVML_P2P_CAPS_INDEX_READ = (0,)

    def __init__(
        self,
        gpus: int = 1,
        refused: frozenset[str] = frozenset(),
        apart: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        self.gpus, self.refused, self.apart = gpus, refused, apart

    def _answer(self, question: str, answer: Any) -> Any:
        if question in self.refused:
            raise NotSupportedError("Not Supported")
        return answer

    def nvmlInit(self) -> None:  # noqa: N802 - its name
        self._answer("init", None)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - its name
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802 - its name
        return self._answer("handle" if index else "first", SimpleNamespace(index=index))

    def nvmlDeviceGetName(self, handle: Any) -> Any:  # noqa: N802 - its name
        return self._answer("name", "NVIDIA H200")

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802 - its name
        return self._answer("memory", SimpleNamespace(total=141 * GIB, used=GIB))

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> Any:  # noqa: N802 - its name
        return self._answer("capability", (9, 0))

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:  # noqa: N802 - its name
        return self._answer(
            "pci", SimpleNamespace(busId=f"00000000:{0x1A + handle.index:02X}:00.0")
        )

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802 - its name
        return self._answer("driver", "580.159.03")

    def nvmlSystemGetCudaDriverVersion_v2(self) -> Any:  # noqa: N802 - its name
        return self._answer("cuda", 13_000)

    def nvmlDeviceGetP2PStatus(self, one: Any, other: Any, what: Any) -> Any:  # noqa: N802 - its name
        assert isinstance(what, int), "ctypes takes no tuple"
        pair = one.index, other.index
        if what == 2:
            return self._answer("nvlink", 0 if pair[0] // 2 == pair[1] // 2 else 5)
        assert what == 0
        return self._answer("p2p", 1 if pair in self.apart else 0)

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> Any:  # noqa: N802 - its name
        return self._answer("topology", 50 if one.index // 4 != other.index // 4 else 20)


def write(root: Path, name: str, text: str = "") -> None:
    """A file of the host, and its folders."""
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def installed(site: Path, name: str, version_py: str | None = None) -> None:
    """A library in a folder of libraries; torch has a `version.py`."""
    write(site, f"{name.replace('-', '_')}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n")
    if version_py is not None:
        write(site, f"{name}/version.py", version_py)
