"""`[gateway]`: HTTP, streams and what clients may use."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from common.config.base import NAME_PATTERN, Count, Milliseconds, Port, Positive, Section
from common.config.request_limits import RequestLimits

ORIGIN_PATTERN = r"^(\*|null|[a-z][a-z0-9+.-]*://[A-Za-z0-9._:\[\]-]+)$"
BODY_TYPE_PATTERN = r"^[a-z0-9.+-]+/[a-z0-9.+-]+$"
ROOT_PATH_PATTERN = r"^((/[A-Za-z0-9._~-]+)+)?$"
MEDIA_DOMAIN_PATTERN = r"^[a-z0-9.:-]+$"
CELLS_MAX = 64


class JobsConfig(Section, frozen=True):
    """Files, batches and stored responses: `/v1/files`, `/v1/batches`, and `store`,
    `previous_response_id` and `background` of `/v1/responses`. The lines of a batch run as requests
    of the lowest class. The gateway processes of a host share one folder of jobs."""

    path: str = ""
    """Folder of the files and of the ledger, on a disk of this host; empty serves no jobs. What
    clients upload, say and are answered lies there, in files of mode 0600."""
    quota_mib: Count = 1024
    """MiB of files and stored responses that one API key may have. An upload over it is refused.
    The answers of a batch are always written, and count."""
    file_mib_max: Count = 200
    """MiB of one uploaded file."""
    lines_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000
    """Lines of one batch."""
    batches_max: Count = 64
    """Batches of one API key that are not over."""
    lines_at_once: Count = 256
    """Lines that one gateway process runs at once."""
    lines_waiting: Count = 16
    """Lines that one gateway process has in the router's queue. Others wait in the ledger."""
    keep_hours: Annotated[int, Meta(ge=1, le=8760)] = 720
    """Hours after which a file is deleted that was given no other time, a batch that is over, and a
    stored response."""
    lease_ms: Annotated[float, Meta(ge=1_000)] = 15_000.0
    """Time after which another gateway process runs the lines and background responses of one that
    says nothing any more."""
    responses_max: Annotated[int, Meta(ge=0)] = 10_000
    """Stored responses of one API key: the oldest makes room for a new one. 0 stores none."""
    background_max: Count = 100
    """Responses of one API key that were asked for with `background` and are not over."""
    background_at_once: Count = 64
    """Background responses that one gateway process runs at once. Others wait in the ledger."""
    stream_mib_max: Count = 16
    """MiB of events that are kept of a background response that is streamed. A stream of more ends
    with an error, and its response goes on."""


class CellConfig(Section, frozen=True):
    """A cell is a fleet with its own fleet file, router, standby and workers. One of the cells may
    be the fleet of this file: then all of its keys but `capacity` are empty."""

    run_dir: str = ""
    """Run directory of the cell, where it is on this host: its sockets are found there, and
    `baton ctl --cell NAME` uses it."""
    control: str = ""
    """ZeroMQ endpoint of the cell's router; empty is the ipc socket in `run_dir`."""
    standby: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], str] = field(default_factory=dict)
    """Further routers of the cell by name, each with its control endpoint; an empty one is an ipc
    socket in `run_dir`."""
    capacity: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    """Share of the tenants that belong to the cell, relative to the other cells: what it can serve,
    in any unit."""


def is_own(cell: CellConfig) -> bool:
    """Whether it is the fleet of the file that names it."""
    return not (cell.run_dir or cell.control or cell.standby)


