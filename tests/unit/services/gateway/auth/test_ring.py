"""From headers to a caller."""

from __future__ import annotations

import pytest

from common.errors import BatonError, Code
from common.messages import PriorityClass
from common.security.api_keys import KeyFile, KeyRecord, new_key
from services.gateway.auth.ring import KeyRing

KEY, KEY_ID, SHA256 = new_key()
OTHER, _, _ = new_key()
RING = KeyRing(
    KeyFile(
        keys=[
            KeyRecord(id=KEY_ID, sha256=SHA256, tenant="shop", priority="batch", requests_per_min=5)
        ]
    )
)


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [((f"Bearer {KEY}",), ()), ((f"bearer   {KEY} ",), ()), ((), (KEY,))],
)
def test_a_key_names_its_caller(authorization: tuple[str, ...], api_key: tuple[str, ...]) -> None:
    caller = RING.caller(authorization, api_key)
    assert (caller.key_id, caller.tenant) == (KEY_ID, "shop")
    assert caller.limits is not None
    assert caller.limits.requests_per_min == 5
    assert caller.cache_salt == "tenant:shop"


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        ((), ()),
        ((KEY,), ()),
        ((f"Basic {KEY}",), ()),
        (("Bearer ",), ()),
        ((f"Bearer {OTHER}",), ()),
        ((f"Bearer {KEY[:-1]}",), ()),
        ((f"Bearer {KEY}0",), ()),
        ((f"Bearer {KEY[:-1]}\x00",), ()),
        ((f"Bearer bk_{KEY_ID}_{SHA256}",), ()),
        ((f"Bearer bk_{'0' * 12}_{KEY[-64:]}",), ()),
        ((f"Bearer {KEY.upper()}",), ()),
        (("Bearer \udcff",), ()),
        ((f"Bearer {KEY}", f"Bearer {OTHER}"), ()),
        ((f"Bearer {KEY}",), (KEY,)),
        ((), ("",)),
    ],
)
def test_anything_else_is_refused(authorization: tuple[str, ...], api_key: tuple[str, ...]) -> None:
    with pytest.raises(BatonError) as refused:
        RING.caller(authorization, api_key)
    assert refused.value.code is Code.INVALID_API_KEY
    assert KEY[-64:] not in refused.value.message


def test_a_caller_may_ask_for_less_than_its_class_but_not_more() -> None:
    caller = RING.caller((), (KEY,))
    assert caller.bounded(None) is PriorityClass.BATCH
    assert caller.bounded(PriorityClass.INTERACTIVE) is PriorityClass.BATCH
