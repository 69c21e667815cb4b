"""What the kernel keeps on disk: refused where others could change it, and opened without following symlinks."""

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agentos.private_files import (
    UnsafeFile,
    check_parents,
    display_path,
    hold_directory,
    open_file,
    read_file,
    replace_file,
)
from tests.support.runs.rows import each_row

ROOT = os.geteuid() == 0


def reason(act: Callable[[], object]) -> str:
    """Why it is refused."""
    with pytest.raises(UnsafeFile) as caught:
        act()
    return f"{caught.value.filename}: {caught.value.strerror}"


def hold(path: Path) -> None:
    with hold_directory(path):
        pass


def test_a_new_directory_is_its_users_alone(tmp_path: Path) -> None:
    hold(tmp_path / "a" / "state")

    assert stat.S_IMODE((tmp_path / "a" / "state").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, mode: int
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)

    said = reason(lambda: hold(state))

    assert said.startswith(
        f"{state}: belongs to uid {os.geteuid()}, but its mode {mode:04o} lets other users write to it"
    )
    assert f"run `chmod go-w {state}`, or choose another directory with --state-dir" in said
    state.chmod(0o755)
    hold(state)


@pytest.mark.skipif(not ROOT, reason="only root can give a directory to another uid")
def test_a_directory_of_another_uid_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(0o700)
    os.chown(state, 65534, 65534)

    said = reason(lambda: hold(state))

    assert said.startswith(f"{state}: belongs to uid 65534 (mode 0700), and the kernel runs as uid 0")


def test_a_symlink_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "real")

    assert reason(lambda: hold(tmp_path / "state")) == (
        f"{tmp_path}/state: is a symlink to {tmp_path}/real: name the directory itself"
    )


def test_a_directory_that_every_user_may_replace_is_refused_and_one_in_a_sticky_one_is_not(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    (shared / "deeper" / "state").mkdir(parents=True)
    shared.chmod(0o777)

    said = reason(lambda: hold(shared / "deeper" / "state"))

    assert f"as {shared} has mode 0777: run `chmod o-w {shared}`" in said
    assert f"as {shared} has mode 0777" in reason(lambda: check_parents(shared / "socket"))
    shared.chmod(0o1777)
    hold(shared / "deeper" / "state")
    check_parents(shared / "no" / "such" / "socket")


def test_files_stay_in_the_directory_that_is_held_when_it_is_moved_and_another_takes_its_place(tmp_path: Path) -> None:
    state, moved = tmp_path / "state", tmp_path / "moved"

    with hold_directory(state) as held:
        replace_file(held / "note", "first")
        state.rename(moved)
        state.mkdir()
        replace_file(held / "note", "second")

        assert display_path(held / "note") == f"{moved}/note"
        assert read_file(held / "note") == "second"
    assert list(state.iterdir()) == []
    assert os.listdir(moved) == ["note"]


@each_row("content", ["text", b"bytes"])
def test_a_file_that_can_not_be_replaced_stays_and_nothing_is_left_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes
) -> None:
    replace_file(tmp_path / "note", "first")
    write = os.write

    def write_one_byte(fd: int, data: bytes) -> int:
        if len(data) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:1])

    with monkeypatch.context() as full:
        full.setattr(os, "write", write_one_byte)
        with pytest.raises(OSError, match="No space"):
            replace_file(tmp_path / "note", content)

    assert read_file(tmp_path / "note") == "first"
    assert os.listdir(tmp_path) == ["note"]


def test_a_directory_is_not_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "note").mkdir()

    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "note", "text")

    assert os.listdir(tmp_path) == ["note"]


def test_a_symlink_is_neither_opened_nor_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    for name in ("lock", "note.new"):
        (tmp_path / name).symlink_to(target)

    assert reason(lambda: open_file(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC)) == (
        f"{tmp_path}/lock: is a symlink: remove it"
    )
    reason(lambda: read_file(tmp_path / "lock"))
    reason(lambda: replace_file(tmp_path / "note", "text"))
    assert target.read_text() == "precious"


def test_a_hard_link_is_not_truncated(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    os.link(tmp_path / "target", tmp_path / "lock")

    said = reason(lambda: open_file(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC))

    assert said == f"{tmp_path}/lock: has 2 names (hard links): remove the others"
    assert (tmp_path / "target").read_text() == "precious"


def test_what_is_no_file_is_refused_however_it_is_opened_and_without_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)

    for name in ("fifo", "directory", "socket"):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT):
            said = reason(partial(open_file, tmp_path / name, flags))
            assert said == f"{tmp_path}/{name}: is not a regular file: move it away"


@pytest.mark.skipif(not ROOT, reason="only root can give a file to another uid")
def test_a_file_of_another_uid_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("{}")
    os.chown(tmp_path / "note", 65534, 65534)

    assert "belongs to uid 65534, and the kernel runs as uid 0" in reason(lambda: read_file(tmp_path / "note"))
