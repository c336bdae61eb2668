"""Tickets and messages for handoff tests."""

from common.kv.messages import ConnectedPeer, KvReady
from common.kv.plan import KvShape
from common.messages import Ticket

SHAPE = KvShape(layers=2, block_bytes=100)
D0 = ConnectedPeer(1, "d0", "inc-d")


def ticket(request_id: str = "r", lease_ms: float = 1000.0) -> Ticket:
    return Ticket(
        secret=request_id.encode().ljust(16, b"#"),
        request_id=request_id,
        attempt=0,
        fingerprint="f",
        prefill="p0",
        prefill_incarnation="inc-p",
        decode="d0",
        decode_incarnation="inc-d",
        kv_address="127.0.0.1:1",
        lease_ms=lease_ms,
    )


def ready(
    transfer: int = 7,
    *,
    blocks: int = 10,
    first_block: int = 0,
    message_blocks: int = 4,
    granted: int = 1,
    request_id: str = "r",
    layer_groups: int = 1,
) -> KvReady:
    return KvReady(
        secret=ticket(request_id).secret,
        request_id=request_id,
        attempt=0,
        transfer=transfer,
        first_block=first_block,
        blocks=blocks,
        message_blocks=message_blocks,
        granted=granted,
        layer_groups=layer_groups,
    )
