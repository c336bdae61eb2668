"""Name and incarnation, as one string and back."""

from common.identity import identity_of, name_of, split_identity


def test_an_identity_gives_back_what_it_was_made_of() -> None:
    assert split_identity(identity_of("d0", "a1")) == ("d0", "a1")
    assert name_of(identity_of("d0", "a1")) == "d0"


def test_a_separator_in_a_name_does_not_move_into_the_incarnation() -> None:
    assert split_identity(identity_of("a|b", "1")) == ("a|b", "1")


def test_what_is_no_identity_has_no_name() -> None:
    assert split_identity("stranger") == ("", "stranger")
    assert name_of("stranger") == ""
