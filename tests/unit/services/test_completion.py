"""Completion as a real bash does it, from words that the real help texts hold."""

import shutil
import subprocess

import pytest

from services.cli import main as baton
from services.completion import help_of, main, words_of
from services.ctl.renderers import VERBS

COMMANDS = ("ctl", "up", "keys", "install-systemd")


def completed(script: str, *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    tab = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _baton"
    ask = f"{tab}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_verbs_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bash"], baton, COMMANDS) == 0
    script = capsys.readouterr().out
    assert completed(script, "baton", "") == set(COMMANDS)
    assert completed(script, "baton", "in") == {"install-systemd"}
    assert completed(script, "baton", "ctl", "re") == {"ready", "requests", "resume", "reload"}
    assert completed(script, "baton", "ctl", "status", "--w") == {"--watch"}
    assert completed(script, "baton", "up", "--gate") == {"--gateways"}
    assert completed(script, "baton", "keys", "re") == {"revoke"}
    assert completed(script, "baton", "ctl", "--config", "") == set(), (
        "files are bash's to complete"
    )


def test_every_verb_and_flag_of_ctl_is_in_its_help() -> None:
    assert set(VERBS) <= set(words_of(help_of(baton, "ctl")))


def test_zsh_is_told_to_read_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zsh"], baton, COMMANDS) == 0
    out = capsys.readouterr().out
    assert out.startswith("autoload -U +X bashcompinit && bashcompinit\n")
    assert "complete -o default -F _baton baton\n" in out


def test_another_shell_is_refused_with_how_to_ask(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fish"], baton, COMMANDS) == 2
    assert "usage: baton completion bash|zsh" in capsys.readouterr().err
    assert main(["--help"], baton, COMMANDS) == 0
