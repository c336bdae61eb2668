"""Prompts that killed workers, as a person reads them."""

from __future__ import annotations

from services.ctl.verbs.quarantine import render


def test_a_prompt_in_quarantine_is_shown_with_who_died_and_how_long() -> None:
    prompt = {
        "digest": "6262",
        "request_id": "r1",
        "workers": ["d0", "d1"],
        "left_s": 42.0,
        "refused": 3,
    }
    text = render({"cleared": 0, "pairs": [], "prompts": [prompt]})
    first, *_, row = text.splitlines()
    assert first == "no pair had trouble"
    for said in ("6262", "d0, d1", "42", "3", "r1"):
        assert said in row


def test_without_any_nothing_is_said_of_prompts() -> None:
    assert render({"cleared": 0, "pairs": [], "prompts": []}) == "no pair had trouble"
