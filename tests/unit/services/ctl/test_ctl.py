"""`baton ctl`: the command line, the exit codes, and what people are shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.admin import AdminAnswer
from common.errors import BatonError, Code
from services.ctl import main as ctl
from services.ctl.command import UsageError, parse
from services.ctl.renderers import VERBS
from services.ctl.table import pairs, size, span, table

WORKER = {
    "name": "d0",
    "role": "decode",
    "state": "ready",
    "since_s": 90.0,
    "requests": 2,
    "requests_max": 8,
    "queued_tokens": 0,
    "kv_tokens_promised": 400,
    "kv_tokens_foreign": 100,
    "kv_tokens_max": 1000,
    "kv_used": 0.25,
    "reason": "",
}
ATTEMPT = {
    "attempt": 1,
    "state": "ended",
    "outcome": "length",
    "received_ms_ago": 5000,
    "total_ms": 100.0,
    "gateway": "g0",
    "prompt_tokens": 40,
    "max_tokens": 8,
    "candidates": [{"role": "decode", "name": "d0", "score": [0.1, 2]}],
    "phases": [
        {"phase": "queue", "start_ms": 0.0, "end_ms": 25.0},
        {"phase": "decode", "start_ms": 25.0, "end_ms": None},
    ],
    "sentences": ["queued for 25.0 ms", "ended (length) with 8 tokens"],
}
TIMELINE = {
    "outcome": "ended",
    "total_ms": 100.0,
    "ttft_ms": 80.0,
    "tpot_ms": 4.25,
    "completion_tokens": 8,
    "moves": 0,
    "phases": [
        {"phase": "prefill", "attempt": 1, "worker": "p0", "start_ms": 0.0, "ms": 75.0},
        {"phase": "transfer", "attempt": 1, "worker": "p0>d0", "start_ms": 75.0, "ms": 25.0},
    ],
}
SLOW = {
    "request_id": "abc",
    "outcome": "ended",
    "code": "",
    "sentence": "",
    "ago_ms": 5000,
    "total_ms": 100.0,
    "ttft_ms": 80.0,
    "tpot_ms": 4.25,
    "prompt_tokens": 40,
    "completion_tokens": 8,
    "longest_phase": "prefill",
    "longest_worker": "p0",
    "longest_ms": 75.0,
}
LATE = {"outcome": "failed", "code": "draining", "sentence": "the router is stopping"}
STATUS = {
    "ready": False,
    "reason": "none of 1 known decode workers is ready",
    "model": "",
    "router": "r0",
    "uptime_s": 7.0,
    "prefill_ready": 1,
    "decode_ready": 0,
    "gateways": 1,
    "active": 0,
    "active_max": 0,
    "queued": 3,
    "queued_max": 1024,
    "queued_bytes": 4096,
    "drained_per_s": None,
    "policy": "least_loaded",
    "appointments": 12,
    "appointments_kept": 0.25,
    "estimates": {"prefill_tokens_per_s": {"256": 9000.0}, "stay_ms": 12.5},
    "mode": "disaggregated",
    "remote_prefill": "auto",
    "totals": {"submitted": 4},
    "refused": {"queue_full": 1},
    "dropped": {},
}
REQUEST = {
    "request_id": "abc",
    "attempt": 1,
    "state": "queued",
    "age_ms": 12.0,
    "prompt_tokens": 40,
    "max_tokens": 8,
    "prefill": "",
    "decode": "",
    "gateway": "g0",
    "waits_for": "a free decode slot",
}
POLICY = {
    "policy": "cost",
    "remote_prefill": "auto",
    "mode": "disaggregated",
    "policies": {"cost": "predicted seconds", "round_robin": "each in turn"},
}
QUEUED = {
    "request_id": "abc",
    "class": "interactive",
    "tenant": "t",
    "waited_ms": 12.0,
    "start_within_ms": 3000.0,
    "prompt_tokens": 40,
    "output_tokens": 8,
    "waits_for": "a free decode slot",
}
LIMITS = {
    "limits": {"max_queue": 1024, "ttft_slo_ms": 0.0},
    "set_here": {"k": {"weight": 4.0}},
    "keys": [{"key_id": "k", "live": 1, "requests_left": None, "cost_left": 90.5}],
}
HELP = {
    "usage": "explain id",
    "help": "a timeline",
    "args": [{"name": "id", "help": "x", "choices": []}],
}


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers instead of a router; `asked` is what it was asked."""
    (tmp_path / "admin.sock").touch()
    monkeypatch.setenv("BATON_RUN_DIR", str(tmp_path))
    state: dict[str, Any] = {"answer": AdminAnswer(ok=True, result=[])}

    async def ask(address: str, verb: str, args: dict[str, Any], seconds: float) -> AdminAnswer:
        state["asked"] = (address, verb, args, seconds)
        answer = state["answer"]
        if isinstance(answer, BatonError):
            raise answer
        assert isinstance(answer, AdminAnswer)
        return answer

    monkeypatch.setattr(ctl, "ask", ask)
    return state


