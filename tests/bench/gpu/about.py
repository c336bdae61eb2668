"""What the figures of `make gpu` are of: the card, its driver, and the versions of the software."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec


def unusable() -> str:
    """Why this host cannot run the parts, as a sentence; empty if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed: the parts of `make gpu` need torch for CUDA"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is not for CUDA: install torch for CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU that it can use on this host (nvidia-smi lists those there are)"
    missing = list(_missing())
    if missing:
        return f"{', '.join(missing)} are not installed: WHEELS=DIR names a folder of wheels"
    return ""


def about(device: str) -> dict[str, str]:
    """By name, in the order in which they are printed. `device`: as in `pair.Tools`."""
    import torch

    names = {"Python": platform.python_version(), "torch": str(torch.__version__)}
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        memory = f"{card.total_memory / (1 << 30):.0f} GiB"
        names = {"card": f"{card.name} ({memory})", "driver": _driver()} | names
        names |= {"CUDA": str(torch.version.cuda)}
    found = (("triton", "triton"), ("ucxx", "ucxx-cu13"), ("ucxx", "ucxx-cu12"))
    for name, distribution in found:
        try:
            names[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return names


def _missing() -> Iterator[str]:
    for name in ("triton", "ucxx", "msgspec", "structlog", "zmq", "xxhash", "llvmlite", "numpy"):
        if find_spec(name) is None:
            yield name


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # it has many errors, and none of them matters here
        return "unknown"
    return version.decode() if isinstance(version, bytes) else str(version)
