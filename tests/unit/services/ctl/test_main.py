"""`baton ctl`: which router is asked, what is printed, and the exit status."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import BatonError, Code
from common.net.admin_client import AdminAnswer
from common.process.flapping_file import write_flapping
from services.ctl import main as ctl
from services.ctl import routers
from tests.rigs.other_user import OTHER_USER

WORKER = {"name": "d0", "state": "ready"}
STATUS = {"ready": False, "reason": "none of 1 known decode workers is ready"}


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

    monkeypatch.setattr(routers, "ask", ask)
    return state


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A directory that this user may not read, even as root."""
    tmp_path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(OTHER_USER)
    yield tmp_path
    os.seteuid(user)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--config", "none.toml", "none.toml: cannot be read"),
        ("--run-dir", "/tmp/" + "x" * 120, "choose a shorter run_dir"),
        ("--router", "r7", "no router 'r7'; there are: main"),
    ],
)
def test_what_cannot_be_used_is_exit_2_and_one_sentence(
    flag: str, value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main(["status", flag, value]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_run_directory_of_others_is_exit_2_and_one_sentence(
    closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main(["status", "--run-dir", str(closed)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"baton ctl: {closed}: this user may not use it; be the daemons' user")
    assert error.count("\n") == 1


def test_a_socket_that_only_others_may_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The directory can be listed; the socket in it cannot be used, or not even be looked at."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # others may not enter pytest's own
        socket = Path(name) / "admin.sock"
        socket.touch(mode=0o400)
        for mode, named in ((0o755, socket), (0o644, socket.parent)):
            socket.parent.chmod(mode if user == 0 else mode & 0o700)
            if user == 0:
                os.seteuid(OTHER_USER)
            try:
                assert ctl.main(["status", "--run-dir", name]) == 2
            finally:
                os.seteuid(user)
            assert f"{named}: this user may not use it" in capsys.readouterr().err
        socket.parent.chmod(0o700)


def test_without_a_router_the_socket_and_the_fix_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_RUN_DIR", str(tmp_path))
    assert ctl.main(["status"]) == 3
    error = capsys.readouterr().err
    assert str(tmp_path / "admin.sock") in error
    assert "`baton up`" in error
    assert ctl.main(["ready", "--run-dir", str(tmp_path)]) == 3
    assert "is the fleet running" in capsys.readouterr().err


def test_a_failed_verb_is_exit_1(
    router: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": "not_found", "message": "no request starts with 'x'"}
    router["answer"] = AdminAnswer(ok=False, error=error)
    assert ctl.main(["explain", "x"]) == 1
    assert capsys.readouterr() == ("", "baton ctl: no request starts with 'x'\n")
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


def test_json_is_the_result_as_it_is(
    router: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    router["answer"] = AdminAnswer(ok=True, result=[WORKER])
    assert ctl.main(["workers", "--json", "--timeout", "9"]) == 0
    assert json.loads(capsys.readouterr().out) == [WORKER]
    assert router["asked"] == (f"ipc://{tmp_path}/admin.sock", "workers", {}, 9.0)


@pytest.mark.parametrize("verb", ["newverb", "status"])
def test_what_this_version_cannot_show_is_json(
    router: dict[str, Any], capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    router["answer"] = AdminAnswer(ok=True, result={"other": "shape"})
    assert ctl.main([verb]) == 0
    assert json.loads(capsys.readouterr().out) == {"other": "shape"}


def test_status_tells_what_keeps_dying_as_its_supervisor_says(
    router: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_flapping(tmp_path, {"d2": "died 9 times in a row"})
    router["answer"] = AdminAnswer(ok=True, result={"other": "shape"})
    assert ctl.main(["status", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"other": "shape", "flapping": {"d2": "died 9 times in a row"}}
    router["answer"] = BatonError(Code.ROUTER_UNREACHABLE, "no router answers")
    assert ctl.main(["workers"]) == 3
    assert "no router answers; d2 died 9 times in a row" in capsys.readouterr().err


def test_what_is_repeated_is_a_line_each_in_json(
    router: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", ctrl_c)
    events = [{"sentence": "a"}, {"sentence": "b"}]
    result = {"sentence": "all", "events": events, "last": 2}
    router["answer"] = AdminAnswer(ok=True, result=result)
    for line, printed in (
        ("events --follow --json", '{"sentence": "a"}\n{"sentence": "b"}\n'),
        ("reload --watch", "in force now: all\n"),
        ("reload --watch --json", json.dumps(result) + "\n"),
    ):
        assert ctl.main(line.split()) == 0
        assert capsys.readouterr().out == printed


def test_a_router_is_asked_by_name_or_the_first_that_answers(
    router: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "r1.admin.sock").touch()
    for name, socket in (("r1", "/r1.admin.sock"), ("main", "/admin.sock")):
        assert ctl.main(["workers", "--router", name]) == 0
        assert router["asked"][0].endswith(socket)
    router["answer"] = BatonError(Code.ROUTER_UNREACHABLE, "no router answers")
    assert ctl.main(["workers"]) == 3
    assert router["asked"][0].endswith("/r1.admin.sock"), "the last one there is was asked too"


@pytest.fixture
def cells(tmp_path: Path, router: dict[str, Any]) -> dict[str, Any]:
    """A fleet file with a cell of its own, one on this host and one elsewhere."""
    other = tmp_path / "c1"
    other.mkdir()
    (other / "admin.sock").touch()
    text = "[engine]\nkind = 'sim'\n[decode.d0]\n[prefill.p0]\n[gateway.cells.c0]\n"
    text += f"[gateway.cells.c1]\nrun_dir = '{other}'\n"
    text += "[gateway.cells.far]\ncontrol = 'ipc:///run/far.sock'\n"
    (tmp_path / "fleet.toml").write_text(f"[fleet]\nrun_dir = '{tmp_path}'\n" + text)
    return router


@pytest.mark.parametrize(("cell", "folder"), [("c0", ""), ("c1", "c1")])
def test_a_cell_is_asked_by_its_name_and_named_in_the_answer(
    cells: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cell: str,
    folder: str,
) -> None:
    assert ctl.main(["workers", "--cell", cell]) == 0
    assert cells["asked"][0] == f"ipc://{tmp_path / folder}/admin.sock"
    assert capsys.readouterr().out.startswith(f"cell {cell}\n")


@pytest.mark.parametrize(
    ("cell", "says"),
    [("c7", "no cell 'c7'; there are: c0, c1, far"), ("far", "says no run_dir of far")],
)
def test_a_cell_that_cannot_be_asked_is_told(
    cells: dict[str, Any], capsys: pytest.CaptureFixture[str], cell: str, says: str
) -> None:
    assert ctl.main(["workers", "--cell", cell]) == 2
    assert says in capsys.readouterr().err
