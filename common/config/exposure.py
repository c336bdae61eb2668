"""A gateway without keys answers only its own host, unless the file says that it shall not."""

from __future__ import annotations

import ipaddress

from common.config.sections import GatewayConfig
from common.errors import ConfigError


def check_exposure(gateway: GatewayConfig) -> None:
    """Raises ConfigError for an address others can reach, served without keys by oversight."""
    if gateway.keys_file or gateway.allow_anonymous or is_loopback(gateway.host):
        return
    raise ConfigError(
        "gateway.host",
        f"{gateway.host} can be reached from other hosts and no keys are asked for; name a "
        "[gateway] keys_file (`baton keys add` makes one), or set allow_anonymous = true",
    )


def is_loopback(host: str) -> bool:
    """A name other than localhost may resolve to anything, so it is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
