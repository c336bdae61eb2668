"""Which transports UCX chose for one endpoint: `sysv/memory`, `tcp/eth0`, `rc_mlx5/mlx5_0:1`, …
And where the other end of an endpoint is.

UCXX has no binding for it, so `ucp_ep_query` is called in the libucp that UCXX has loaded. The
structs follow ucp.h of UCX 1.13 and later (`ucp_ep_attr_t`, `ucp_transports_t`), whose layout is
kept by their `field_mask` and `entry_size`.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from functools import cache
from pathlib import Path

LANES_MAX = 32
REMOTE_FIELD, TRANSPORTS_FIELD = 1 << 2, 1 << 3
CUDA = frozenset({"cuda", "cuda_copy", "cuda_ipc", "gdr_copy"})
"""Transports for GPU memory, and UCX's name for all of them. None crosses from host to host."""
SHARED_MEMORY = frozenset({"sysv", "posix", "cma", "knem", "xpmem", "self"})


class _Entry(ctypes.Structure):
    _fields_ = [("transport", ctypes.c_char_p), ("device", ctypes.c_char_p)]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_sockaddr", ctypes.c_ubyte * 128),
        ("remote_sockaddr", ctypes.c_ubyte * 128),
        ("entries", ctypes.POINTER(_Entry)),
        ("num_entries", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
        ("user_data", ctypes.c_void_p),
    ]


def lanes_of(endpoint: int) -> tuple[str, ...]:
    """`transport/device` of each lane that carries data, without repeats, as UCX orders them; empty
    when UCX does not report them. The lane that only manages the connection has no device and is
    left out. `endpoint`: a live `ucp_ep_h`."""
    library = _libucp()
    if library is None:
        return ()
    entries = (_Entry * LANES_MAX)()
    attributes = _Attributes(field_mask=TRANSPORTS_FIELD)
    attributes.entries = entries
    attributes.num_entries = LANES_MAX
    attributes.entry_size = ctypes.sizeof(_Entry)
    if library.ucp_ep_query(ctypes.c_void_p(endpoint), ctypes.byref(attributes)) != 0:
        return ()
    found = entries[: min(attributes.num_entries, LANES_MAX)]
    return tuple(dict.fromkeys(_text(e.transport, e.device) for e in found if e.device))


def remote_of(endpoint: int) -> tuple[str, int]:
    """Address and port of the other end, by IPv4; `("", 0)` where UCX does not tell them.
    `endpoint`: a live `ucp_ep_h`."""
    library = _libucp()
    attributes = _Attributes(field_mask=REMOTE_FIELD)
    if library is None or library.ucp_ep_query(ctypes.c_void_p(endpoint), ctypes.byref(attributes)):
        return "", 0
    raw = bytes(attributes.remote_sockaddr)
    if int.from_bytes(raw[:2], sys.byteorder) != socket.AF_INET:
        return "", 0
    return socket.inet_ntoa(raw[4:8]), int.from_bytes(raw[2:4], "big")


def crosses_by_tcp_only(lanes: tuple[str, ...]) -> bool:
    return bool(lanes) and all(lane.startswith("tcp/") for lane in lanes)


def reaches_cards(lanes: tuple[str, ...], *, gpudirect: bool) -> bool:
    """Whether a connection with these lanes carries messages from card to card without host memory.
    `gpudirect`: the network cards of this host read the memory of its GPUs. Without such a lane UCX
    copies through the host in small pieces, at a twentieth of the rate of page-locked memory."""
    transports = {lane.partition("/")[0] for lane in lanes}
    rdma = any(name.startswith(("rc", "dc", "ud")) for name in transports)
    return "cuda_ipc" in transports or (rdma and gpudirect)


def wants_more_than_tcp(transports: str) -> bool:
    """Whether this UCX_TLS list names something faster than TCP between hosts."""
    names = {name.strip() for name in transports.split(",")}
    return bool(names - SHARED_MEMORY - CUDA - {"tcp", "sm", "shm"})


@cache
def _libucp() -> ctypes.CDLL | None:
    """The copy this process has mapped: one more copy would know none of its endpoints."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rsplit(maxsplit=1)[-1]
        if "/libucp.so" in path:
            return ctypes.CDLL(path)
    return None


def _text(transport: bytes, device: bytes) -> str:
    return f"{transport.decode()}/{device.decode()}"
