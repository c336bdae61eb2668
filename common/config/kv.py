"""`[kv]`: how KV goes from a prefill worker (P) to a decode worker (D). `[prefill.NAME.kv]`,
`[decode.NAME.kv]` and `[pool.NAME.kv]` override single keys for one worker or pool."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.config.base import Count, Port, Positive, Section

KvPath = Literal["auto", "device", "pinned"]
CARD_BUFFERS = 8
"""Messages that the staging memory on a card holds."""


class StoreConfig(Section, frozen=True):
    """KV that a worker keeps in host memory, and on disk, below its engine, so that a prefix which
    the engine has let go need not be computed again. It serves prompts that this worker computes:
    all of P's, and on D those that no P computes. It needs vLLM, `prefix_caching`, no draft model,
    and a model whose layers all keep every token; elsewhere it stays off, and the worker says why.
    Under `[pool.NAME.kv]` it is what the pool holds."""

    ram_mib: Annotated[int, Meta(ge=0)] = 0
    """MiB of host memory for it, over all ranks of the worker; 0 turns it off. The worker takes all
    of it after its start, with a fifth of a core, so that no block waits for memory later; where
    the KV is on a GPU, page-locked, before it is ready."""
    disk_mib: Annotated[int, Meta(ge=0)] = 0
    """MiB of disk for it at most, over all ranks of the worker; 0 turns it off. What memory holds
    is written there, and is found again when memory has dropped it and when the worker or the pool
    has restarted. It needs `ram_mib` and `path`."""
    path: str = ""
    """Folder for it, on a local disk. Each rank of a worker, and each pool, makes a folder of its
    own in it, which only the daemons' user may read. The KV of a prompt tells the prompt."""
    encrypt_at_rest: bool = False
    """Whether what is on the disk is encrypted (AES-256-GCM), by the library `cryptography`. It
    costs processor time for each byte that is written or read there. What was stored without it, or
    with another key, is removed."""
    key_file: str = ""
    """File of the key, 64 hexadecimal digits with mode 0600; empty: `store.key` in `path`, which is
    made if it is missing. It protects a disk that is taken away only if it lies on another one."""
    disk_write_mib_s: Positive = 256.0
    """MiB that each rank of the worker writes to the disk in a second at most."""
    ttl_s: Positive = 300.0
    """Seconds after its last use, or after it was written to the disk, for which a block is kept;
    the least recently used goes earlier when room is short."""
    tenant_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Part of its blocks, in memory and on disk each, that those of one tenant may be before he
    makes room for himself: with more, what he stores displaces his own blocks, and those of others
    are displaced last. 1 sets no bound."""
    backlog_mib: Count = 64
    """MiB that may wait to be copied to it at once. Copies never delay a step: what the engine
    overwrites before its turn is not stored, and counted."""
    pull: bool = True
    """Whether this worker gets blocks out of the stores of others of its fingerprint where the
    router says that it pays, and gives them out of its own. Off where there is no store, with
    tensor parallelism, with `compression`, because what is stored may be lossy then, and where the
    engine's KV events are off."""
    pull_ms: Annotated[float, Meta(ge=50)] = 5_000.0
    """Milliseconds that getting the blocks of one prompt from another worker may take; the worker
    computes them then."""


class CheckpointConfig(Section, frozen=True):
    """Copies of the blocks of running streams in the store of one other worker, so that a stream
    whose decode worker dies goes on from them instead of being computed again. It needs
    `[kv.store]` with `pull` on at least two decode workers of one fingerprint; a stream for which
    there is no other holder has no copies. They stay as long as anything in that store."""

    policy: Literal["none", "sessions", "all"] = "none"
    """Of which streams there are copies: of `none`; of `sessions`, those whose request names its
    session (`x-session-id`); or of `all`. Streams that could not go on exactly elsewhere have none.
    Only `[kv.checkpoint]` of the fleet counts, not that of a single worker."""


