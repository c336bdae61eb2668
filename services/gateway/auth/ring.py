"""From the headers of a request to its caller, or a 401. Sans-IO; see
`common.security.api_key_check`."""

from __future__ import annotations

from collections.abc import Sequence

from common.security.api_key_check import KeyCheck
from common.security.api_keys import PRIORITIES, KeyFile
from services.gateway.auth.caller import Caller


class KeyRing:
    """The keys of one reading of the key file."""

    def __init__(self, keys: KeyFile) -> None:
        self._check = KeyCheck(keys)
        self._callers = {
            record.id: Caller(
                key_id=record.id,
                tenant=record.tenant,
                limits=record.limits,
                priority=PRIORITIES[record.priority],
                cache_salt=f"tenant:{record.tenant}",
                models=frozenset(record.models) or None,
            )
            for record in keys.keys
        }

    def caller(self, authorization: Sequence[str], api_key: Sequence[str]) -> Caller:
        """Takes the values of all `Authorization` and `x-api-key` headers. Raises
        BatonError(INVALID_API_KEY)."""
        return self._callers[self._check.identify(authorization, api_key)]

    def holder(self, key_id: str) -> Caller | None:
        """Of the key with this public id; None: there is none any more."""
        return self._callers.get(key_id)