@pytest.mark.parametrize(
    ("argv", "verb", "args"),
    [
        (["status"], "status", {}),
        (["explain", "abc"], "explain", {"id": "abc"}),
        (["explain", "id=abc"], "explain", {"id": "abc"}),
        (["explain", "--slow", "by=ttft"], "explain", {"list": "slow", "by": "ttft"}),
        (["explain", "a=b="], "explain", {"a": "b="}),
        (["explain", "req-1=2"], "explain", {"id": "req-1=2"}),
        (["requests", "queued", "limit=5"], "requests", {"state": "queued", "limit": 5}),
        (["workers", "decode"], "workers", {"role": "decode"}),
        (["requests", "--queue", "limit=5"], "requests", {"limit": 5, "queue": True}),
        (["limits", "queue_bytes_max=99999999999"], "limits", {"queue_bytes_max": 99999999999}),
        (["drain", "worker=d0", "force=true"], "drain", {"worker": "d0", "force": True}),
    ],
)
def test_words_become_a_question(argv: list[str], verb: str, args: dict[str, Any]) -> None:
    command = parse(argv)
    assert (command.verb, command.args) == (verb, args)


def test_flags_may_stand_anywhere() -> None:
    command = parse(["--json", "explain", "--timeout=2.5", "abc", "--run-dir", "/x"])
    assert (command.verb, command.args) == ("explain", {"id": "abc"})
    assert (command.json, command.timeout, command.run_dir) == (True, 2.5, Path("/x"))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "name a verb"),
        (["--bogus", "status"], "unknown flag --bogus"),
        (["status", "--timeout"], "--timeout needs a value"),
        (["status", "--timeout", "soon"], "--timeout needs seconds"),
        (["status", "--timeout", "nan"], "more than 0"),
        (["status", "--timeout", "-1"], "more than 0"),
        (["status", "what"], "status: what is 'what'?"),
        (["explain", "a", "b"], "it takes ID"),
    ],
)
def test_usage_errors_say_what_to_type(argv: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        parse(argv)


def test_usage_errors_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert ctl.main([]) == 2
    assert "baton ctl --help" in capsys.readouterr().err
    assert ctl.main(["status", "--config", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert ctl.main(["status", "--config", "a", "--run-dir", "b"]) == 2
    assert "not both" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert "baton ctl explain" in out
    assert "exit status" in out


def test_without_a_router_the_socket_and_the_fix_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_RUN_DIR", str(tmp_path))
    assert ctl.main(["status"]) == 3
    error = capsys.readouterr().err
    assert str(tmp_path / "admin.sock") in error
    assert "`baton up`" in error
    assert ctl.main(["status", "--run-dir", str(tmp_path)]) == 3
    assert "is the fleet running" in capsys.readouterr().err


def test_a_silent_router_is_exit_3_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A socket file that nobody listens on, as a killed router leaves it."""
    (tmp_path / "admin.sock").touch()
    assert ctl.main(["status", "--run-dir", str(tmp_path), "--timeout", "0.2"]) == 3
    assert "within 0.2 s" in capsys.readouterr().err


def test_a_failed_verb_is_exit_1(
    router: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": "not_found", "message": "no request starts with 'x'"}
    router["answer"] = AdminAnswer(ok=False, error=error)
    assert ctl.main(["explain", "x"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "baton ctl: no request starts with 'x'\n"
    assert captured.out == ""
    assert ctl.main(["explain", "x", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"error": error}
    router["answer"] = BatonError(Code.WIRE_MISMATCH, "undecodable admin answer")
    assert ctl.main(["status"]) == 1


@pytest.mark.parametrize(
    ("argv", "result", "code", "says"),
    [
        (["ready"], STATUS | {"ready": True}, 0, "it can serve"),
        (["ready"], STATUS, 1, "none of 1 known decode workers is ready"),
        (["ready", "d0"], [WORKER], 0, "d0: ready"),
        (["ready", "d0", "d1"], [WORKER], 1, "d1: not here"),
        (["ready", "d0"], [WORKER | {"state": "suspect"}], 1, "d0: suspect"),
    ],
)
def test_ready_is_an_exit_status(
    router: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    result: Any,
    code: int,
    says: str,
) -> None:
    router["answer"] = AdminAnswer(ok=True, result=result)
    assert ctl.main(argv) == code
    captured = capsys.readouterr()
    assert says in (captured.err if code else captured.out)


def test_ready_without_a_router_is_exit_3(tmp_path: Path) -> None:
    assert ctl.main(["ready", "--run-dir", str(tmp_path)]) == 3


def test_json_is_the_result_as_it_is(
    router: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    router["answer"] = AdminAnswer(ok=True, result=[WORKER])
    assert ctl.main(["workers", "--json", "--timeout", "9"]) == 0
    assert json.loads(capsys.readouterr().out) == [WORKER]
    assert router["asked"] == (f"ipc://{tmp_path}/admin.sock", "workers", {}, 9.0)


@pytest.mark.parametrize(
    ("argv", "result", "shows"),
    [
        (["status"], STATUS, ["NO: none of 1 known", "3 of 1024 (4.0 KiB)", "refused queue_full"]),
        (["status"], STATUS, ["learned prefill_tokens_per_s", "256: 9000", "learned stay_ms"]),
        (
            ["status"],
            STATUS | {"ready": True, "drained_per_s": 4.5},
            ["yes", "4.5 requests/s", "12 told when to come back, 25% of them expected"],
        ),
        (["workers"], [WORKER], ["d0", "2/8", "50%", "25%", "90.0 s"]),
        (["workers"], [WORKER | {"kv_tokens_max": 0}], ["d0"]),
        (["workers"], [], ["no worker has said hello"]),
        (["requests"], [REQUEST], ["abc", "12 ms", "a free decode slot"]),
        (["requests"], [], ["no request is queued or running"]),
        (
            ["explain", "abc"],
            {"request_id": "abc", "attempts": [ATTEMPT]},
            ["request abc", "ended (length)", "75.0 ms so far", "- queued for 25.0 ms", "0.1 2"],
        ),
        (
            ["explain", "abc"],
            {"request_id": "abc", "attempts": [ATTEMPT], "timeline": TIMELINE},
            ["ended after 100.00 ms", "most of it, 75%: prefill on p0", "p0>d0", "##########|"],
        ),
        (["explain", "--slow"], [SLOW], ["MOST OF IT", "abc", "prefill on p0: 75 ms", "4.2 ms"]),
        (["explain", "--failed"], [SLOW | LATE], ["draining", "the router is stopping"]),
        (["explain", "--failed"], [], ["none is kept"]),
        (["policy"], POLICY, ["remote prefill  auto", "*  cost", "round_robin  each in turn"]),
        (["help"], [HELP], ["explain id", "a timeline"]),
        (["newverb"], {"x": 1}, ['"x": 1']),
        (["limits"], LIMITS, ["max_queue", "set here for key k: weight 4", "RUNNING", "90.5"]),
        (["requests", "--queue"], [QUEUED], ["MUST START IN", "interactive", "3.0 s"]),
        (["status"], {"other": "shape"}, ['"other": "shape"']),
    ],
)
def test_people_are_shown(
    router: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    result: Any,
    shows: list[str],
) -> None:
    router["answer"] = AdminAnswer(ok=True, result=result)
    assert ctl.main(argv) == 0
    out = capsys.readouterr().out
    for part in shows:
        assert part in out


def test_tables_align_numbers_right_and_text_left() -> None:
    text = table(("NAME", "N", "WHY"), [("a", 1, ""), ("longer", 100, "x")])
    assert text == "NAME      N  WHY\na         1  -\nlonger  100  x"
    assert table(("A",), []) == "A"
    assert pairs([("a", 1), ("long", None)]) == "a     1\nlong  -"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(5, "5 ms"), (1500, "1.5 s"), (180_000, "3 min"), (8_000_000, "2.2 h")]
)
def test_spans(ms: float, text: str) -> None:
    assert span(ms) == text


def test_the_ledger_names_orphans_and_what_each_worker_moved() -> None:
    hold = {
        "owner": "p0",
        "side": "send",
        "peer": "d0",
        "request_id": "abc",
        "attempt": 1,
        "state": "over",
        "orphan": True,
        "blocks": 3,
        "bytes": 3 << 20,
        "lease_left_ms": 12_000.0,
        "age_ms": 900.0,
    }
    counts = dict.fromkeys(
        ("handoffs_in", "handoffs_out", "bytes_in", "bytes_out", "early_bytes_out", "retries",
         "refetches", "digest_mismatches", "recomputes", "leases_expired"), 0
    ) | {"bytes_out": 4 << 20, "early_bytes_out": 3 << 20}  # fmt: skip
    workers = [
        {"name": "p0", "holds": 1, "counts": counts},
        {"name": "d0", "holds": 0, "counts": {}},
    ]
    answer = {"holds": [hold], "holds_total": 9, "bytes_total": 1, "orphans": 1, "workers": workers}
    shown = VERBS["kv"].render(answer)
    assert "over ORPHAN" in shown
    assert "1 holds are ORPHANS" in shown
    assert "9 holds in all, 1 shown" in shown
    assert "3.0 MiB" in shown
    assert "75%" in shown
    empty = VERBS["kv"].render(answer | {"holds": [], "holds_total": 0, "orphans": 0})
    assert empty.startswith("no worker holds KV for another\n\nWORKER")


def test_a_router_is_asked_by_name_or_the_first_that_answers(
    router: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r1.admin.sock").touch()
    assert ctl.main(["workers", "--router", "r1"]) == 0
    assert router["asked"][0].endswith("/r1.admin.sock")
    assert ctl.main(["workers", "--router=main"]) == 0
    assert router["asked"][0].endswith("/admin.sock")
    assert ctl.main(["workers", "--router", "r7"]) == 2
    assert "no router 'r7'; there are: main, r1" in capsys.readouterr().err
    router["answer"] = BatonError(Code.ROUTER_UNREACHABLE, "no router answers")
    assert ctl.main(["workers"]) == 3
    assert router["asked"][0].endswith("/r1.admin.sock"), "the last one there is was asked too"


@pytest.mark.parametrize(
    ("verb", "result", "shown"),
    [
        (
            "drain",
            {
                "worker": "d0",
                "role": "decode",
                "state": "draining",
                "requests_left": 3,
                "kv_tokens_left": 99,
            },
            "decode d0 is draining: 3 requests (99 KV tokens) are left; ask again",
        ),
        (
            "drain",
            {"worker": "d0", "role": "decode", "state": "drained", "requests_left": 0},
            "decode d0 is drained: nothing runs there, it may be stopped",
        ),
        (
            "evict",
            {"request_id": "r", "attempt": 1, "was": "queued", "requests_dropped": 1},
            "request r was queued; it is dropped",
        ),
        ("quarantine", {"cleared": 2, "pairs": []}, "2 pairs may try again\n\nno pair had trouble"),
    ],
)
def test_what_an_order_did_is_said_in_words(
    router: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    verb: str,
    result: Any,
    shown: str,
) -> None:
    router["answer"] = AdminAnswer(ok=True, result=result)
    assert ctl.main([verb]) == 0
    assert capsys.readouterr().out.strip() == shown