class GatewayConfig(Section, frozen=True):
    """The HTTP side of the fleet. Limits on counts are for each gateway process."""

    host: str = "127.0.0.1"
    """Address of the HTTP socket. Without `keys_file` it must be a loopback address, unless
    `allow_anonymous`."""
    port: Port = 8000
    """Port of the HTTP socket; 0 takes any free one."""
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    """Gateway processes g0, g1, ... that `baton up` starts on the one port."""
    keys_file: str = ""
    """File of the API keys that may ask (`baton keys`); empty means no keys."""
    allow_anonymous: bool = False
    """Whether other hosts may be served without keys."""
    tls_certificate_file: str = ""
    """PEM file of the TLS certificate; empty serves plain HTTP. Needs `tls_key_file`."""
    tls_key_file: str = ""
    """PEM file of the certificate's key. Needs `tls_certificate_file`."""
    connections_max: Count = 8192
    """Open client connections."""
    connections_per_ip_max: Annotated[int, Meta(ge=0)] = 2048
    """Open connections of one client address; 0 sets no limit, as behind a proxy."""
    header_bytes_max: Annotated[int, Meta(ge=1024)] = 32 << 10
    """Bytes of a request line and all headers."""
    header_ms_max: Positive = 10_000.0
    """Time in which a request's line and headers must arrive."""
    body_ms_max: Positive = 30_000.0
    """Time in which a request's body must arrive, after its headers."""
    idle_ms_max: Positive = 75_000.0
    """How long a connection is kept open between two requests."""
    stream_bind: str = ""
    """ZeroMQ endpoint on which decode workers deliver tokens; empty is an ipc socket in `run_dir`.
    A fleet over several hosts names `tcp://ADDRESS:PORT`."""
    text: Literal["auto", "vllm", "light"] = "auto"
    """When vLLM's text classes are loaded (some 8 s, 600 MiB), which tools, schemas and logprobs
    need: `auto` at the first request that needs them, `vllm` before the gateway is ready, `light`
    never; such requests are refused by name then."""
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    """What becomes of a body's fields that nothing here knows: they are ignored, named in the
    header `x-ignored-fields` and counted, or the request is refused by name."""
    cors_origins: tuple[Annotated[str, Meta(pattern=ORIGIN_PATTERN)], ...] = ()
    """Origins whose web pages may use the API from a browser, like `https://chat.example.com`;
    `*` allows every page. Requests of other pages are refused; other clients send no origin."""
    body_types: tuple[Annotated[str, Meta(pattern=BODY_TYPE_PATTERN)], ...] = ("application/json",)
    """Content types that a request's body may be declared as. It is read as JSON in any case. A
    web page can send `text/plain` without asking the browser first."""
    root_path: Annotated[str, Meta(pattern=ROOT_PATH_PATTERN)] = ""
    """Prefix under which all routes are served too, like `/llm`; for a proxy that does not strip
    it."""
    operator_keys_file: str = ""
    """File of the keys that may read `/metrics` (`baton keys`); empty means that only a gateway
    without `keys_file` answers there."""
    body_bytes_max: Count = 8 << 20
    """Bytes of a request's body."""
    max_streams: Count = 4096
    """Live requests."""
    router_wait_ms: Milliseconds = 5_000.0
    """How long new requests are held while no router answers."""
    token_wait_ms_max: Positive = 300_000.0
    """How long a request may go without a token, from its arrival or its last token. It then ends
    with an error that says where it waited, whatever the reason."""
    recovery: bool = True
    """Whether a stream whose worker is lost continues on another one."""
    recovery_ms: Milliseconds = 45_000.0
    """How long such a stream waits to be placed."""
    router_silence_ms: Annotated[float, Meta(ge=400)] = 1_000.0
    """Silence after which a router is left for another one that answers. A router sends something
    several times in this time."""
    media_domains: tuple[Annotated[str, Meta(pattern=MEDIA_DOMAIN_PATTERN)], ...] = ()
    """Hosts from which images are fetched that a request names by an http or https URL, like
    `images.example.com`; without any, such images are refused. A host in a private network is
    fetched from only if it is given by its address."""
    media_ms_max: Positive = 5_000.0
    """Time in which all images of a request must be fetched."""
    default_max_tokens: Annotated[int, Meta(ge=0)] = 0
    """Tokens that a chat request may generate if it names no limit; 0 is all that the model's
    context has room for."""
    slow_client_bytes_max: Count = 1 << 20
    """Bytes that wait for a client which reads slowly; it is disconnected above that. For one of a
    stream with `x-resumable`, `resumable_bytes_max` wait instead."""
    slow_client_ms_max: Milliseconds = 10_000.0
    """How long a client may take nothing while bytes wait for it; it is disconnected then. One of a
    stream with `x-resumable` may take nothing for as long as the stream runs."""
    resume_ms: Milliseconds = 60_000.0
    """How long a stream that was asked for with `x-resumable` is kept without a client."""
    resumable_streams_max: Count = 256
    """Such streams that are kept."""
    resumable_streams_per_key_max: Count = 64
    """Such streams of one API key that each gateway process keeps."""
    resumable_bytes_max: Count = 1 << 20
    """Bytes of events that are kept of each such stream. A stream of which more waits to be taken,
    because its client is gone or slow, is ended. Its client can still get all that is kept."""
    limits: RequestLimits = RequestLimits()
    jobs: JobsConfig = JobsConfig()
    cells: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], CellConfig] = field(
        default_factory=dict
    )
    """The cells that are served, by name; none: the fleet of this file alone. A tenant belongs to
    one of them. A request that its cell refuses or cannot take is given to one other."""
    cell_spill_share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """How many refused requests are tried in another cell, as a share of all requests. Those of a
    cell that is lost are not counted."""
