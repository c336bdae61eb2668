"""What another user may have made or changed is neither read nor written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from common.process.owned_files import (
    folder_fault,
    open_own,
    open_private,
    open_trusted,
    own_folder,
    replace_own,
)
from tests.rigs.other_user import OTHER_USER, needs_root


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    path.chmod(0o600)
    return path


def made(folder: Path) -> Path:
    own_folder(folder)
    return folder


def test_a_folder_is_made_closed_and_then_used_again(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        folder = made(made(tmp_path / "above" / "run"))
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert folder.parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o751, 0o752])
def test_a_folder_that_is_open_to_others_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    folder = made(tmp_path / "run")
    folder.chmod(mode)
    with pytest.raises(PermissionError, match=f"mode {mode:04o}; run chmod 0750 {folder}"):
        own_folder(folder)
    folder.chmod(0o700)
    own_folder(folder)


def test_a_folder_behind_a_link_or_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="is a symbolic link; name the folder"):
        own_folder(tmp_path / "link")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PermissionError, match="is a symbolic link"):
        own_folder(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="is not a folder"):
        own_folder(tmp_path / "file")


def test_a_folder_that_every_user_may_replace_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "shared" / "run")
    folder.parent.chmod(0o777)
    assert "every user may replace it" in folder_fault(folder)
    folder.parent.chmod(0o1777)
    assert not folder_fault(folder)


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    os.chown(folder, OTHER_USER, -1)
    with pytest.raises(PermissionError, match=f"belongs to user {OTHER_USER}"):
        own_folder(folder)


def test_an_own_file_is_made_closed_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for text in (b"1", b"2"):
        with open_own(path, "ab") as file:
            file.write(text)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o644)
    with open_own(path, "rb") as file:
        assert file.read() == b"12"
    assert path.stat().st_mode & 0o777 == 0o640, "a readable file of before is closed"


@pytest.mark.parametrize("mode", ["ab", "a+", "rb"])
def test_links_and_what_is_no_file_are_refused(tmp_path: Path, victim: Path, mode: str) -> None:
    traps: list[tuple[str, Callable[[Path], None]]] = [
        ("is a symbolic link; remove it", lambda path: path.symlink_to(victim)),
        ("second name of another file; remove it", lambda path: path.hardlink_to(victim)),
    ]
    for number, (says, make) in enumerate(traps):
        trap = tmp_path / str(number)
        make(trap)
        with pytest.raises(OSError, match=says):
            open_own(trap, mode)  # type: ignore[arg-type]
    assert victim.read_text() == "precious"


def test_a_private_file_is_for_its_user_alone(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "a"
    for data in (b"12", b"3"):
        file = open_private(path)
        os.pwrite(file, data, 0)
        os.close(file)
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
    assert path.read_bytes() == b"32"
    link = tmp_path / "link"
    link.symlink_to(victim)
    with pytest.raises(PermissionError, match="symbolic link"):
        open_private(link)


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PermissionError, match="is not a file"):
        open_own(tmp_path / "pipe", "rb")
    with pytest.raises(PermissionError, match="is not a file"):
        open_trusted(tmp_path / "pipe")


@needs_root
def test_a_file_of_another_user_is_neither_read_nor_written(tmp_path: Path, victim: Path) -> None:
    os.chown(victim, OTHER_USER, -1)
    for mode in ("ab", "a+", "rb"):
        with pytest.raises(PermissionError, match=f"belongs to user {OTHER_USER}; remove it"):
            open_own(victim, mode)


def test_a_file_that_others_could_write_is_refused(victim: Path) -> None:
    for mode in (0o660, 0o602):
        victim.chmod(mode)
        with pytest.raises(PermissionError, match="can be written by others"):
            open_own(victim, "ab")


def test_a_replaced_file_is_new_and_what_a_link_led_to_stays(tmp_path: Path, victim: Path) -> None:
    link = tmp_path / "fleet.toml"
    link.symlink_to(victim)
    replace_own(link, b"new")
    assert (link.is_symlink(), link.read_bytes()) == (False, b"new")
    assert victim.read_text() == "precious"
    assert link.stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_own(tmp_path / "folder", b"")
    with pytest.raises(FileNotFoundError):
        replace_own(tmp_path / "none" / "x", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@needs_root
def test_a_replaced_file_keeps_its_group(victim: Path) -> None:
    os.chown(victim, -1, OTHER_USER)
    replace_own(victim, b"new")
    assert victim.stat().st_gid == OTHER_USER


def test_configuration_may_be_a_link_that_its_owner_laid(tmp_path: Path, victim: Path) -> None:
    """As a volume of configuration is mounted: links in a folder that only its owner changes."""
    link = tmp_path / "fleet.toml"
    link.symlink_to(victim)
    with open_trusted(link) as file:
        assert file.read() == b"precious"
    tmp_path.chmod(0o770)
    with pytest.raises(PermissionError, match="a symbolic link in a folder that others can change"):
        open_trusted(link)
    with open_trusted(victim) as file:
        assert file.read() == b"precious"


def test_configuration_that_every_user_may_write_is_refused(victim: Path) -> None:
    victim.chmod(0o602)
    with pytest.raises(PermissionError, match="chmod 0640"):
        open_trusted(victim)
    with pytest.raises(PermissionError, match="is not a file"):
        open_trusted(victim.parent)


@needs_root
def test_configuration_of_another_user_is_trusted_only_where_we_have_put_it(
    tmp_path: Path, victim: Path
) -> None:
    """A file in our folder is there by our own doing, as a mounted one is; one of his folder, or of
    a folder that users share, is not."""
    os.chown(victim, OTHER_USER, -1)
    with open_trusted(victim) as file:
        assert file.read() == b"precious"
    for owner, mode in ((OTHER_USER, 0o755), (0, 0o1777), (0, 0o775)):
        tmp_path.chmod(mode)
        os.chown(tmp_path, owner, -1)
        with pytest.raises(PermissionError, match=f"belongs to user {OTHER_USER}; copy it"):
            open_trusted(victim)
    os.chown(victim, 0, -1)
    open_trusted(victim).close()
