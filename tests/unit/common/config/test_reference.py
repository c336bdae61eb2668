"""The configuration reference: complete, and equal to the page in the documents."""

from pathlib import Path

import msgspec

from common.config import Config, Section
from common.config.reference import key_sentences, reference

PAGE = Path(__file__).parents[4] / "docs" / "configuration.md"


def sections(parent: type[Section]) -> list[type[Section]]:
    inside = [field.type for field in msgspec.structs.fields(parent)]
    found = [kind for kind in inside if isinstance(kind, type) and issubclass(kind, Section)]
    return [parent, *(section for child in found for section in sections(child))]


def test_the_page_in_the_documents_is_what_is_printed() -> None:
    assert PAGE.read_text() == reference(), "run: baton config --reference > docs/configuration.md"


def test_each_key_has_a_sentence_and_each_sentence_a_key() -> None:
    for section in sections(Config):
        keys = {
            field.name
            for field in msgspec.structs.fields(section)
            if not (isinstance(field.type, type) and issubclass(field.type, Section))
        }
        sentences = key_sentences(section)
        assert set(sentences) == keys, section.__name__
        assert all(text.endswith(".") for text in sentences.values()), section.__name__


def test_a_row_has_the_values_that_a_key_takes() -> None:
    page = reference()
    for row in (
        "| `slo_share` | number, > 0, <= 1 | `0.85` | Share of its SLO",
        '| `mode` | `"disaggregated"`, `"replicated"`, `"single"` | `"disaggregated"` |',
        "| `port` | whole number, >= 0, <= 65535 | `8000` |",
        "| `prefix_caching` | true or false | `true` |",
        "| `args` | table | none |",
        "| `standby` | table of strings | none |",
    ):
        assert f"\n{row}" in page
