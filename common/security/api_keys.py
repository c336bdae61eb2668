"""The key file: which API keys a gateway accepts, and what each may use. `baton keys` writes it.

Theory of operation: a key is `bk_<id>_<secret>`, with 12 and 64 hex digits. The id is public and
finds the record; the secret is 256 random bits, of which the file holds only the SHA-256. A slow
hash (scrypt) protects passwords that people choose. Nobody guesses 256 random bits, and
milliseconds of CPU for each presented key would let an attacker exhaust the CPU with wrong keys.
The file is JSON and is replaced as a whole by a rename, so that a reader sees the old or the new
one, never half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.errors import ConfigError
from common.messages import KeyLimits, PriorityClass
from common.process.owned_files import open_own, open_trusted, replace_own

OTHERS = 0o007
FILE_BYTES_MAX = 8 << 20
KEYS_MAX = 10_000
KEY_MODELS_MAX = 64
ID_PATTERN = r"^[0-9a-f]{12}$"
LABEL_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"

Priority = Literal["interactive", "standard", "batch"]
PRIORITIES: dict[Priority, PriorityClass] = {
    "interactive": PriorityClass.INTERACTIVE,
    "standard": PriorityClass.STANDARD,
    "batch": PriorityClass.BATCH,
}
ModelName = Annotated[str, Meta(min_length=1, max_length=128)]
Amount = Annotated[float, Meta(ge=0)]


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key. Its limits hold over all gateways."""

    id: Annotated[str, Meta(pattern=ID_PATTERN)]
    #: SHA-256 of the secret's hex digits, in hex.
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    #: Keys of one tenant share its capacity and its cached prompts; tenants share the fleet fairly.
    tenant: Annotated[str, Meta(pattern=LABEL_PATTERN)]
    #: The best class that a request with this key may ask for.
    priority: Priority = "standard"
    #: Requests per minute; 0 sets no limit.
    requests_per_min: Amount = 0.0
    #: Tokens per minute; 0 sets no limit.
    tokens_per_min: Amount = 0.0
    #: Requests at once; 0 sets no limit.
    concurrency: Annotated[int, Meta(ge=0)] = 0
    #: Share of the tenant in a contended fleet, relative to other tenants.
    weight: Annotated[float, Meta(gt=0)] = 1.0
    #: MiB of KV that one of its requests is promised at a time; 0 is that of `[limits]`.
    kv_budget_mib: Amount = 0.0
    #: Names of the models that it may ask for; empty = all.
    models: Annotated[tuple[ModelName, ...], Meta(max_length=KEY_MODELS_MAX)] = ()
    #: Date, for people.
    created: str = ""

    @property
    def limits(self) -> KeyLimits:
        return KeyLimits(
            requests_per_min=self.requests_per_min,
            tokens_per_min=self.tokens_per_min,
            concurrency=self.concurrency,
            weight=self.weight,
            kv_budget_mib=self.kv_budget_mib,
        )


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a key file."""

    version: Literal[1] = 1
    keys: Annotated[list[KeyRecord], Meta(max_length=KEYS_MAX)] = []


def new_key() -> tuple[str, str, str]:
    """A fresh (key, id, sha256). The key is shown to its owner once and not stored."""
    key_id, secret = secrets.token_hex(6), secrets.token_hex(32)
    return f"bk_{key_id}_{secret}", key_id, digest(secret)


def digest(secret: str) -> str:
    """The form of `KeyRecord.sha256`. A lone surrogate, which no key has, hashes like `?`."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def read_keys(path: Path) -> KeyFile:
    """Raises ConfigError if the file cannot be read, can be read by every user, is no key file, or
    has an id twice."""
    try:
        with open_trusted(path, secret=True) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        sentence = f"{path} cannot be read: {error.strerror}; `baton keys add` makes one"
        raise ConfigError("gateway.keys_file", sentence) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError("gateway.keys_file", f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        keys = msgspec.json.decode(data, type=KeyFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("gateway.keys_file", f"{path} is not a key file: {error}") from error
    ids = [record.id for record in keys.keys]
    if len(set(ids)) != len(ids):
        raise ConfigError("gateway.keys_file", f"{path} has a key id twice")
    return keys


@contextlib.contextmanager
def edited(path: Path) -> Iterator[list[KeyRecord]]:
    """Yields the records, to be changed in place, and writes them when the block ends without an
    exception. A lock admits one editor at a time. A file that does not exist begins empty. Raises
    ConfigError."""
    try:
        with open_own(path.with_name(path.name + ".lock"), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            records = list(read_keys(path).keys) if path.exists() else []
            yield records
            _replace(path, KeyFile(keys=records))
    except OSError as error:
        sentence = f"{path} cannot be written: {error.strerror}"
        raise ConfigError("gateway.keys_file", sentence) from error


def _replace(path: Path, keys: KeyFile) -> None:
    if len(keys.keys) > KEYS_MAX:
        raise ConfigError("gateway.keys_file", f"more than {KEYS_MAX} keys; revoke some")
    replace_own(path, msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n")
