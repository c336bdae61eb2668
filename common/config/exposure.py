"""Refuses sockets that other hosts can reach without keys, unless the fleet file allows them."""

from __future__ import annotations

import ipaddress
import re

from common.config.gateway import GatewayConfig
from common.config.sections import Config, HealthConfig
from common.errors import ConfigError

TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]:/@\s]+):(\d{1,5})")
WILDCARDS = frozenset({"*", "0.0.0.0", "::"})


def check_exposure(config: Config) -> None:
    """Raises ConfigError for an HTTP address that other hosts can reach without keys."""
    sections: dict[str, GatewayConfig | HealthConfig] = {
        "gateway": config.gateway,
        "health": config.health,
    }
    for name, section in sections.items():
        if section.keys_file or section.allow_anonymous or is_loopback(section.host):
            continue
        raise ConfigError(
            f"{name}.host",
            f"{section.host} can be reached from other hosts and no keys are asked for; name a "
            f"[{name}] keys_file (`baton keys add` makes one), or set allow_anonymous = true",
        )


def check_control(config: Config) -> None:
    """Raises ConfigError for a control socket that other hosts could use without a key, and for a
    wildcard address. Peers connect to the address in the file, so a wildcard names no host."""
    endpoints = {"router.control": config.router.control}
    endpoints |= {f"router.standby.{name}": at for name, at in config.router.standby.items()}
    for cell, there in config.gateway.cells.items():
        endpoints[f"gateway.cells.{cell}.control"] = there.control
        for name, at in there.standby.items():
            endpoints[f"gateway.cells.{cell}.standby.{name}"] = at
    endpoints["gateway.stream_bind"] = config.gateway.stream_bind
    for path, endpoint in endpoints.items():
        if not endpoint or endpoint.startswith("ipc://"):
            continue
        host = _tcp_host(path, endpoint)
        if host in WILDCARDS:
            sentence = f"{endpoint} binds every interface; name the address of one, like 10.0.0.1"
            raise ConfigError(path, sentence)
        if not (is_loopback(host) or config.security.keys_dir or config.security.insecure):
            raise ConfigError(
                path,
                f"{endpoint} can be reached from other hosts and no keys are asked for; make keys "
                "with `baton keygen add` and name their folder in [security] keys_dir, or set "
                "insecure = true there",
            )


def check_kv(config: Config) -> None:
    """Raises ConfigError where workers shall authenticate each other and have no secret for it."""
    for name, kv in config.kv_planes.items():
        if kv.authenticate is True and not config.security.keys_dir:
            raise ConfigError(
                f"{name}.kv.authenticate",
                "workers prove that they know a secret of the fleet, and there is none; make it "
                "with `baton keygen add` and name its folder in [security] keys_dir",
            )


def _tcp_host(path: str, endpoint: str) -> str:
    match = TCP.fullmatch(endpoint)
    if match is None or int(match[2]) > 65535:
        sentence = f"{endpoint} is no endpoint; write tcp://ADDRESS:PORT or ipc://PATH"
        raise ConfigError(path, sentence)
    return match[1].strip("[]")


def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses; another name may resolve to any address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
