"""Messages as tests need them: what a test does not name has a plain value. Nothing is started."""

from __future__ import annotations

from typing import Any

from common.blocks import KvGroup
from common.engine.port import EngineInfo
from common.kv.messages import KvDone
from common.messages import (
    WIRE_VERSION,
    Capacity,
    Decode,
    Hello,
    KvHold,
    KvReport,
    Role,
    Submit,
    Ticket,
)

BLOCK = 16


def hello(role: Role, name: str, incarnation: str = "1", **more: Any) -> Hello:
    more.setdefault("wire_version", WIRE_VERSION)
    return Hello(role=role, name=name, incarnation=incarnation, **more)


def capacity(
    *,
    blocks: int = 100,
    seqs: int = 8,
    max_model_len: int = 1000,
    block_tokens: int = BLOCK,
    block_bytes: int = 1024,
    groups: tuple[KvGroup, ...] = (),
    pull_blocks: int = 0,
    disk_blocks: int = 0,
) -> Capacity:
    return Capacity(
        block_tokens=block_tokens,
        kv_blocks=blocks,
        kv_block_bytes=block_bytes,
        max_model_len=max_model_len,
        max_num_seqs=seqs,
        kv_groups=groups,
        pull_blocks=pull_blocks,
        disk_blocks=disk_blocks,
    )


def worker_hello(
    role: Role,
    name: str,
    incarnation: str = "1",
    *,
    blocks: int = 100,
    seqs: int = 8,
    max_model_len: int = 1000,
    block_tokens: int = BLOCK,
    groups: tuple[KvGroup, ...] = (),
    pull_blocks: int = 0,
    disk_blocks: int = 0,
    **more: Any,
) -> Hello:
    room = capacity(
        blocks=blocks,
        seqs=seqs,
        max_model_len=max_model_len,
        block_tokens=block_tokens,
        groups=groups,
        pull_blocks=pull_blocks,
        disk_blocks=disk_blocks,
    )
    about = {
        "fingerprint": "f",
        "model": "model",
        "kv_address": f"127.0.0.1:{name}",
        "capacity": room,
    }
    return hello(role, name, incarnation, **{**about, **more})


def engine_info(seqs: int) -> EngineInfo:
    """Of an engine that has eight blocks."""
    room = capacity(blocks=8, block_bytes=1, max_model_len=64, seqs=seqs)
    return EngineInfo("m", "f", "127.0.0.1:9", room)


def submit(request_id: str = "r1", attempt: int = 1, **more: Any) -> Submit:
    more = {"prompt_tokens": 40, "max_tokens": 8, **more}
    return Submit(request_id=request_id, attempt=attempt, **more)


def decode(request_id: str = "r", attempt: int = 1, gateway: str = "g0", **more: Any) -> Decode:
    more = {"gateway_incarnation": "k", "stream_endpoint": f"ipc:///{gateway}", **more}
    return Decode(request_id=request_id, attempt=attempt, gateway=gateway, **more)


def ticket(request_id: str = "r", attempt: int = 0, **more: Any) -> Ticket:
    """From p0 of incarnation inc-p0 to d0 of inc-d0; its secret is made of the request's name."""
    fields: dict[str, Any] = {
        "secret": request_id.encode().ljust(16, b"#"),
        "fingerprint": "f",
        "kv_address": "127.0.0.1:1",
        "lease_ms": 1000.0,
    }
    for side, worker in (("prefill", "p0"), ("decode", "d0")):
        fields |= {side: worker, f"{side}_incarnation": f"inc-{worker}"}
    return Ticket(request_id=request_id, attempt=attempt, **{**fields, **more})


def kv_done(request_id: str = "r", attempt: int = 1, **more: Any) -> KvDone:
    more = {"side": "receive", "report": KvReport(), **more}
    return KvDone(request_id=request_id, attempt=attempt, **more)


def kv_moved(blocks: int) -> KvReport:
    """Of a whole handoff."""
    return KvReport(blocks=blocks, complete=True, messages=1, payload_bytes=64, wire_bytes=80)


def kv_hold(request_id: str = "r", **more: Any) -> KvHold:
    more = {"peer": "p0", "side": "receive", "blocks": 2, "bytes": 20, "age_ms": 1.0, **more}
    return KvHold(request_id=request_id, **{"attempt": 1, "lease_left_ms": 5.0, **more})
