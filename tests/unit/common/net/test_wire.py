"""Frames: what is accepted, what is refused, and that nothing else can happen."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import messages
from common.errors import WireError
from common.kv import messages as kv_messages
from common.messages import (
    WIRE_VERSION,
    DecodeToGateway,
    Delta,
    Hello,
    RequestBody,
    Role,
    RouterToWorker,
    Sampling,
    Submit,
    Tokens,
    ToRouter,
)
from common.net import wire

HELLO = Hello(wire_version=WIRE_VERSION, role=Role.DECODE, name="d0", incarnation="a1")


def test_message_survives_the_wire() -> None:
    decoder: wire.Decoder[ToRouter] = wire.Decoder(ToRouter)
    submit = Submit(request_id="r", attempt=2, prompt_tokens=7, max_tokens=5, deadline_ms=1.5)
    assert decoder.decode(wire.encode(submit)) == submit
    assert decoder.decode(wire.encode(HELLO)) == HELLO


def test_deltas_survive_the_wire() -> None:
    decoder: wire.Decoder[DecodeToGateway] = wire.Decoder(DecodeToGateway)
    tokens = Tokens(deltas=[Delta("a", 1, 0, [1, 2]), Delta("b", 1, 9, [], "stop", 3)])
    assert decoder.decode(wire.encode(tokens)) == tokens


def test_message_of_another_receiver_is_refused() -> None:
    decoder: wire.Decoder[RouterToWorker] = wire.Decoder(RouterToWorker)
    with pytest.raises(WireError):
        decoder.decode(
            wire.encode(Submit(request_id="r", attempt=1, prompt_tokens=1, max_tokens=1))
        )


@given(st.binary(max_size=300))
def test_any_bytes_give_a_message_or_a_wire_error(frame: bytes) -> None:
    decoder: wire.Decoder[ToRouter] = wire.Decoder(ToRouter)
    for decode in (decoder.decode, wire.decode_body):
        try:
            decode(frame)
        except WireError:
            continue


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_frame_gives_a_message_or_a_wire_error(position: int, value: int) -> None:
    decoder: wire.Decoder[ToRouter] = wire.Decoder(ToRouter)
    frame = bytearray(wire.encode(HELLO))
    frame[position % len(frame)] = value
    try:
        decoder.decode(bytes(frame))
    except WireError:
        return


def test_unknown_fields_of_a_newer_peer_are_accepted() -> None:
    decoder: wire.Decoder[ToRouter] = wire.Decoder(ToRouter)
    raw = msgspec.msgpack.decode(wire.encode(HELLO))
    raw["from_the_future"] = 1
    assert decoder.decode(msgspec.msgpack.encode(raw)) == HELLO


def test_frames_over_the_limit_are_refused_both_ways() -> None:
    with pytest.raises(WireError, match="exceeds the frame limit"):
        wire.encode(msgspec.structs.replace(HELLO, name="x" * wire.FRAME_BYTES_MAX))
    body = RequestBody(prompt_ids=bytes(wire.FRAME_BYTES_MAX), sampling=Sampling(max_tokens=1))
    assert wire.decode_body(wire.encode(body)) == body
    with pytest.raises(WireError, match="exceeds the frame limit"):
        wire.encode(msgspec.structs.replace(body, prompt_ids=bytes(wire.BODY_BYTES_MAX)))
    with pytest.raises(WireError, match="exceeds the limit"):
        wire.decode_body(bytes(wire.BODY_BYTES_MAX + 1))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_round_trip(ids: list[int]) -> None:
    assert wire.unpack_ids(wire.pack_ids(ids)) == ids
    assert len(wire.pack_ids(ids)) == 4 * len(ids)


def test_a_torn_id_list_is_refused() -> None:
    with pytest.raises(WireError, match="whole number"):
        wire.decode_body(
            msgspec.msgpack.encode(RequestBody(prompt_ids=b"abc", sampling=Sampling(max_tokens=1)))
        )


def test_hello_of_another_wire_version_names_both() -> None:
    hello = msgspec.structs.replace(HELLO, wire_version=WIRE_VERSION + 1)
    with pytest.raises(WireError, match=rf"version {WIRE_VERSION + 1}.*{WIRE_VERSION}"):
        wire.check_hello(hello)
    wire.check_hello(HELLO)


OLD_TAGS = {"RequestSummary": "Journey"}
"""Classes that were renamed since version 1; the wire keeps their names."""


def test_every_message_is_frozen_and_tagged() -> None:
    kinds = [
        kind
        for kind in (vars(messages) | vars(kv_messages)).values()
        if isinstance(kind, type)
        and issubclass(kind, messages.Message)
        and kind is not messages.Message
    ]
    assert len(kinds) > 20
    for kind in kinds:
        assert kind.__struct_config__.frozen, kind
        assert kind.__struct_config__.tag == OLD_TAGS.get(kind.__name__, kind.__name__), kind
        assert kind.__doc__, kind
