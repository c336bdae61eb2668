"""Checks the API key that a client presents. Sans-IO.

The id of a presented key finds at most one record, whose digest is compared in constant time. An
unknown id is compared with a constant that no secret hashes to, so that timing does not reveal
which ids exist. The answer does not tell which part was wrong.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Sequence

from common.errors import BatonError, Code
from common.security.api_keys import KeyFile, digest

KEY = re.compile(r"bk_([0-9a-f]{12})_([0-9a-f]{64})")
NOBODY = "0" * 64


class KeyCheck:
    """The keys of one reading of the file. With `basic`, a key may also be the password of HTTP
    Basic authentication, for people with a browser."""

    def __init__(self, keys: KeyFile, *, basic: bool = False) -> None:
        self._digests = {record.id: record.sha256 for record in keys.keys}
        self._basic = basic

    def identify(self, authorization: Sequence[str], api_key: Sequence[str]) -> str:
        """Returns the id of the key in these values of all `Authorization` and `x-api-key` headers.
        Raises BatonError(INVALID_API_KEY)."""
        match = KEY.fullmatch(self._presented(authorization, api_key))
        key_id, secret = match.groups() if match else ("", "")
        if not hmac.compare_digest(digest(secret), self._digests.get(key_id, NOBODY)):
            raise BatonError(Code.INVALID_API_KEY, "the API key is not valid")
        return key_id

    def _presented(self, authorization: Sequence[str], api_key: Sequence[str]) -> str:
        if len(authorization) + len(api_key) > 1:
            sentence = "send one API key, in one Authorization or x-api-key header"
            raise BatonError(Code.INVALID_API_KEY, sentence)
        if api_key:
            return api_key[0].strip()
        if not authorization:
            sentence = "an API key is needed: send the header `Authorization: Bearer bk_...`"
            raise BatonError(Code.INVALID_API_KEY, sentence)
        scheme, _, key = authorization[0].strip().partition(" ")
        if self._basic and scheme.lower() == "basic":
            return _password(key)
        return key.strip() if scheme.lower() == "bearer" else ""


def _password(credentials: str) -> str:
    """The password in `base64(user:password)`; empty if it cannot be decoded."""
    try:
        decoded = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
    return decoded.partition(":")[2]
