"""The full API honours a field, refuses it by name, or ignores it by name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError, Code
from common.messages import PriorityClass
from services.gateway.api.fields import MESSAGE_FIELDS, UNSUPPORTED
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.kinds import Kind, priority_class
from services.gateway.api.request_bodies import ChatRequest, CompletionRequest
from services.gateway.api.routes import ROUTE_OF, Route
from services.gateway.full_api.fields import HONOURED, REFUSED, check_fields, session_of

ROUTES = list(Route)


def check(route: Route, **fields: Any) -> IgnoredFields:
    ignored = IgnoredFields()
    check_fields(route, json.dumps(fields).encode(), ignored)
    return ignored


def session(route: Route, **fields: Any) -> str:
    return session_of(route, check_fields(route, json.dumps(fields).encode(), IgnoredFields()))


def refusal(route: Route, **fields: Any) -> BatonError:
    with pytest.raises(BatonError) as refused:
        check(route, **fields)
    return refused.value


@pytest.mark.parametrize("route", ROUTES)
def test_a_field_is_in_one_table_only(route: Route) -> None:
    assert not HONOURED[route] & set(REFUSED[route])


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("background", "without background"), ("previous_response_id", "as input")],
)
def test_what_needs_stored_responses_is_refused_with_the_way_out(name: str, way_out: str) -> None:
    error = refusal(Route.RESPONSES, **{name: "something"})
    assert "[gateway.jobs] path" in error.message
    assert way_out in error.message


@pytest.mark.parametrize("route", ROUTES)
def test_honoured_fields_pass_with_any_value(route: Route) -> None:
    assert check(route, **dict.fromkeys(HONOURED[route], 7)).header == ""


@pytest.mark.parametrize("route", ROUTES)
def test_refused_fields_pass_only_when_they_ask_for_nothing(route: Route) -> None:
    for name, allowed in REFUSED[route].items():
        for value in (None, *allowed):
            check(route, **{name: value})
        error = refusal(route, **{name: "something else"})
        assert (error.code, error.param) == (Code.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize("route", ROUTES)
def test_an_unknown_field_is_ignored_by_name_or_refused(route: Route) -> None:
    assert check(route, mood="good", store=True).header == "mood, store"
    with pytest.raises(BatonError) as refused:
        check_fields(route, b'{"mood": 1}', IgnoredFields(refuses=True))
    error = refused.value
    assert (error.code, error.param) == (Code.UNSUPPORTED_PARAMETER, "mood")


def test_fields_of_a_message() -> None:
    known = dict.fromkeys(MESSAGE_FIELDS, "x")
    ignored = check(Route.CHAT, messages=[known, {"role": "user", "mood": "good"}, 7])
    assert ignored.header == "messages[].mood"


def test_no_field_is_forgotten_where_a_request_goes_from_one_path_to_the_other() -> None:
    """What only the full API honours must lead there."""
    for kind, type_ in ((Kind.CHAT, ChatRequest), (Kind.COMPLETION, CompletionRequest)):
        known = set(type_.__struct_fields__) | set(UNSUPPORTED[kind])
        assert HONOURED[ROUTE_OF[kind]] <= known


def test_hints_of_the_session() -> None:
    assert session(Route.CHAT) == ""
    assert session(Route.CHAT, prompt_cache_key="k", session_id="s") == "s"
    assert session(Route.RESPONSES, prompt_cache_key="k") == "k"
    assert session(Route.MESSAGES, metadata={"user_id": "user_1_session_2"}) == "user_1_session_2"
    assert len(session(Route.RESPONSES, prompt_cache_key="two words")) == 32
    nothings: list[object] = [None, "", 7, {}]
    for nothing in nothings:
        assert session(Route.RESPONSES, prompt_cache_key=nothing, metadata=nothing) == ""


def test_a_marked_system_prompt_is_a_hint_that_all_who_share_it_give() -> None:
    marked = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    first = session(Route.MESSAGES, system=[marked], messages=[1])
    assert first
    assert first == session(Route.MESSAGES, system=[marked], messages=[2])
    assert first != session(Route.MESSAGES, system=[marked | {"text": "other"}])
    assert session(Route.MESSAGES, system="cache_control") == ""


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a":' * 5000, b'"x"'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BatonError) as refused:
        check_fields(Route.CHAT, body, IgnoredFields())
    assert refused.value.http.status == 400


@given(st.sampled_from(ROUTES), st.dictionaries(st.text(max_size=8), st.integers()))
def test_any_object_passes_or_is_refused(route: Route, fields: dict[str, int]) -> None:
    with contextlib.suppress(BatonError):
        check(route, **fields)


def test_a_lower_priority_number_is_served_earlier() -> None:
    classes = [priority_class(priority) for priority in (-5, 0, 5)]
    assert classes == [PriorityClass.INTERACTIVE, None, PriorityClass.BATCH]
