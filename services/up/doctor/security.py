"""Keys, and what is open to whom."""

from __future__ import annotations

import stat
from pathlib import Path

from common.config import Config, KvConfig
from common.config.exposure import TCP, WILDCARDS, is_loopback
from common.errors import ConfigError
from common.net.endpoints import control_addresses
from common.process.owned_files import open_trusted
from common.security.api_keys import read_keys
from common.security.files import (
    NEXT_SECRET,
    PEERS,
    SECRET,
    read_kv_secrets,
    read_peers,
    read_secret,
)
from common.security.open import kv_secrets_file, read_allow_list
from common.security.peers import AllowList
from services.up.doctor.finding import Finding, failed, passed, warned

OTHERS = 0o007


def check(config: Config) -> list[Finding]:
    return [
        *_curve(config),
        *_api_keys(config),
        _tls(config),
        *_kv_secret(config),
        *_kv(config),
    ]


def _curve(config: Config) -> list[Finding]:
    exposed = [
        endpoint
        for endpoint in (*control_addresses(config).values(), config.gateway.stream_bind)
        if (match := TCP.fullmatch(endpoint)) and not is_loopback(match[1].strip("[]"))
    ]
    if not config.security.keys_dir:
        if not exposed:
            return [passed("curve", "control sockets stay on this host: no keys are needed")]
        saw = f"{', '.join(exposed)} take whoever connects, unencrypted"
        return [warned("curve", saw, "`baton keygen add`, then [security] keys_dir")]
    folder = Path(config.security.keys_dir)
    try:
        secret, peers = read_secret(folder / SECRET), read_peers(folder / PEERS)
    except ConfigError as error:
        return [failed("curve", str(folder), error.message)]
    allowed = read_allow_list(folder / PEERS, secret.name)
    return [
        _own_key(folder, secret.name, known=secret.public in allowed),
        _folder(folder),
        *_routers(config, allowed),
        *[_rotation(folder, peer.name) for peer in peers.peers if len(peer.keys) > 1],
    ]


def _own_key(folder: Path, name: str, *, known: bool) -> Finding:
    if known:
        return passed("curve", f"this host is {name}; its key is in the allow-list")
    saw = f"the key of {folder / SECRET} ({name}) is not in {PEERS}: no other host lets it in"
    return failed("curve", saw, "copy both files of one `baton keygen` folder to this host")


def _folder(folder: Path) -> Finding:
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & OTHERS:
        saw = f"{folder} has mode {mode:04o}: others can look into it"
        return warned("curve folder", saw, f"chmod 0750 {folder}")
    return passed("curve folder", f"{folder} ({mode:04o})")


def _routers(config: Config, allowed: AllowList) -> list[Finding]:
    unlisted = [
        endpoint
        for endpoint in control_addresses(config).values()
        if endpoint.startswith("tcp://") and not allowed.keys_at(endpoint)
    ]
    fix = "`baton keygen add HOST=ADDRESS`, then copy every peers.json"
    return [
        failed("curve router", f"no host of the allow-list has the address of {endpoint}", fix)
        for endpoint in unlisted
    ]


def _rotation(folder: Path, name: str) -> Finding:
    waiting = (folder / NEXT_SECRET).exists()
    saw = f"{name} has two keys: its rotation is not finished"
    first = f"mv {folder / NEXT_SECRET} {folder / SECRET} and restart; " if waiting else ""
    return warned("curve rotation", saw, f"{first}`baton keygen retire {name}` once all restarted")


def _api_keys(config: Config) -> list[Finding]:
    findings = []
    for name, section in (("gateway", config.gateway), ("health", config.health)):
        label = f"{name} keys"
        if section.keys_file:
            findings.append(_key_file(label, Path(section.keys_file)))
        elif is_loopback(section.host):
            findings.append(passed(label, f"none are asked for; {section.host} is this host only"))
        else:
            saw = f"{section.host} answers whoever can reach it"
            findings.append(warned(label, saw, f"`baton keys add`, then [{name}] keys_file"))
    if config.health.keys_file and config.health.keys_file == config.gateway.keys_file:
        saw = "every tenant's key opens metrics and dashboard"
        findings.append(warned("health keys", saw, "give [health] a keys_file of its own"))
    return findings


def _key_file(label: str, path: Path) -> Finding:
    try:
        count = len(read_keys(path).keys)
    except ConfigError as error:
        return failed(label, str(path), error.message)
    return passed(label, f"{count} keys in {path}")


def _tls(config: Config) -> Finding:
    gateway = config.gateway
    if gateway.tls_key_file:
        try:
            open_trusted(Path(gateway.tls_key_file), secret=True).close()
        except OSError as error:
            return failed("tls", f"{gateway.tls_key_file}", error.strerror or str(error))
        return passed("tls", "the gateway speaks HTTPS")
    if is_loopback(gateway.host):
        return passed("tls", "not used; the gateway answers this host only")
    where = "every interface" if gateway.host in WILDCARDS else gateway.host
    saw = f"keys and prompts cross {where} in the clear"
    fix = "[gateway] tls_certificate_file and tls_key_file, or a proxy with TLS in front"
    return warned("tls", saw, fix)


def _workers(config: Config) -> list[KvConfig]:
    """And pools."""
    return list(config.kv_planes.values())


def _kv_secret(config: Config) -> list[Finding]:
    """Whether workers authenticate each other. It must be alike on all of them."""
    files = {kv_secrets_file(config, kv) for kv in _workers(config)}
    exposed = any(not is_loopback(kv.host) for kv in _workers(config))
    if len(files) > 1:
        saw = "some workers authenticate each other and some do not: these share no KV"
        return [failed("kv secret", saw, "let [kv] authenticate be alike on all workers")]
    path = next(iter(files), "")
    if path:
        return [_kv_secrets_of(Path(path))]
    if not exposed:
        return []
    saw = "workers take whoever reaches their KV listener at his word"
    return [warned("kv secret", saw, "`baton keygen add`, then [security] keys_dir")]


def _kv_secrets_of(path: Path) -> Finding:
    try:
        known = read_kv_secrets(path).secrets
    except ConfigError as error:
        fix = "`baton keygen rotate-kv` makes it; copy it to every host"
        return failed("kv secret", error.message, fix)
    if len(known) > 1:
        saw = "there are two secrets for KV: their rotation is not finished"
        return warned("kv secret", saw, "`baton keygen retire-kv` once every host has this kv.json")
    return passed("kv secret", f"workers prove that they know {path}")


def _kv(config: Config) -> list[Finding]:
    """What of KV other hosts can reach."""
    plans: list[KvConfig] = []
    for kv in _workers(config):
        if kv not in plans and not is_loopback(kv.host):
            plans.append(kv)
    return [_plan(kv) for kv in plans]


def _plan(kv: KvConfig) -> Finding:
    """The listener answers at one address; the sockets that UCX makes for data, at all that it may
    use."""
    if kv.port == 0:
        saw = f"KV at {kv.host} listens at a port that changes"
        fix = "set [kv] port, and let only the fleet's hosts reach it (SECURITY.md has the rule)"
        return warned("kv exposure", saw, fix)
    where = f"the interfaces {kv.interfaces}" if kv.interfaces else "every interface"
    saw = (
        f"KV, not encrypted, is at {kv.host}:{kv.port}; UCX also takes data on {where}, at the "
        "ports of UCX_TCP_PORT_RANGE"
    )
    return passed("kv exposure", f"{saw}: only the fleet's hosts may reach them (SECURITY.md)")