class KvConfig(Section, frozen=True):
    """The data plane of one worker. `baton doctor` tells what UCX makes of `transports`,
    `interfaces` and `rails`."""

    host: str = "127.0.0.1"
    """Address at which the worker's UCX listener answers over TCP, IPv4. `baton doctor` tells what
    else of UCX other hosts can reach."""
    port: Port = 0
    """Port of the UCX listener; 0 takes any free one. Tensor parallel rank i takes `port` + i."""
    authenticate: bool | Literal["auto"] = "auto"
    """Whether workers prove to each other that they know the fleet's secret (`kv.json` in
    `[security] keys_dir`) before anything of them is read; `auto` is true wherever `keys_dir` is
    set. It must be alike on all workers."""
    hello_ms: Annotated[float, Meta(ge=100)] = 5_000.0
    """Time in which whoever connects must have said who he is; the connection is closed then."""
    links_max: Count = 1024
    """Connections from other workers at most."""
    links_per_address_max: Count = 64
    """Connections from one address at most: of the decode workers of one host, of one rank each."""
    descriptors_reserved: Annotated[int, Meta(ge=0)] = 64
    """File descriptors that connections from others leave to this process; new ones are refused
    when fewer are free."""
    transports: str = "tcp,sm,self"
    """Transports that UCX may use, as in UCX_TLS; `rc,cuda_copy,cuda_ipc,tcp,sm,self` with RDMA and
    GPUs. The default works on every host."""
    interfaces: str = ""
    """Network interfaces that UCX may use, as in UCX_NET_DEVICES; empty means all."""
    rails: Annotated[int, Meta(ge=1, le=8)] = 1
    """Interfaces over which one message may be split."""
    message_bytes: Annotated[int, Meta(ge=4096)] = 4 << 20
    """Bytes of KV in one message at most."""
    staging_mib: Count = 256
    """MiB of staging memory on each side at most, allocated on demand. Per 4 MiB a D can wait for
    one handoff over a network."""
    path: KvPath = "auto"
    """How KV leaves and enters a GPU: `device` gives UCX memory of the GPU, `pinned` page-locked
    host memory. `auto` takes `device` for each pair of workers whose connection can read the memory
    of a GPU (`cuda_ipc` inside a host, RDMA with GPUDirect between hosts). It means nothing on
    CPUs."""
    device_staging_mib: Annotated[int, Meta(ge=8)] = 256
    """MiB of a GPU's memory on each side for the path `device`, taken at the start, beside what
    `gpu_memory_utilization` leaves to vLLM. A message has an eighth of it at most."""
    lease_ms: Annotated[float, Meta(ge=100)] = 30_000.0
    """How long P holds blocks that nobody takes; they are freed then."""
    keep_ms: Annotated[float, Meta(ge=100)] = 2_000.0
    """How long a decode worker keeps the KV of a stream that it gave up so that the stream can go
    on elsewhere without being computed again."""
    copy_ahead_ms: Annotated[float, Meta(ge=0)] = 0.0
    """How long a stream that an operator moves, or that leaves a worker which drains or changes its
    role, may go on where it is while its full blocks are copied to the store of the next worker, so
    that its pause is that of the last blocks, however long it is. 0 moves it at once, with all of
    its KV. It needs `[kv.store]` with `pull` on both workers. Only `[kv]` of the fleet counts, not
    that of a single worker."""
    load_timeout_ms: Annotated[float, Meta(ge=100)] = 60_000.0
    """How long D waits for a handoff; it computes the prompt itself then."""
    answer_ms: Annotated[float, Meta(ge=50)] = 750.0
    """Time in which a silent peer of a handoff must answer a question; the connection counts as
    lost then. A worker that stopped is found within a second. A new connection may take as long,
    and a second at least."""
    retries: Annotated[int, Meta(ge=0, le=10)] = 3
    """How often D asks for a handoff again after a failure, before it computes the prompt
    itself."""
    layer_groups: Annotated[int, Meta(ge=0, le=64)] = 0
    """Messages into which the layers of a run of blocks are cut, so that the first layers leave
    while the later ones are computed. 1 sends blocks when all layers are done. 0 takes as many as
    leave a MiB in each, eight at most, where the engine reports layers."""
    compression: Literal["none", "fp8", "auto"] = "none"
    """Compression of KV on the wire: `fp8` is e4m3 with a scale for each head's K and V of a block,
    `auto` uses it where P measures that it pays. It is lossy, so it is off by default. Both workers
    of a pair must ask for it; P's value decides between the two. Two workers that ask for either
    and compute in different element types hand prompts over, too, and KV is converted."""
    exact: bool = False
    """Whether this worker's KV is never compressed, whatever `compression` says, and never
    converted to another element type. The worker still pairs with the same workers, but for those
    of another element type."""

    store: StoreConfig = StoreConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def direct_message_bytes(self) -> int:
        """Bytes of KV in one message of the path `device` at most."""
        return (self.device_staging_mib << 20) // CARD_BUFFERS

    @property
    def may_lose(self) -> bool:
        """Whether this worker consents to KV that loses precision on its way."""
        return self.compression != "none" and not self.exact

    def by_block(self) -> KvConfig:
        """The same for an engine that reports whole blocks only."""
        return self if self.layer_groups else msgspec.structs.replace(self, layer_groups=1)
