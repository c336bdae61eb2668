"""The code and an implementation of docs/kv-checksum.md that shares nothing with it agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.kv.checksum import kernel
from common.kv.checksum.header import (
    HEADER_BYTES,
    NOT_YET,
    Encoding,
    ExpectedMessage,
    Verdict,
    write_header,
)
from common.kv.checksum.kernel import sum_of
from tests.unit.common.kv.checksum import reference
from tests.unit.common.kv.headers import verdict_of

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("vectors.json").read_text())


def test_the_vectors_are_what_the_reference_computes() -> None:
    assert reference.vectors() == VECTORS


@pytest.mark.parametrize("loops", ["compiled", "portable"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["payload"]))
def test_the_code_makes_the_sums_and_the_header_of_each_vector(
    vector: dict[str, Any], loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel.compiled() if loops == "compiled" else kernel.PORTABLE
    monkeypatch.setattr(kernel, "kernel", lambda: made)
    payload, fields = reference.payload(vector["payload"]), vector["message"]
    sums = sum_of(np.frombuffer(payload, np.uint8))
    assert sums.hex() == vector["sums"]
    what = ExpectedMessage(
        transfer=fields["transfer"],
        index=fields["index"],
        first_block=12,
        blocks=2,
        first_layer=4,
        layers=4,
        payload_bytes=len(payload),
        encoding=Encoding(fields.get("encoding", 0)),
    )
    message = np.frombuffer(bytes(HEADER_BYTES) + payload, np.uint8).copy()
    write_header(message, what, sums, fields.get("early_bytes", NOT_YET))
    assert message[:HEADER_BYTES].tobytes().hex() == vector["header"]
    assert verdict_of(message, what) is Verdict.OK
    key = reference.TRANSFER_KEY
    write_header(message, what, sums, fields.get("early_bytes", NOT_YET), key=key)
    assert message[:HEADER_BYTES].tobytes().hex() == vector["keyed_header"]
    assert verdict_of(message, what, key=key) is Verdict.OK
