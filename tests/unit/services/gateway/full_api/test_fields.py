"""The full API honours a field or refuses it by name; none is passed over."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError, Code
from common.messages import PriorityClass
from services.gateway.api.kinds import priority_class
from services.gateway.api.routes import Route
from services.gateway.full_api.fields import HONOURED, MESSAGE_FIELDS, REFUSED, check_fields

ROUTES = list(Route)


def check(route: Route, **fields: Any) -> None:
    check_fields(route, json.dumps(fields).encode())


def refusal(route: Route, **fields: Any) -> BatonError:
    with pytest.raises(BatonError) as refused:
        check(route, **fields)
    return refused.value


@pytest.mark.parametrize("route", ROUTES)
def test_a_field_is_in_one_table_only(route: Route) -> None:
    assert not HONOURED[route] & set(REFUSED[route])


@pytest.mark.parametrize("route", ROUTES)
def test_honoured_fields_pass_with_any_value(route: Route) -> None:
    check(route, **dict.fromkeys(HONOURED[route], 7))


@pytest.mark.parametrize("route", ROUTES)
def test_refused_fields_pass_only_when_they_ask_for_nothing(route: Route) -> None:
    for name, allowed in REFUSED[route].items():
        for value in (None, *allowed):
            check(route, **{name: value})
        error = refusal(route, **{name: "something else"})
        assert (error.code, error.param) == (Code.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize("route", ROUTES)
def test_an_unknown_field_is_refused_by_name(route: Route) -> None:
    error = refusal(route, mood="good")
    assert (error.code, error.param) == (Code.UNSUPPORTED_PARAMETER, "mood")


def test_fields_of_a_message() -> None:
    check(Route.CHAT, messages=[dict.fromkeys(MESSAGE_FIELDS, "x") | {"annotations": []}])
    error = refusal(Route.CHAT, messages=[{}, {"role": "user", "mood": "good"}])
    assert error.param == "messages[1].mood"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a":' * 5000, b'"x"'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BatonError) as refused:
        check_fields(Route.CHAT, body)
    assert refused.value.http.status == 400


@given(st.sampled_from(ROUTES), st.dictionaries(st.text(max_size=8), st.integers()))
def test_any_object_passes_or_is_refused(route: Route, fields: dict[str, int]) -> None:
    with contextlib.suppress(BatonError):
        check(route, **fields)


def test_a_lower_priority_number_is_served_earlier() -> None:
    classes = [priority_class(priority) for priority in (-5, 0, 5)]
    assert classes == [PriorityClass.INTERACTIVE, None, PriorityClass.BATCH]
