"""Workers of different fingerprints: the parts that differ are named."""

import pytest

from services.router.placement.fingerprint_mismatch import difference, explain_mismatch
from services.router.placement.types import WorkerView

PARTS = {"block_tokens": "128", "kv_dtype": "auto", "tensor_parallel": "1", "weights": "aa"}


def view(name: str, parts: dict[str, str]) -> WorkerView:
    return WorkerView(
        name=name,
        identity=f"{name}|1",
        incarnation="1",
        fingerprint=name,
        kv_address="",
        block_tokens=16,
        max_model_len=64,
        kv_tokens=0,
        kv_tokens_max=1,
        requests=0,
        requests_max=1,
        fingerprint_parts=parts,
    )


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (PARTS, ""),
        ({**PARTS, "block_tokens": "64"}, "block_tokens 128 ≠ 64"),
        (
            {**PARTS, "kv_dtype": "fp8", "tensor_parallel": "2"},
            "kv_dtype auto ≠ fp8, tensor_parallel 1 ≠ 2",
        ),
        (
            {},
            (
                "block_tokens 128 ≠ unsaid, kv_dtype auto ≠ unsaid, "
                "tensor_parallel 1 ≠ unsaid and 1 more"
            ),
        ),
    ],
)
def test_the_parts_that_differ_are_named(theirs: dict[str, str], told: str) -> None:
    assert difference(PARTS, theirs) == told


def test_each_prefill_worker_is_told_with_its_difference() -> None:
    decode = view("d0", PARTS)
    prefills = [view("p0", {**PARTS, "block_tokens": "64"}), view("p1", {**PARTS, "weights": "bb"})]
    assert explain_mismatch(decode, prefills) == (
        "no ready prefill worker has the fingerprint of d0 "
        "(p0: block_tokens 128 ≠ 64; p1: weights aa ≠ bb)"
    )


def test_workers_that_tell_no_parts_are_told_apart_by_name_only() -> None:
    told = explain_mismatch(view("d0", {}), [view("p0", {})])
    assert told == "no ready prefill worker has the fingerprint of d0"
