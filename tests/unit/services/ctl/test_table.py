"""Plain text for people."""

import pytest

from services.ctl.table import duration, duration_of, fields, rows, size, table


def test_tables_align_numbers_right_and_text_left() -> None:
    text = table(("NAME", "N", "WHY"), [("a", 1, ""), ("longer", 100, "x")])
    assert text == "NAME      N  WHY\na         1  -\nlonger  100  x"
    assert table(("A",), []) == "A"
    assert fields([("a", 1), ("long", None)]) == "a     1\nlong  -"


def test_columns_are_keys_or_functions_of_a_row() -> None:
    render = rows({"N": "n", "AGE": duration_of("age_s"), "MS": duration_of("ms")}, empty="none")
    assert render([{"n": 1, "age_s": 90, "ms": None}]) == "N  AGE     MS\n1  90.0 s  -"
    assert render([]) == "none"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(5, "5 ms"), (1500, "1.5 s"), (180_000, "3 min"), (8_000_000, "2.2 h")]
)
def test_durations(ms: float, text: str) -> None:
    assert duration(ms) == text
