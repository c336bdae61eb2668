"""Answers libzmq's authentication requests (ZAP, ZeroMQ RFC 27) from the allow-list."""

from __future__ import annotations

import base64

from common.process.watched_file import WatchedFile
from common.security.peers import AllowList
from common.security.refusals import Refusals
from common.security.speaker import Speaker

VERSION, MECHANISM = b"1.0", b"CURVE"
KEY_BYTES = 32
IDENTITY_CHARS_MAX = 64


class Gate:
    """Grants and refuses connections."""

    def __init__(self, peers: WatchedFile[AllowList], refusals: Refusals) -> None:
        self._peers = peers
        self.refusals = refusals

    def answer(self, question: list[bytes]) -> list[bytes]:
        """Returns the frames of the answer. The question has version, request id, domain, address,
        identity, mechanism and credentials. A question that cannot be parsed is refused."""
        request_id = question[1] if len(question) > 1 else b""
        key = _public_key(question)
        name = self._peers.value.name_of(key) if key else None
        if key is None or name is None:
            address = question[3].decode(errors="replace") if len(question) > 3 else "?"
            self.refusals.add("unknown_key", f"{address} holds no key of the allow-list")
            return [VERSION, request_id, b"400", b"this key is not in the allow-list", b"", b""]
        return [VERSION, request_id, b"200", name.encode(), key.encode(), b""]

    def host_of(self, user_id: str) -> str | None:
        """The host that sent a frame under this key. None: the key was revoked since its connection
        was made, and the frame, which is counted, must be dropped."""
        host = self._peers.value.name_of(user_id)
        if host is None:
            self.refusals.add("revoked_key", f"a peer still speaks under the revoked key {user_id}")
        return host

    def impersonated(self, routing_id: bytes, host: str) -> None:
        """Counts a frame that this host sent under the identity of another's peer."""
        who = routing_id.decode(errors="replace")[:IDENTITY_CHARS_MAX].partition("#")[0]
        self.refusals.add("identity_of_another", f"host {host} speaks as {who}, which is another's")

    def speaker(self, host: str, role: str, name: str) -> Speaker:
        """As `AllowList.speaker`."""
        return self._peers.value.speaker(host, role, name)

    def keys_at(self, endpoint: str) -> list[str]:
        """As `AllowList.keys_at`."""
        return self._peers.value.keys_at(endpoint)

    def server_key(self, endpoint: str, tries: int) -> str:
        """The key to expect there after so many tries, each in its turn; empty if none may answer.
        A server that is being rotated may still have its older one."""
        keys = self.keys_at(endpoint)
        return keys[tries % len(keys)] if keys else ""

    def refresh(self) -> bool:
        """Reads the allow-list again if its file changed. True if there is a new list."""
        return self._peers.refresh()


def _public_key(question: list[bytes]) -> str | None:
    if len(question) != 7 or question[0] != VERSION or question[5] != MECHANISM:
        return None
    return z85(question[6]) if len(question[6]) == KEY_BYTES else None


def z85(data: bytes) -> str:
    """Encodes as ZeroMQ RFC 32, which is Python's base85 with another alphabet."""
    return base64.b85encode(data).translate(_TO_Z85).decode()


_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85 = bytes.maketrans(_B85, _Z85)
