"""The folder that `baton keygen` keeps: one folder a host, each with the list of all.

DIR/HOST/secret.json, DIR/HOST/peers.json and DIR/HOST/kv.json are what that host's `[security]
keys_dir` holds. The list and the fleet's secret for KV (kv.json) are the same for all; they are
written for each so that a folder can be copied as it is.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from common.errors import ConfigError
from common.net.sockets import new_key_pair
from common.process.owned_files import own_folder
from common.security.files import (
    KEYS_MAX,
    KV,
    NEXT_SECRET,
    PEERS,
    PEERS_MAX,
    SECRET,
    HostKeys,
    KvSecrets,
    PeersFile,
    Secret,
    check_peers,
    read_kv_secrets,
    read_peers,
    write,
)

FOLDER_MODE = 0o750
KV_SECRET_BYTES = 32

T = TypeVar("T")


class KeyFolder:
    """Raises ConfigError where its files contradict each other or cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lists = {file: read_peers(file).peers for file in path.glob(f"*/{PEERS}")}
        self.peers: list[HostKeys] = _same(lists) or []
        hosts = {peer.name for peer in self.peers}
        files = [file for file in path.glob(f"*/{KV}") if file.parent.name in hosts]
        #: The fleet's secrets for KV, the oldest first; empty before the first host.
        self.kv_secrets = _same({file: read_kv_secrets(file).secrets for file in files}) or []

    def peer(self, name: str) -> HostKeys:
        for peer in self.peers:
            if peer.name == name:
                return peer
        known = ", ".join(peer.name for peer in self.peers) or "none"
        raise ConfigError("host", f"no host {name!r} in {self._path}; there are: {known}")

    def add(
        self,
        name: str,
        addresses: list[str] | None,
        roles: list[str] | None = None,
        names: list[str] | None = None,
    ) -> bool:
        """A new host with a new key, or what is given anew of a known one; None leaves it as it is.
        True: the host is new."""
        parts = {"addresses": addresses, "roles": roles, "names": names}
        given = {key: value for key, value in parts.items() if value is not None}
        known = next((peer for peer in self.peers if peer.name == name), None)
        if known is not None:
            self._replace(known, msgspec.structs.replace(known, **given))
            return False
        if len(self.peers) >= PEERS_MAX:
            raise ConfigError("host", f"more than {PEERS_MAX} hosts")
        secret = _new_secret(name)
        host = msgspec.structs.replace(HostKeys(name=name, keys=[secret.public]), **given)
        peers = self._checked([*self.peers, host])
        write(self._folder(name) / SECRET, secret)
        self._save(peers)
        return True

    def rotate(self, name: str) -> Path:
        """A second key beside the first. Returns the file of its secret, which is not in use."""
        peer = self.peer(name)
        if len(peer.keys) >= KEYS_MAX:
            sentence = f"{name} is being rotated; finish with `baton keygen retire {name}`"
            raise ConfigError("host", sentence)
        secret = _new_secret(name)
        path = self._folder(name) / NEXT_SECRET
        write(path, secret)
        self._replace(peer, msgspec.structs.replace(peer, keys=[*peer.keys, secret.public]))
        return path

    def retire(self, name: str) -> None:
        """Ends a rotation: only the newest key stays, whose secret becomes the one in use."""
        peer = self.peer(name)
        if len(peer.keys) < KEYS_MAX:
            raise ConfigError(
                "host", f"{name} has one key; `baton keygen rotate {name}` comes first"
            )
        self._replace(peer, msgspec.structs.replace(peer, keys=peer.keys[-1:]))
        following = self._path / name / NEXT_SECRET
        if following.exists():
            following.rename(self._path / name / SECRET)

    def revoke(self, name: str) -> None:
        """Its folder stays, without use: no other host knows its keys."""
        gone = self.peer(name)
        self._save(self._checked([peer for peer in self.peers if peer is not gone]))
        (self._path / name / PEERS).unlink(missing_ok=True)

    def rotate_kv(self) -> None:
        """A second secret for KV beside the first, both good; or the first."""
        if not self.peers:
            raise ConfigError("--dir", f"{self._path} has no hosts; `baton keygen add` makes them")
        if len(self.kv_secrets) >= KEYS_MAX:
            sentence = "the secret is being rotated; finish with `baton keygen retire-kv`"
            raise ConfigError("kv", sentence)
        self._save_kv([*self.kv_secrets, secrets.token_hex(KV_SECRET_BYTES)])

    def retire_kv(self) -> None:
        """Only the newest secret for KV stays."""
        if len(self.kv_secrets) < KEYS_MAX:
            sentence = "there is one secret; `baton keygen rotate-kv` comes first"
            raise ConfigError("kv", sentence)
        self._save_kv(self.kv_secrets[-1:])

    def _replace(self, old: HostKeys, new: HostKeys) -> None:
        self._save(self._checked([new if peer is old else peer for peer in self.peers]))

    def _checked(self, peers: list[HostKeys]) -> PeersFile:
        """Also against what a struct made here does not check by itself: patterns and lengths."""
        try:
            file = msgspec.convert(msgspec.to_builtins(PeersFile(peers=peers)), PeersFile)
        except msgspec.ValidationError as error:
            raise ConfigError("host", str(error)) from error
        check_peers(file, self._path)
        return file

    def _save(self, file: PeersFile) -> None:
        for peer in file.peers:
            write(self._folder(peer.name) / PEERS, file)
        self.peers = file.peers
        self._save_kv(self.kv_secrets or [secrets.token_hex(KV_SECRET_BYTES)])

    def _save_kv(self, known: list[str]) -> None:
        for peer in self.peers:
            write(self._folder(peer.name) / KV, KvSecrets(secrets=known))
        self.kv_secrets = known

    def _folder(self, name: str) -> Path:
        folder = self._path / name
        try:
            own_folder(folder)
        except OSError as error:
            sentence = f"{folder} cannot be used: {error.strerror}"
            raise ConfigError("--dir", sentence) from error
        return folder


def _same(files: dict[Path, T]) -> T | None:
    """What all of these files say; None if there are none. Raises ConfigError if they differ."""
    first = next(iter(files.values()), None)
    for file, content in files.items():
        if content != first:
            sentence = f"{file} differs from the others; copy the right one over it"
            raise ConfigError("--dir", sentence)
    return first


def _new_secret(name: str) -> Secret:
    public, secret = new_key_pair()
    return Secret(name=name, public=public, secret=secret)
