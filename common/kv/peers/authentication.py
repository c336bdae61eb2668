"""How both ends of a link prove that they know the fleet's secret, and how its frames are sealed.

Theory of operation: as a link opens, each side sends a `Greeting`: a fresh nonce and the ids of the
secrets that it knows. From a secret that both know, both nonces and both control tags the two sides
derive a key of this link (HMAC-SHA256), and from that one key for each direction. Every control
frame carries an HMAC of its number and its body under the key of its direction, and the receiver
checks that before it decodes anything. So the first frame, the hello, answers the other side's
challenge: a recorded one was sealed for another nonce, and one that is reflected for the other
direction. The later frames are bound to the identities in the two hellos, because they are numbered
under the same key. Each transfer has a key of its own for the digests of its data.

A side that authenticates takes no link with one that does not, and the other way round. Without
authentication a greeting names no secret, and the seal is a digest that finds faults and no forger.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

from common.errors import WireError

SEAL_BYTES = 16
NONCE_BYTES = 32
KEY_ID_BYTES = 8
SECRETS_MAX = 2
_NO_KEY = bytes(KEY_ID_BYTES)
_NUMBER = struct.Struct("<Q")
_HASH = "sha256"

NONE_IN_COMMON = "it knows none of the fleet's secrets that this worker knows"
ONE_SIDED = "one side authenticates and the other does not; [kv] authenticate must be alike"


def key_id(secret: bytes) -> bytes:
    """By which two sides find a secret that both know; it tells nothing of the secret."""
    return hmac.digest(secret, b"baton kv id", _HASH)[:KEY_ID_BYTES]


@dataclass(frozen=True, slots=True)
class Greeting:
    """What one side says as a link opens. `key_ids` is empty if it does not authenticate."""

    nonce: bytes
    key_ids: tuple[bytes, ...]

    @classmethod
    def of(cls, secrets: Sequence[bytes]) -> Greeting:
        """A fresh one of a side that knows these secrets, at most `SECRETS_MAX`."""
        return cls(os.urandom(NONCE_BYTES), tuple(key_id(secret) for secret in secrets))

    def pack(self) -> bytes:
        ids = (*self.key_ids, *(_NO_KEY,) * SECRETS_MAX)[:SECRETS_MAX]
        return b"".join((self.nonce, *ids))

    @classmethod
    def unpack(cls, data: bytes) -> Greeting:
        """Of `LINK_GREETING_BYTES`, as `pack` made them or a stranger."""
        starts = range(NONCE_BYTES, NONCE_BYTES + SECRETS_MAX * KEY_ID_BYTES, KEY_ID_BYTES)
        ids = (data[start : start + KEY_ID_BYTES] for start in starts)
        return cls(data[:NONCE_BYTES], tuple(known for known in ids if known != _NO_KEY))


class FrameSeals(Protocol):
    """Seals of the control frames of one link; each has `SEAL_BYTES`."""

    key_id: bytes
    """Of the secret that the link was opened with; empty if its seals prove nothing."""

    def next_sent(self, body: bytes) -> bytes:
        """The seal of the next frame that this side sends."""

    def next_received(self, body: bytes) -> bytes:
        """The seal that the next frame from the other side must have."""

    def data_key(self, transfer: int) -> bytes:
        """Of the digests of this transfer's data; empty if they prove nothing."""


class FaultSeals:
    """Digests that find faults."""

    key_id = b""

    def next_sent(self, body: bytes) -> bytes:
        return xxhash.xxh3_128_digest(body)

    def next_received(self, body: bytes) -> bytes:
        return xxhash.xxh3_128_digest(body)

    def data_key(self, transfer: int) -> bytes:  # noqa: ARG002
        return b""


class KeyedSeals:
    """HMACs under the keys of one link, by direction, over a running number and the body."""

    def __init__(self, secret: bytes, own: bytes, remote: bytes) -> None:
        """`own`, `remote`: what each side said as the link opened."""
        self.key_id = key_id(secret)
        # Both sides take the two greetings in one order.
        key = hmac.digest(secret, b"baton kv link" + b"".join(sorted((own, remote))), _HASH)
        self._send_key = hmac.digest(key, b"frames of" + own, _HASH)
        self._receive_key = hmac.digest(key, b"frames of" + remote, _HASH)
        self._data_key = hmac.digest(key, b"data", _HASH)
        self._sent = 0
        self._received = 0

    def next_sent(self, body: bytes) -> bytes:
        number, self._sent = self._sent, self._sent + 1
        return _seal(self._send_key, number, body)

    def next_received(self, body: bytes) -> bytes:
        number, self._received = self._received, self._received + 1
        return _seal(self._receive_key, number, body)

    def data_key(self, transfer: int) -> bytes:
        number = _NUMBER.pack(transfer)
        return hashlib.blake2b(number, key=self._data_key, digest_size=32).digest()


def agree(
    secrets: Sequence[bytes], own: Greeting, own_tag: int, remote: Greeting, remote_tag: int
) -> FrameSeals:
    """The seals of a link whose sides said this. Raises WireError where they cannot agree."""
    if bool(secrets) != bool(remote.key_ids):
        raise WireError(ONE_SIDED)
    if not secrets:
        return FaultSeals()
    common = [secret for secret in secrets if key_id(secret) in remote.key_ids]
    said = _NUMBER.pack(own_tag) + own.pack(), _NUMBER.pack(remote_tag) + remote.pack()
    if not common or said[0] == said[1]:
        raise WireError(NONE_IN_COMMON)
    return KeyedSeals(max(common, key=key_id), *said)


def same_seal(one: bytes, other: bytes) -> bool:
    """In constant time."""
    return hmac.compare_digest(one, other)


def _seal(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + body, _HASH)[:SEAL_BYTES]
