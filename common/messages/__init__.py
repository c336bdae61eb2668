"""Every message that crosses a process, grouped by who receives it.

Encoding: MessagePack maps of frozen, tagged msgspec structs (`common.wire`). On ZeroMQ a message is
one frame, or two where the docstring says `+ body`: the body frame is an encoded `RequestBody` that
the router forwards without decoding. Durations are milliseconds as float, sizes bytes, both as the
field's name says; instants never travel. `request_id` + `attempt` name one try of one request; a
receiver drops and counts what is not its current attempt or incarnation.

What a health daemon and the workers of its host say to each other (`on_host.py`) goes over HTTP on
the worker's metrics socket, as JSON. The KV plane's own messages (P and D over UCX, a worker and
its KV thread) are in `common/kv/messages.py`, under the same version.

`WIRE_VERSION`: bump when a field's meaning or type changes or a message is removed. Adding a field
with a default, or a message, does not need a bump. A type never changes in place.
History: 1 = first version.
"""

from common.messages.from_router import (
    Abort,
    Decode,
    Drain,
    Failed,
    Fleet,
    Introduce,
    Ping,
    Placed,
    Prefill,
    Refused,
    Welcome,
)
from common.messages.on_host import CanaryAnswer, CanaryOutcome, OpinionTold
from common.messages.parts import (
    Capacity,
    FinishReason,
    Held,
    KeyLimits,
    KvCounts,
    KvHold,
    KvReport,
    KvUnreachable,
    Leg,
    Load,
    Message,
    Opinion,
    PriorityClass,
    RequestBody,
    Role,
    Sampling,
    Structured,
    StructureKind,
    Ticket,
)
from common.messages.to_gateway import (
    Delta,
    TokenLogprobs,
    Tokens,
)
from common.messages.to_router import (
    HOLDING_MAX,
    PREFIX_DELTA_HASHES_MAX,
    Beat,
    Cancel,
    DecodeStarted,
    Ended,
    Hello,
    Holding,
    Journey,
    Leaving,
    Live,
    PairTrouble,
    PrefillEnded,
    PrefixDelta,
    Submit,
    Took,
)

WIRE_VERSION = 1

GatewayToRouter = Hello | Beat | Leaving | Live | Submit | Cancel | Journey
WorkerToRouter = (
    Hello
    | Beat
    | Leaving
    | Holding
    | Took
    | PrefillEnded
    | DecodeStarted
    | PairTrouble
    | PrefixDelta
    | Ended
)
ToRouter = GatewayToRouter | WorkerToRouter
RouterToGateway = Welcome | Refused | Ping | Fleet | Placed | Failed
RouterToWorker = Welcome | Refused | Ping | Introduce | Drain | Prefill | Decode | Abort
DecodeToGateway = Hello | Tokens
GatewayToDecode = Welcome | Refused | Ping | Abort

__all__ = [
    "HOLDING_MAX",
    "PREFIX_DELTA_HASHES_MAX",
    "WIRE_VERSION",
    "Abort",
    "Beat",
    "CanaryAnswer",
    "CanaryOutcome",
    "Cancel",
    "Capacity",
    "Decode",
    "DecodeStarted",
    "DecodeToGateway",
    "Delta",
    "Drain",
    "Ended",
    "Failed",
    "FinishReason",
    "Fleet",
    "GatewayToDecode",
    "GatewayToRouter",
    "Held",
    "Hello",
    "Holding",
    "Introduce",
    "Journey",
    "KeyLimits",
    "KvCounts",
    "KvHold",
    "KvReport",
    "KvUnreachable",
    "Leaving",
    "Leg",
    "Live",
    "Load",
    "Message",
    "Opinion",
    "OpinionTold",
    "PairTrouble",
    "Ping",
    "Placed",
    "Prefill",
    "PrefillEnded",
    "PrefixDelta",
    "PriorityClass",
    "Refused",
    "RequestBody",
    "Role",
    "RouterToGateway",
    "RouterToWorker",
    "Sampling",
    "StructureKind",
    "Structured",
    "Submit",
    "Ticket",
    "ToRouter",
    "TokenLogprobs",
    "Tokens",
    "Took",
    "Welcome",
    "WorkerToRouter",
]
