"""Tickets and messages for handoff tests."""

from common.kv.messages import ConnectedPeer, KvReady
from common.kv.plan import KvShape
from tests.rigs.messages import ticket

SHAPE = KvShape(layers=2, block_bytes=100)
D0 = ConnectedPeer(1, "d0", "inc-d0")


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
