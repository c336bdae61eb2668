"""The installer's decisions, with pip and the machine replaced."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import install

Run = Callable[[list[str]], int]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "cpu.txt").write_text("a==1\n")
    (tmp_path / "build").mkdir()
    log = tmp_path / "build" / "install.log"
    log.write_text("WARNING: noise\nERROR: no such wheel\n")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "LOG", log)
    monkeypatch.setattr(install, "gpu_present", lambda: False)
    monkeypatch.setattr(sys, "argv", ["install.py"])
    return tmp_path


def record(monkeypatch: pytest.MonkeyPatch, answer: Run) -> list[str]:
    """Replace every logged command; the environment is taken to exist and to lack torch."""
    commands: list[str] = []

    def run(command: list[str]) -> int:
        commands.append(" ".join(command))
        install.LOG.write_text("ERROR: no such wheel\n")
        return answer(command)

    monkeypatch.setattr(install, "run_logged", run)
    monkeypatch.setattr(install.Environment, "usable", lambda _: True)
    monkeypatch.setattr(install.Environment, "version_of", lambda *_: "")
    return commands


def test_a_matching_stamp_means_nothing_is_run(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / ".venv").mkdir()
    commands = record(monkeypatch, lambda _: 0)
    assert install.main() == 0
    assert commands
    commands.clear()
    assert install.main() == 0
    assert commands == []
    for name in ("pyproject.toml", "constraints/cpu.txt"):
        (tree / name).write_text("changed")
        assert install.main() == 0
        assert commands
        commands.clear()


def test_the_order_is_torch_then_all_under_constraints(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / ".venv").mkdir()
    commands = record(monkeypatch, lambda _: 0)
    assert install.main() == 0
    assert commands[0].endswith("pip install torch==2.13.0+cpu")
    assert "--editable .[cpu,dev] --constraint" in commands[1]
    assert not any("uninstall" in command for command in commands)


def test_an_environment_elsewhere_is_a_copy_without_what_tests_need(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "there").mkdir()
    commands = record(monkeypatch, lambda _: 0)
    monkeypatch.setattr(sys, "argv", ["install.py", "--into", str(tree / "there")])
    assert install.main() == 0
    assert "pip install .[cpu] --constraint" in commands[1]
    assert all(str(tree / "there") in command.split()[0] for command in commands)
    assert (tree / "there" / ".baton-installed").exists()


def test_a_torchvision_that_does_not_import_is_removed_with_its_kin(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / ".venv").mkdir()
    commands = record(monkeypatch, lambda command: int(command[-1] == "import torchvision"))
    assert install.main() == 0
    assert any("uninstall --yes torchvision torchaudio torchcodec" in c for c in commands)


def test_torch_falls_back_to_the_index_that_uv_knows(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / ".venv").mkdir()
    commands = record(monkeypatch, lambda command: int(command[-1].endswith("+cpu")))
    assert install.main() == 0
    assert commands[1].endswith("pip install uv")
    assert commands[2].endswith("--torch-backend cpu torch==2.13.0")


def test_no_torch_anywhere_is_one_error_with_the_log_and_no_stamp(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / ".venv").mkdir()
    record(monkeypatch, lambda _: 1)
    assert install.main() == 1
    error = capsys.readouterr().err
    assert "could not be installed from either index" in error
    assert "no such wheel" in error
    assert "noise" not in error
    assert not (tree / ".venv" / ".baton-installed").exists()


def test_an_interrupted_install_leaves_no_stamp_and_resumes(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / ".venv").mkdir()

    def interrupt(_: list[str]) -> int:
        raise KeyboardInterrupt

    record(monkeypatch, interrupt)
    assert install.main() == 130
    assert not (tree / ".venv" / ".baton-installed").exists()
    record(monkeypatch, lambda _: 0)
    assert install.main() == 0


def test_a_full_disk_is_one_line_before_anything_is_written(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * 2**30))
    commands = record(monkeypatch, lambda _: 0)
    assert install.main() == 1
    assert "6 GiB of free disk are needed" in capsys.readouterr().err
    assert commands == []


def test_no_python_names_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(install.InstallError, match=r"apt install python3\.11"):
        install.find_python()


def test_a_python_without_venv_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_a_python(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, stdout="3.12\n", stderr="no ensurepip")

    monkeypatch.setattr(subprocess, "run", half_a_python)
    with pytest.raises(install.InstallError, match=r"apt install python3\.12-venv"):
        install.find_python()


@pytest.mark.parametrize(("answer", "extra"), [(0, "cuda"), (9, "cpu")])
def test_a_gpu_counts_when_its_driver_answers(
    monkeypatch: pytest.MonkeyPatch, answer: int, extra: str
) -> None:
    def driver(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, answer, stdout="GPU 0: H200\n", stderr="")

    monkeypatch.setattr(install, "gpu_present", lambda: True)
    monkeypatch.setattr(subprocess, "run", driver)
    assert install.choose_extra("auto") == extra
    assert install.choose_extra("cpu") == "cpu"


def test_verified_is_every_file_by_its_hash_first_and_never_skipped(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / ".venv").mkdir()
    commands = record(monkeypatch, lambda _: 0)
    monkeypatch.setattr(sys, "argv", ["install.py", "--verify"])
    assert install.main() == 1
    assert "install without VERIFY" in capsys.readouterr().err
    (tree / "constraints" / "cpu.hashes.txt").write_text("a==1 --hash=sha256:00\n")
    for _ in range(2):
        commands.clear()
        assert install.main() == 0
        assert "--force-reinstall --require-hashes --no-deps --requirement" in commands[0]
        assert commands[0].endswith("cpu.hashes.txt")
    record(monkeypatch, lambda command: int("--require-hashes" in command))
    assert install.main() == 1
    assert "not the tested one" in capsys.readouterr().err


def test_hashes_do_not_make_an_environment_stale(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = install.stamp_text("cpu")
    (tree / "constraints" / "cpu.hashes.txt").write_text("a==1 --hash=sha256:00\n")
    assert install.stamp_text("cpu") == before
