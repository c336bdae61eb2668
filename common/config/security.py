"""`[security]`: keys of the TCP control sockets."""

from __future__ import annotations

from common.config.base import Section


class SecurityConfig(Section, frozen=True):
    """A control socket that other hosts can reach needs keys, unless the file says otherwise."""

    keys_dir: str = ""
    """Folder of this host's CURVE keys (`baton keygen`), the same path on every host. With it every
    TCP control socket is encrypted and asks for a key of the allow-list; empty means no keys."""
    insecure: bool = False
    """Whether control sockets that other hosts can reach may be bound without keys, as behind a
    WireGuard of your own."""
