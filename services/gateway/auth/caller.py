"""Who asks: what a key says about its holder, as far as a request needs it."""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import KeyLimits, PriorityClass


@dataclass(frozen=True, slots=True)
class Caller:
    """`priority`: the best class this caller may have. `cache_salt`: parts its cached prompts from
    other tenants', None = shared by all anonymous callers."""

    key_id: str = ""
    tenant: str = ""
    limits: KeyLimits | None = None
    priority: PriorityClass = PriorityClass.STANDARD
    cache_salt: str | None = None

    def bounded(self, wanted: PriorityClass | None) -> PriorityClass:
        """The class a request gets; a lower number is served first."""
        return self.priority if wanted is None else max(wanted, self.priority)


ANONYMOUS = Caller()
