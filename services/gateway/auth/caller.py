"""The caller of a request: what a key says of its holder, as far as a request needs it."""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import KeyLimits, PriorityClass


@dataclass(frozen=True, slots=True)
class Caller:
    #: Public id of the key; empty for an anonymous caller.
    key_id: str = ""
    #: Keys of one tenant share its fair share of the fleet.
    tenant: str = ""
    #: None: the key has no limits of its own.
    limits: KeyLimits | None = None
    #: The best class that this caller's requests may have.
    priority: PriorityClass = PriorityClass.STANDARD
    #: Keeps its cached prompts apart from other tenants'; None: shared by anonymous callers.
    cache_salt: str | None = None
    #: Names of the models that it may ask for; None: all.
    models: frozenset[str] | None = None

    def bounded(self, wanted: PriorityClass | None) -> PriorityClass:
        """The class that a request gets; the one with the lower number is served first."""
        return self.priority if wanted is None else max(wanted, self.priority)

    def salted(self, wanted: str) -> str | None:
        """The salt of a request whose client gave one of its own, or none (empty). No client can
        name another tenant's."""
        if not wanted:
            return self.cache_salt
        return f"{self.cache_salt or 'anonymous'}/{wanted}"


ANONYMOUS = Caller()
