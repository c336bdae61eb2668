"""Completion as a real bash does it, from words that the real help texts hold."""

import pytest

from services.cli import main as baton
from services.completion import main, words_by_prefix
from services.ctl.registry import VERBS

COMMANDS = ("ctl", "up", "keys", "install-systemd")


def test_every_verb_of_ctl_and_its_flags_are_completed() -> None:
    words = words_by_prefix(baton, ["ctl"])
    assert set(VERBS) <= set(words["ctl "])
    for verb in VERBS.values():
        flags = {name for name, _ in verb.arguments if name.startswith("-")}
        assert flags <= set(words[f"ctl {verb.name} "])


def test_zsh_is_told_to_read_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zsh"], baton, COMMANDS) == 0
    out = capsys.readouterr().out
    assert out.startswith("autoload -U +X bashcompinit && bashcompinit\n")
    assert "complete -o default -F _baton baton\n" in out


def test_another_shell_is_refused_with_how_to_ask(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["fish"], baton, COMMANDS)
    assert exit_.value.code == 2
    assert "{bash,zsh}" in capsys.readouterr().err
