"""The command line of `baton ctl`: what words mean, and what mistakes are answered with."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from services.ctl.parser import parse
from services.ctl.registry import VERBS


@pytest.mark.parametrize(
    ("verb", "rest", "args"),
    [
        ("status", "", {}),
        ("explain", "abc", {"id": "abc"}),
        ("explain", "id=abc", {"id": "abc"}),
        ("explain", "--slow by=ttft", {"list": "slow", "by": "ttft"}),
        ("explain", "a=b=", {"a": "b="}),
        ("explain", "req-1=2", {"id": "req-1=2"}),
        ("requests", "queued limit=5", {"state": "queued", "limit": 5}),
        ("requests", "--limit 5 queued", {"state": "queued", "limit": 5}),
        ("requests", "limit=few", {"limit": "few"}),
        ("requests", "--queue limit=5", {"limit": 5, "queue": True}),
        ("requests", "queue=true", {"queue": True}),
        ("workers", "role=decode", {"role": "decode"}),
        ("limits", "queue_bytes_max=99999999999", {"queue_bytes_max": 99999999999}),
        ("limits", "key=123456789012", {"key": "123456789012"}),
        ("drain", "worker=d0 force=true", {"worker": "d0", "force": True}),
        ("role", "d0 prefill", {"worker": "d0", "role": "prefill"}),
        ("role", "role=prefill worker=d0", {"worker": "d0", "role": "prefill"}),
        ("role", "d0 role=prefill", {"worker": "d0", "role": "prefill"}),
        ("events", "after=-1 --follow", {"after": -1}),
        ("ready", "d0 a=b", {"workers": ["d0", "a=b"]}),
        ("newer_verb", "n=1", {"n": 1}),
    ],
)
def test_words_become_a_question(verb: str, rest: str, args: dict[str, Any]) -> None:
    command = parse([verb, *rest.split()])
    assert (command.verb.name, command.args) == (verb, args)


def test_flags_may_stand_anywhere() -> None:
    line = "--json --slow explain --timeout=2.5 by=ttft --run-dir /x --every .5"
    command = parse(line.split())
    assert (command.verb.name, command.args) == ("explain", {"list": "slow", "by": "ttft"})
    assert (command.json, command.timeout, command.every) == (True, 2.5, 0.5)
    assert (command.run_dir, command.watch, command.follow) == (Path("/x"), False, False)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "name a verb, for example: baton ctl status"),
        ("--bogus status", "unrecognized arguments: --bogus"),
        ("status --timeout", "--timeout: expected one argument"),
        ("status --timeout soon", "'soon' is no time in seconds"),
        ("status --timeout nan", "'nan' is no time in seconds"),
        ("status --timeout -1", "'-1' is no time in seconds, up to 3600"),
        ("status --every=0", "--every: '0' is no time in seconds"),
        ("status what", "baton ctl status: unrecognized arguments: what"),
        ("explain a b", "unrecognized arguments: b; see `baton ctl explain --help`"),
        ("status --config a --run-dir b", "give --run-dir or --config, not both"),
        ("status --follow", "unrecognized arguments: --follow"),
        ("events --follow --watch", "leave --watch out"),
        ("ready d0 --watch", "ready is asked once"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_fix(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(line.split())
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert says in error
    assert error.count("\n") == 1


def test_help_lists_the_verbs_and_each_verb_teaches_by_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verb in ("", *VERBS):
        with pytest.raises(SystemExit) as exit_:
            parse([*verb.split(), "--help"])
        out = capsys.readouterr().out
        assert exit_.value.code == 0
        if not verb:
            assert "exit status" in out
            assert all(f"\n    {name} " in out for name in VERBS)
            continue
        assert "--watch" in out
        assert VERBS[verb].examples
        for example in VERBS[verb].examples:
            assert f"  baton ctl {example}\n" in out
            words = shlex.split(example.partition(" && ")[0], comments=True)
            assert parse(words).verb.name == verb
