"""Encryption of a store's records on the disk, and the key for it.

Theory of operation: a header and a block are sealed each, by AES-256-GCM with a random nonce, so
neither the KV nor the hashes of prompts can be read without the key. Only the time of the last use
is open. GCM also refuses what was changed; the digest of the block is judged after it, as ever. The
nonces of one key are 96 random bits, which are good for some 2**32 seals: four billion blocks.

The key lies in a file of 64 hexadecimal digits with mode 0600. It protects a disk that is taken
away, lent or thrown out, if the file lies elsewhere. It does not protect from whoever may read this
user's files on the running host. A key that is lost loses what is stored, and nothing else.

The library is imported only where it is used (`baton-serve[encryption]`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import numpy as np

from common.config import StoreConfig
from common.errors import BatonError, Code
from common.kv.checksum.definition import Bytes
from common.process.owned_files import make_private

SECRET_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
SEAL_BYTES = NONCE_BYTES + TAG_BYTES
"""By which what is sealed is longer than it was."""
KEY_FILE = "store.key"
OTHERS = 0o077
KEY_BYTES_MAX = 1024
NOT_A_FILE = "it is not a file; remove it"


class Sealing:
    """One thread uses it at a time."""

    def __init__(self, secret: bytes, key: bytes) -> None:
        """`key`: for whom the records are (`record_key`); what was sealed for others cannot be
        opened."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(secret)
        self._key = key
        self._buffer = np.empty(0, np.uint8)

    def seal(self, data: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, self._key)

    def open(self, sealed: bytes) -> bytes | None:
        """None if it is not what was sealed."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], self._key)
        except (InvalidTag, ValueError):
            return None

    def buffer(self, data_bytes: int) -> Bytes:
        """Room for so many bytes when they are sealed. Valid until the next call."""
        if self._buffer.nbytes < data_bytes + SEAL_BYTES:
            self._buffer = np.empty(data_bytes + SEAL_BYTES, np.uint8)
        return self._buffer[: data_bytes + SEAL_BYTES]

    def seal_block(self, data: Bytes) -> Bytes:
        """The sealed block, in `buffer`."""
        sealed, nonce = self.buffer(data.nbytes), os.urandom(NONCE_BYTES)
        sealed[:NONCE_BYTES] = np.frombuffer(nonce, np.uint8)
        self._cipher.encrypt_into(nonce, data.data, self._key, sealed[NONCE_BYTES:].data)
        return sealed

    def open_block(self, sealed: Bytes, out: Bytes) -> bool:
        """Fills `out`. False if this is not what was sealed; `out` then holds nothing of use."""
        from cryptography.exceptions import InvalidTag

        nonce = sealed[:NONCE_BYTES].tobytes()
        try:
            self._cipher.decrypt_into(nonce, sealed[NONCE_BYTES:].data, self._key, out.data)
        except InvalidTag:
            return False
        return True


def secret_of(config: StoreConfig) -> bytes:
    """The key of this store, which is made if it is missing; empty if nothing is encrypted. Raises
    BatonError(CONFIG_INVALID) that names the fix."""
    if not config.encrypt_at_rest:
        return b""
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError as error:
        sentence = (
            "[kv.store] encrypt_at_rest needs the library cryptography: "
            "pip install 'baton-serve[encryption]'"
        )
        raise BatonError(Code.CONFIG_INVALID, sentence) from error
    path = key_path(config)
    try:
        make_private(path, os.urandom(SECRET_BYTES).hex().encode() + b"\n")
        text, fault = read_key(path)
        secret = bytes.fromhex(text)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else "it has no hexadecimal digits"
        fault, secret = f"{what}; see [kv.store] key_file", b""
    if not fault and len(secret) != SECRET_BYTES:
        fault = f"it has not {2 * SECRET_BYTES} hexadecimal digits; remove it for a new key"
    if fault:
        raise BatonError(Code.CONFIG_INVALID, f"the key of the store, {path}: {fault}")
    return secret


def key_path(config: StoreConfig) -> Path:
    """The key lies beside the store where the file names no other place."""
    return Path(config.key_file) if config.key_file else Path(config.path) / KEY_FILE


def read_key(path: Path) -> tuple[str, str]:
    """What this file says, and why it is not used as a key, which is judged of the file that was
    opened. One of both is empty. Raises OSError where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "", NOT_A_FILE
    try:
        fault = _fault(path, os.fstat(descriptor))
        read = b"" if fault else os.read(descriptor, KEY_BYTES_MAX)
    finally:
        os.close(descriptor)
    return read.decode("ascii", "replace"), fault


def _fault(path: Path, status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return NOT_A_FILE
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}; give it to the daemons' user"
    if status.st_mode & OTHERS:
        return f"it has mode {stat.S_IMODE(status.st_mode):04o}; run chmod 0600 {path}"
    return ""


def sealed_for(secret: bytes) -> str:
    """What of the secret is in the records' key, so that records of another secret, and those that
    are not encrypted, are known to be somebody else's. Empty without a secret."""
    return hashlib.sha256(b"baton store" + secret).hexdigest()[:16] if secret else ""
