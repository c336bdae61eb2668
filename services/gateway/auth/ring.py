"""From the headers of a request to its caller, or a 401. Sans-IO.

The id of a presented key finds at most one record, whose digest is compared in constant time; an
unknown id is compared with a digest of nothing, so that timing does not tell ids apart. The answer
never says which part was wrong.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence

from common.errors import BatonError, Code
from common.keys import PRIORITIES, KeyFile, digest
from services.gateway.auth.caller import Caller

KEY = re.compile(r"bk_([0-9a-f]{12})_([0-9a-f]{64})")
NOBODY = "0" * 64


class KeyRing:
    """The keys of one reading of the file."""

    def __init__(self, keys: KeyFile) -> None:
        self._digests = {record.id: record.sha256 for record in keys.keys}
        self._callers = {
            record.id: Caller(
                key_id=record.id,
                tenant=record.tenant,
                limits=record.limits,
                priority=PRIORITIES[record.priority],
                cache_salt=f"tenant:{record.tenant}",
            )
            for record in keys.keys
        }

    def __len__(self) -> int:
        return len(self._callers)

    def caller(self, authorization: Sequence[str], api_key: Sequence[str]) -> Caller:
        """The values of all `Authorization` and `x-api-key` headers. Raises
        BatonError(INVALID_API_KEY)."""
        match = KEY.fullmatch(_presented(authorization, api_key))
        key_id, secret = match.groups() if match else ("", "")
        same = hmac.compare_digest(digest(secret), self._digests.get(key_id, NOBODY))
        if not same:
            raise BatonError(Code.INVALID_API_KEY, "the API key is not valid")
        return self._callers[key_id]


def _presented(authorization: Sequence[str], api_key: Sequence[str]) -> str:
    if len(authorization) + len(api_key) > 1:
        sentence = "send one API key, in one Authorization or x-api-key header"
        raise BatonError(Code.INVALID_API_KEY, sentence)
    if api_key:
        return api_key[0].strip()
    if not authorization:
        sentence = "an API key is needed: send the header `Authorization: Bearer bk_...`"
        raise BatonError(Code.INVALID_API_KEY, sentence)
    scheme, _, key = authorization[0].strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
