"""The load finds an answer that is not as it must be."""

import pytest

from tests.rigs.load import Answer, Ask, Load

PROMPT = list(b"abcdefghij")
TOKENS = 8


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, ""),
        ({"text": lambda text: text + "x"}, "duplicate tokens"),
        ({"text": lambda text: text[:-1]}, "missing tokens"),
        ({"text": lambda text: text[:-1] + chr(ord(text[-1]) ^ 1)}, "other tokens"),
        ({"usage": lambda _: (len(PROMPT), TOKENS - 1)}, "wrong usage"),
        ({"finish": lambda _: "stop"}, "failed"),
        ({"done": lambda _: False}, "failed"),
        ({"error": lambda _: "500: it broke"}, "failed"),
    ],
)
def test_what_is_wrong_with_an_answer_is_named(change: dict[str, object], kind: str) -> None:
    load = Load("http://nowhere", rate=1.0, ask=Ask(max_tokens=TOKENS))
    answer = Answer(0, PROMPT, 0.0, status=200, text=load._text(PROMPT), finish="length")
    answer.usage, answer.done = (len(PROMPT), TOKENS), True
    for name, changed in change.items():
        assert callable(changed)
        setattr(answer, name, changed(getattr(answer, name)))
    found, fault = load._judge(answer)
    assert (found, bool(fault)) == (kind, bool(kind))
