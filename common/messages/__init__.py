"""Every message that crosses a process, grouped by who receives it.

Encoding: MessagePack maps of frozen, tagged msgspec structs (`common.net.wire`). On ZeroMQ a
message is one frame, or two where the docstring says `+ body`: the second frame is an encoded
`RequestBody` that the router forwards without decoding. A docstring names the sender and the
answer. Durations are milliseconds as float and sizes are bytes, as the field's name says; instants
are never sent. In docstrings P is a prefill worker and D a decode worker.

`request_id` and `attempt` name one attempt of one request, and attempts count from 1. A receiver
drops and counts a message that is not of its current attempt or incarnation.

The messages between a health daemon and the workers of its host (`on_host.py`) are JSON over HTTP
on the worker's metrics socket. The KV plane's own messages (P and D over UCX, a worker and its KV
thread) are in `common/kv/messages.py`, under the same version.

`WIRE_VERSION`: raise it when a field's meaning or type changes or a message is removed. A new field
with a default, or a new message, does not need that. A type never changes in place. A class may be
renamed if it keeps its tag.
History: 1 = first version.
"""

from common.messages.from_router import (
    Abort,
    AdapterTold,
    Become,
    CopyAhead,
    Decode,
    Drain,
    Failed,
    Fleet,
    GatewayToDecode,
    GrantKv,
    HandOver,
    Introduce,
    KeepOrder,
    Layout,
    Move,
    OrderAdapter,
    OrderStore,
    Ping,
    Placed,
    Prefetch,
    Prefill,
    Prefilled,
    Refused,
    RouterToGateway,
    RouterToPool,
    RouterToWorker,
    ServedAdapter,
    StoreAction,
    Wake,
    Welcome,
)
from common.messages.kv_reports import (
    KvCheckpoint,
    KvCounts,
    KvHold,
    KvHolder,
    KvReport,
    KvSource,
    Ticket,
)
from common.messages.on_host import CanaryAnswer, CanaryOutcome, HealthVerdictUpdate
from common.messages.parts import (
    ADAPTERS_MAX,
    SCALE_NAMES_MAX,
    SCALE_ORDERS_MAX,
    AdapterStatus,
    Capacity,
    FinishReason,
    HealthVerdict,
    HeldAttempt,
    KvUnreachable,
    Leg,
    Load,
    Message,
    PhaseReport,
    PriorityClass,
    Role,
    ScaleOrder,
    WarmState,
)
from common.messages.request import (
    ImageFeatures,
    KeyLimits,
    OtherCell,
    Pooling,
    RequestBody,
    Sampling,
    Structured,
    StructureKind,
)
from common.messages.to_gateway import (
    DecodeToGateway,
    Delta,
    TokenLogprobs,
    Tokens,
)
from common.messages.to_router import (
    HOLDING_MAX,
    PREFIX_DELTA_HASHES_MAX,
    Abandoned,
    AdapterDone,
    AskAdapter,
    Beat,
    BudgetReached,
    Cancel,
    CopiedAhead,
    DecodeStarted,
    Ended,
    GatewayToRouter,
    Hello,
    Holding,
    KeptOrders,
    Leaving,
    Live,
    PairTrouble,
    PrefillEnded,
    PrefixDelta,
    RequestSummary,
    Submit,
    Took,
    ToRouter,
    WorkerToRouter,
)

WIRE_VERSION = 1
