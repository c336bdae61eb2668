"""Descriptors (files, sockets, pipes): how many a daemon may have open, and how many it needs.

Theory of operation: the soft limit of a session is often 1,024, for the sake of programs that use
select(2), which no daemon does. So each daemon raises it to the hard limit when it starts. What it
needs follows from the fleet file: what every process has, its peers, and, for a gateway, its
clients. Peers come and go while clients are there, so a gateway keeps its last descriptors from
clients. The kernel gives a new connection the lowest free number. One of the last numbers tells
that all below it are taken, by whatever, and the connection is refused while there is still a
descriptor to refuse it with.
"""

from __future__ import annotations

import resource

from common.config import Config
from common.messages import Role

#: What a library that keeps a table of all possible descriptors can bear.
LIMIT_MAX = 1 << 20
#: Measured of idle daemons: 23 to 50, with logs, loops, pipes, libzmq's threads and UCX.
OWN = 64
#: Measured for a worker and each other one over shared memory and TCP: 3.
PER_PEER = 6
#: `baton ctl`, scrapes, grammar processes, and refused connections that are being closed.
OCCASIONAL = 48


def raise_limit() -> int:
    """Raises the soft limit of this process as far as it may. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = min(_bounded(hard), LIMIT_MAX)
    if _bounded(soft) < best:
        resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
        return best
    return _bounded(soft)


def soft_limit() -> int:
    """How many this process may have open."""
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hard_limit() -> int:
    """To which a daemon that is started by this process can raise its own."""
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def kept(config: Config) -> int:
    """What a daemon of this fleet may have open besides connections of HTTP clients."""
    daemons = len(config.prefill) + len(config.decode) + len(config.pool) + config.gateway.processes
    daemons += len(config.router.standby) + 2
    return OWN + PER_PEER * daemons + OCCASIONAL


def needed(config: Config, role: Role) -> int:
    """What a daemon of this role may have open at once."""
    return kept(config) + _clients(config).get(role, 0)


def _clients(config: Config) -> dict[Role, int]:
    """The most HTTP clients of a role that has any."""
    return {
        Role.GATEWAY: config.gateway.connections_max,
        Role.HEALTH: config.health.connections_max,
    }


def shortage(config: Config, role: Role, limit: int) -> tuple[str, str] | None:
    """What a limit that is too low means for this role, and the fix; None if it is enough."""
    need = needed(config, role)
    if need <= limit:
        return None
    clients = role in _clients(config) and kept(config) <= limit // 2
    means = f"refuses clients before [{role}] connections_max" if clients else "may lose its peers"
    return (
        f"a {role} daemon may need {need} descriptors and gets {limit}: it {means}",
        f"ulimit -Hn {need}, or LimitNOFILE={need} in the unit",
    )


def kept_from_clients(config: Config, limit: int) -> int:
    """How many of the last descriptors of `limit` no HTTP client gets."""
    return min(kept(config), limit // 2)


def _bounded(limit: int) -> int:
    return LIMIT_MAX if limit == resource.RLIM_INFINITY else limit
