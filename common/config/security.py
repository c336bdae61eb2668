"""Keys of the TCP control sockets, and the rule that none is open to others without them."""

from __future__ import annotations

from common.config.base import Section


class SecurityConfig(Section, frozen=True):
    """`keys_dir`: folder of this host's CURVE keys (`baton keygen`), the same path on every host;
    with it every TCP control socket is encrypted and asks for a key of the allow-list. `insecure`:
    bind control sockets that other hosts can reach without, as behind a WireGuard of your own."""

    keys_dir: str = ""
    insecure: bool = False
