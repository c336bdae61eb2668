"""The predicted TTFT, by tables: each term, and decode judged at the time prefill is ready."""

from typing import Any

import pytest

from services.router.admission.predict import LoadSnapshot, Pool, predict
from services.router.queue.fair_class import QueueAhead

ROOMY = Pool(slots=64, slots_free=64, kv=100_000, kv_free=100_000)


def snapshot(**change: Any) -> LoadSnapshot:
    base = LoadSnapshot(
        workers=2,
        computing=0,
        ahead=QueueAhead(),
        seconds_per_token=0.0001,
        own_seconds=0.1,
        own_kv=1100,
        ahead_kv=0.0,
        transfer_seconds=0.02,
        decode=ROOMY,
        decode_residence_s=4.0,
    )
    made = base._replace(**change)
    return made._replace(ahead_kv=made.ahead.total_tokens)


def test_an_idle_fleet_computes_and_hands_over() -> None:
    assert predict(snapshot()).ttft == pytest.approx(0.12)


@pytest.mark.parametrize(
    ("change", "wait"),
    [
        ({"computing": 20_000}, 1.0),
        ({"computing": 20_000, "workers": 4}, 0.5),
        ({"ahead": QueueAhead(5, 10_000, 12_000)}, 0.5),
        ({"computing": 20_000, "ahead": QueueAhead(5, 10_000, 12_000)}, 1.5),
    ],
)
def test_the_wait_for_prefill(change: dict[str, Any], wait: float) -> None:
    predicted = predict(snapshot(**change))
    assert predicted.wait == pytest.approx(wait)
    assert predicted.ttft == pytest.approx(wait + 0.12)


@pytest.mark.parametrize(
    ("pool", "ahead", "wait"),
    [
        (Pool(64, 0, 100_000, 50_000), QueueAhead(), 4.0 / 64),
        (Pool(64, 0, 100_000, 50_000), QueueAhead(31, 0, 0), 2.0),
        (Pool(64, 10, 100_000, 50_000), QueueAhead(9, 0, 0), 0.0),
        (Pool(64, 64, 100_000, 1_000), QueueAhead(), 4.0 * 100 / 99_000),
        (Pool(64, 64, 100_000, 0), QueueAhead(10, 0, 48_900), 2.0),
    ],
)
def test_the_wait_for_decode_is_the_longer_of_slots_and_kv(
    pool: Pool, ahead: QueueAhead, wait: float
) -> None:
    assert predict(snapshot(decode=pool, ahead=ahead)).wait == pytest.approx(wait)


def test_decode_is_judged_at_the_time_at_which_prefill_is_ready() -> None:
    """The waits run side by side: a decode pool that is free by then costs nothing."""
    full = Pool(64, 0, 100_000, 50_000)
    both = predict(snapshot(computing=20_000, decode=full, ahead=QueueAhead(15, 0, 0)))
    assert both.decode_wait == pytest.approx(1.0)
    assert both.wait == pytest.approx(1.0)
    later = predict(snapshot(computing=20_000, decode=full, ahead=QueueAhead(31, 0, 0)))
    assert later.wait == pytest.approx(2.0)


def test_the_sentence_names_every_term() -> None:
    sentence = predict(snapshot(computing=20_000)).sentence()
    assert "in 1120 ms: 1000 until a prefill worker is free, 0 until a decode worker is" in sentence
    assert "100 to compute the prompt, 20 to hand it over" in sentence
