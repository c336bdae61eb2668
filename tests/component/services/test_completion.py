"""Completion as a real bash does it, from words that the real help texts hold: the tests that start
something."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from services.cli import main as baton
from services.completion import main
from tests.unit.services.test_completion import COMMANDS


def completed(script: str, line: str) -> set[str]:
    """What bash offers for the last word of this line, which may be empty."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    tab = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _baton"
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
    assert completed(script, "baton ") == set(COMMANDS)
    assert completed(script, "baton in") == {"install-systemd"}
    assert completed(script, "baton ctl re") == {"ready", "requests", "resume", "reload"}
    assert completed(script, "baton ctl --json explai") == {"explain"}
    assert completed(script, "baton ctl status --w") == {"--watch"}
    assert completed(script, "baton ctl explain abc --s") == {"--slow"}
    assert completed(script, "baton up --gate") == {"--gateways"}
    assert completed(script, "baton keys re") == {"revoke"}
    assert completed(script, "baton keys add --ten") == {"--tenant"}
    assert completed(script, "baton ctl --config ") == set(), "files are bash's to complete"
