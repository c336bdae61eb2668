"""Folders and files that must be this user's own, because daemons obey or overwrite what is there.

Theory of operation: whoever may write a fleet's run directory makes its daemons do what he likes.
He replaces the fleet file, whose alert command is run, or lays a symbolic link where a daemon is
going to write. So a folder is used only if it belongs to the user of this process, is not a
symbolic link, and gives others no access and its group no writing. A file is opened without
following a link and judged by its descriptor, so that nothing can be exchanged between the
judgement and the use. Configuration and keys may also be root's, or lie in a folder that only root
or this user can change: then whoever has put the file there, or the link to it, answers for it.

All functions raise OSError, whose `strerror` says what is wrong and names the fix.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

FOLDER_MODE, ABOVE_MODE = 0o750, 0o755
FILE_MODE, PRIVATE_MODE = 0o640, 0o600
ROOT_USER = 0
OTHERS, OTHERS_WRITE, OTHERS_OR_GROUP_WRITE, TOO_WIDE = 0o007, 0o002, 0o022, 0o027
SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Mode = Literal["ab", "a+", "rb"]


def own_folder(path: Path) -> None:
    """Makes the folder with mode 0750, and those above it, or judges the one that is there."""
    for above in reversed([above for above in path.absolute().parents if not above.exists()]):
        with contextlib.suppress(FileExistsError):
            above.mkdir(mode=ABOVE_MODE)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=FOLDER_MODE)
    fault = folder_fault(path)
    if fault:
        raise _refusal(path, fault)


def folder_fault(path: Path) -> str:
    """Why this folder is not used; empty if it can be."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link; name the folder that it leads to"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, who could change what the daemons do"
    if status.st_mode & TOO_WIDE:
        return f"it has mode {stat.S_IMODE(status.st_mode):04o}; run chmod 0750 {path}"
    for above in path.absolute().parents:
        mode = above.stat().st_mode
        if mode & OTHERS_WRITE and not mode & stat.S_ISVTX:
            return f"every user may replace it, since {above} is open to all; chmod o-w {above}"
    return ""


def open_own(path: Path, mode: Mode) -> IO[Any]:
    """Opens a file of this user, which writing makes first if it is missing. One that others could
    read is closed to them."""

    def opener(name: str, flags: int) -> int:
        return _own_descriptor(path, os.open(name, flags | SAFE_FLAGS, FILE_MODE), FILE_MODE)

    try:
        return open(path, mode, opener=opener)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _refusal(path, f"{path} is a symbolic link; remove it") from error


def open_private(path: Path) -> int:
    """Returns the descriptor of a file of this user, to read and write at any place in it. It is
    made first if it is missing, and nobody else may open it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | SAFE_FLAGS, PRIVATE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _refusal(path, f"{path} is a symbolic link; remove it") from error
    return _own_descriptor(path, descriptor, PRIVATE_MODE)


def make_private(path: Path, data: bytes) -> None:
    """Makes a file of this user, and the folders above it, that nobody else may open; does nothing
    if it is there. Of several who do this at once the first one's data are in it."""
    if path.exists():
        return
    path.parent.mkdir(mode=ABOVE_MODE, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE_FLAGS
    try:
        with os.fdopen(os.open(temporary, flags, PRIVATE_MODE), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_own(path: Path, data: bytes) -> None:
    """Replaces the file as a whole by a new one of this user with mode 0640, which keeps the group
    of the old one. A reader sees the old or the new one, never half of one."""
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file:
            os.fchmod(file.fileno(), FILE_MODE)
            with contextlib.suppress(FileNotFoundError, PermissionError):
                os.fchown(file.fileno(), -1, path.lstat().st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def open_trusted(path: Path, *, secret: bool = False) -> BinaryIO:
    """Opens, for reading, what daemons obey: configuration or keys. `secret`: no other user may
    read it."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        guarded = _is_guarded(os.fstat(folder), OTHERS_OR_GROUP_WRITE)
        flags = os.O_RDONLY | os.O_NONBLOCK | (0 if guarded else os.O_NOFOLLOW)
        descriptor = os.open(path.name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        fault = f"{path} is a symbolic link in a folder that others can change; copy the file"
        raise _refusal(path, fault) from error
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    fault = ""
    if not stat.S_ISREG(status.st_mode):
        fault = f"{path} is not a file"
    elif status.st_mode & (OTHERS if secret else OTHERS_WRITE):
        fault = f"it is open to every user of this host; run chmod 0640 {path}"
    elif not guarded and not _is_guarded(status, OTHERS_WRITE):
        fault = f"it belongs to user {status.st_uid}; copy it to a folder of your own"
    if fault:
        os.close(descriptor)
        raise _refusal(path, fault)
    return cast(BinaryIO, os.fdopen(descriptor, "rb"))


def _own_descriptor(path: Path, descriptor: int, mode: int) -> int:
    """Judges an open file, and takes away what its mode has beyond this one."""
    status = os.fstat(descriptor)
    fault = _file_fault(path, status)
    if fault:
        os.close(descriptor)
        raise _refusal(path, fault)
    known = stat.S_IMODE(status.st_mode)
    if known & ~mode:
        os.fchmod(descriptor, known & mode)
    return descriptor


def _file_fault(path: Path, status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a file; remove it"
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}; remove it"
    if status.st_nlink > 1:
        return f"{path} is a second name of another file; remove it"
    if status.st_mode & OTHERS_OR_GROUP_WRITE:
        return f"{path} can be written by others; remove it"
    return ""


def _is_guarded(status: os.stat_result, writers: int) -> bool:
    """Whether only root, or this user, may change it."""
    return status.st_uid in (ROOT_USER, os.geteuid()) and not status.st_mode & writers


def _refusal(path: Path, fault: str) -> OSError:
    return PermissionError(errno.EPERM, fault, str(path))
