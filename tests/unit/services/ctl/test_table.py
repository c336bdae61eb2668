"""Plain text for people."""

import pytest

from services.ctl.table import duration, every_column, fields, rows, size, table


def test_tables_align_numbers_right_and_text_left() -> None:
    text = table(("NAME", "N", "WHY"), [("a", 1, ""), ("longer", 100, "x")])
    assert text == "NAME      N  WHY\na         1  -\nlonger  100  x"
    assert table(("A",), []) == "A"
    assert fields([("a", 1), ("long", None)]) == "a     1\nlong  -"


def test_columns_are_keys_or_functions_of_a_row() -> None:
    render = rows({"N": "n", "AGE": "age_s", "TWICE": lambda row: 2 * row["n"]}, empty="none")
    assert render([{"n": 1, "age_s": 90}]) == "N  AGE     TWICE\n1  90.0 s      2"
    assert render([]) == "none"


def test_rows_without_declared_columns_show_all_that_they_have() -> None:
    row = {"worker": "d0", "wait_ms": 1500, "kv_bytes": 1536, "bytes_per_s": 1 << 20, "kinds": []}
    more = {"tokens_per_s": 7.5, "peers": ["a", "b"], "left_s": None, "on": True, "by": {"x": 1}}
    titles, shown = every_column([row | more]).splitlines()
    assert titles.split("  ")[:2] == ["WORKER", "WAIT"]
    words = ("d0", "1.5 s", "1.5 KiB", "1.0 MiB/s", "-", "7.5", "a, b", "-", "True", '{"x": 1}')
    assert [word.strip() for word in shown.split("  ") if word.strip()] == list(words)
    assert every_column([]) == "none"
    for result in ({"other": "shape"}, [1], "text"):
        with pytest.raises(TypeError):
            every_column(result)


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
