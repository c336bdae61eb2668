"""The allow-list: which keys may connect, and which key must answer at an address. Pure.

At a loopback address that the list gives to no host, this host's own key must answer.
"""

from __future__ import annotations

from common.config.exposure import TCP, is_loopback
from common.security.files import PeersFile


class AllowList:
    """One reading of the peers file, as seen from the host named `own`."""

    def __init__(self, file: PeersFile, own: str) -> None:
        self._names = {key: peer.name for peer in file.peers for key in peer.keys}
        self._at = {address: peer.keys for peer in file.peers for address in peer.addresses}
        self._own = next((peer.keys for peer in file.peers if peer.name == own), [])

    def __contains__(self, key: str) -> bool:
        return key in self._names

    def name_of(self, key: str) -> str | None:
        """The host to which this public key belongs; None if the key is not in the list."""
        return self._names.get(key)

    def keys_at(self, endpoint: str) -> list[str]:
        """Public keys that may answer at `tcp://HOST:PORT`, the newest first; empty if none may."""
        match = TCP.fullmatch(endpoint)
        host = match[1].strip("[]") if match else ""
        named = self._at.get(host)
        return list(reversed(named or (self._own if is_loopback(host) else [])))
