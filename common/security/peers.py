"""The allow-list: which keys may connect, for whom a host may speak, and which key must answer at
an address. Pure.

An entry with `roles` speaks for daemons of these roles only, and an entry without them for those of
any role. A name that an entry lists belongs to it: no other host may use the name in these roles,
and this host may use no other. An entry without `names` may use any name that no other entry has;
the router then gives the name to the host that used it first
(`services/router/rules/hello_check.py`).

At a loopback address that the list gives to no host, this host's own key must answer.
"""

from __future__ import annotations

from common.config.exposure import TCP, is_loopback
from common.messages import Role
from common.security.files import PeersFile, named
from common.security.speaker import Speaker


class AllowList:
    """One reading of the peers file, as seen from the host named `own`."""

    def __init__(self, file: PeersFile, own: str) -> None:
        self._hosts = {key: peer.name for peer in file.peers for key in peer.keys}
        self._at = {address: peer.keys for peer in file.peers for address in peer.addresses}
        self._roles = {peer.name: peer.roles for peer in file.peers}
        self._names = {peer.name: peer.names for peer in file.peers}
        self._owners = {daemon: peer.name for peer in file.peers for daemon in named(peer)}
        self._own = next((peer.keys for peer in file.peers if peer.name == own), [])

    def __contains__(self, key: str) -> bool:
        return key in self._hosts

    def name_of(self, key: str) -> str | None:
        """The host to which this public key belongs; None if the key is not in the list."""
        return self._hosts.get(key)

    def speaker(self, host: str, role: str, name: str) -> Speaker:
        """Whether this host may speak for the daemon of this role and name. Who may speak for a
        mixed worker may for either."""
        if role == Role.MIXED:
            parts = [self.speaker(host, part, name) for part in Role.MIXED.parts]
            denied = next((part.denied for part in parts if part.denied), "")
            return Speaker(host, denied, all(part.listed for part in parts))
        roles, names = self._roles.get(host), self._names.get(host)
        owner = self._owners.get((role, name))
        denied = ""
        if roles is None:
            denied = "it is no longer in the allow-list"
        elif roles and role not in roles:
            denied = f"its entry of the allow-list has the roles {', '.join(roles)}"
        elif owner not in (None, host):
            denied = f"the allow-list gives that name to host {owner}"
        elif names and name not in names:
            denied = f"its entry of the allow-list has the names {', '.join(names)}"
        return Speaker(host, denied, owner == host)

    def keys_at(self, endpoint: str) -> list[str]:
        """Public keys that may answer at `tcp://HOST:PORT`, the newest first; empty if none may."""
        match = TCP.fullmatch(endpoint)
        host = match[1].strip("[]") if match else ""
        named = self._at.get(host)
        return list(reversed(named or (self._own if is_loopback(host) else [])))
