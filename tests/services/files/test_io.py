"""Reading and writing what was found: whole or in part, in one step or not at all, and only where files are kept."""

import os
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from agentos.services.files import io
from agentos.services.files.as_user import Identity
from agentos.services.files.resolve import Part, ResolvedPath, resolve_file, resolve_for_writing
from agentos.threads import run_in_thread
from agentos_sdk.errors import BadRequest, CallError, NotFound, PermissionDenied, QuotaExceeded
from tests.support.mounts import mounted
from tests.support.runs.rows import each_row

from .places import found, hosts, in_thread, own

SOMEBODY = Identity(1610612999, 1610612998)
MIB = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def read(directory: Path, path: str, offset: int = 0, limit: int | None = None, most: int = MIB, **more: Any) -> Part:
    with opened(directory, path, **more) as what:
        what.require()
        part: Part = in_thread(io.read, what, offset, limit, most)
        return part


def opened(directory: Path, path: str, **more: Any) -> AbstractContextManager[ResolvedPath]:
    """A file that was opened at once, as for a caller that may read it."""
    return found(partial(resolve_file, read=ResolvedPath.open), own(directory, path, **more))


def read_early(
    directory: Path, path: str, offset: int = 0, limit: int | None = None, most: int = MIB, **more: Any
) -> ResolvedPath:
    """A file that was opened and, if it is small, read at once, as for a caller that may read it. Closed."""
    early = partial(io.read_early, offset=offset, limit=limit, max_bytes=most)
    with found(partial(resolve_file, read=early), own(directory, path, **more)) as what:
        return what


def write(directory: Path, path: str, data: bytes, act: Any = io.replace, **more: Any) -> None:
    with found(resolve_for_writing, own(directory, path, **more)) as what:
        in_thread(act, what, data)


def append(directory: Path, path: str, data: bytes, **more: Any) -> None:
    write(directory, path, data, io.append, **more)


# -- Reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "limit", "part"),
    [
        (0, None, Part(b"0123456789", 10, False)),
        (3, None, Part(b"3456789", 10, False)),
        (3, 4, Part(b"3456", 10, True)),
        (3, 7, Part(b"3456789", 10, False)),
        (3, 1 << 40, Part(b"3456789", 10, False)),
        (0, 0, Part(b"", 10, True)),
        (10, None, Part(b"", 10, False)),
        (1 << 62, None, Part(b"", 10, False)),
        (1 << 62, 5, Part(b"", 10, False)),
    ],
)
def test_a_part_is_read(place: Path, offset: int, limit: int | None, part: Part) -> None:
    (place / "file").write_bytes(b"0123456789")

    assert read(place, "file", offset, limit) == part


@each_row("file_system", ["place", "small"])
@each_row(("offset", "limit"), [(0, None), (3, 4), (3, 7), (0, 0), (10, None), (1 << 62, 5)])
def test_a_small_part_is_read_at_once(
    request: pytest.FixtureRequest, file_system: str, offset: int, limit: int | None
) -> None:
    directory = request.getfixturevalue(file_system)
    (directory / "file").write_bytes(b"0123456789")
    os.utime(directory / "file", (1, 1))

    what = read_early(directory, "file", offset, limit, 10)

    assert what.part == read(directory, "file", offset, limit, 10)
    assert os.stat(directory / "file").st_atime == 1  # the call may yet be refused


def test_a_file_that_was_read_at_once_is_closed_in_that_thread(place: Path) -> None:
    (place / "file").write_bytes(b"x")
    early = partial(io.read_early, offset=0, limit=None, max_bytes=MIB)

    with found(partial(resolve_file, read=early), own(place, "file")) as what:
        assert what.fd == -1


def test_a_large_part_and_the_target_of_a_symlink_are_not_read_at_once(place: Path) -> None:
    (place / "file").write_bytes(b"x" * 100)
    (place / "large").write_bytes(b"x" * (io.MAX_EARLY_BYTES + 1))
    (place / "link").symlink_to("file")

    assert read_early(place, "large").part is None
    assert read_early(place, "large", 1).part == Part(b"x" * io.MAX_EARLY_BYTES, io.MAX_EARLY_BYTES + 1, False)
    assert read_early(place, "file", most=99).part is None  # refused when it is read
    assert read_early(place, "link").part is None
    with found(resolve_file, own(place, "file")) as what:
        assert not what.is_open


def test_more_than_a_reply_holds_is_refused_before_it_is_read(place: Path) -> None:
    with open(place / "giant", "wb") as file:
        file.truncate(1 << 43)  # 8 TiB of nothing

    with pytest.raises(BadRequest, match=r"limit: 8796093022208 bytes .* read it in parts"):
        read(place, "giant")
    with pytest.raises(BadRequest, match="limit: 1048577 bytes"):
        read(place, "giant", 0, MIB + 1)
    assert read(place, "giant", (1 << 43) - 5, None) == Part(bytes(5), 1 << 43, False)
    assert read(place, "giant", 1 << 42, MIB) == Part(bytes(MIB), 1 << 43, True)


def test_a_file_that_grows_all_the_time_has_an_end(place: Path) -> None:
    (place / "log").write_bytes(b"x")
    over = threading.Event()

    def grow() -> None:
        with open(place / "log", "ab", buffering=0) as file:
            while not over.is_set() and file.tell() < 64 * MIB:
                file.write(b"x" * 4096)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(50):
            part = read(place, "log", most=1 << 30)
            assert len(part.data) == part.size
    finally:
        over.set()
        writer.join()


def test_a_file_that_shrinks_meanwhile_is_read_as_far_as_it_goes(place: Path) -> None:
    (place / "file").write_bytes(b"x" * 100)
    with found(resolve_file, own(place, "file")) as what:
        os.truncate(place / "file", 10)

        assert in_thread(io.read, what, 0, None, MIB) == Part(b"x" * 10, 10, False)


def odd(place: Path, kind: str) -> None:
    match kind:
        case "a FIFO":
            os.mkfifo(place / "odd")
        case "a socket":
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(place / "odd"))
        case "a directory":
            (place / "odd").mkdir()
        case "a device":
            if os.geteuid() != 0:
                pytest.skip("only root can make a device")
            os.mknod(place / "odd", stat.S_IFCHR | 0o666, os.makedev(1, 5))


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a directory", "a device"])
def test_what_is_no_file_is_neither_read_nor_written(place: Path, kind: str) -> None:
    odd(place, kind)
    before = os.stat(place / "odd")

    for act in (read, lambda place, path: write(place, path, b"x"), lambda place, path: append(place, path, b"x")):
        with pytest.raises(BadRequest, match=f"odd: expected a file, and this is {kind}"):
            act(place, "odd")
    assert os.path.samestat(os.stat(place / "odd"), before)
    assert os.listdir(place) == ["odd"]


def test_what_is_no_file_any_more_is_not_read(place: Path) -> None:
    """The file that was found is read, whatever has its name by now."""
    for early in (None, ResolvedPath.open):
        (place / "file").write_text("honest")
        with found(partial(resolve_file, read=early), own(place, "file")) as what:
            os.unlink(place / "file")
            os.mkfifo(place / "file")

            assert in_thread(io.read, what, 0, None, MIB).data == b"honest"
        os.unlink(place / "file")


@each_row(
    "path", ["/proc/self/environ", "/proc/1/environ", "/proc/self/mem", "/proc/version", "/sys/kernel/uevent_seqnum"]
)
def test_files_that_are_made_up_are_neither_read_nor_written(path: str) -> None:
    if not os.path.exists(path):
        pytest.skip(f"this host has no {path}")
    for early in (None, partial(io.read_early, offset=0, limit=None, max_bytes=MIB)):
        with (
            found(partial(resolve_file, read=early), hosts(path)) as what,
            pytest.raises(PermissionDenied, match=r"lies in (proc|sysfs)"),
        ):
            what.require()
            in_thread(io.read, what, 0, None, MIB)
    with (
        found(resolve_for_writing, hosts(path)) as spot,
        pytest.raises(PermissionDenied, match=r"lies in (proc|sysfs)"),
    ):
        in_thread(io.append, spot, b"x")


def test_a_second_name_is_refused_to_callers_that_it_could_lead_astray(place: Path) -> None:
    (place / "one").write_text("secret")
    os.link(place / "one", place / "two")

    for act in (lambda: read(place, "two", single_link=True), lambda: append(place, "two", b"x", single_link=True)):
        with pytest.raises(PermissionDenied, match="two: has 2 names"):
            act()
    write(place, "two", b"mine", single_link=True)
    assert (place / "one").read_text() == "secret"
    assert read(place, "one", single_link=True).data == b"secret"  # it has one name again
    assert read(place, "two").data == b"mine"


# -- Writing -----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_by_another_one(place: Path) -> None:
    (place / "file").write_text("a long former text")
    before = os.stat(place / "file").st_ino
    with open(place / "file") as former:
        write(place, "file", b"new")

        assert former.read() == "a long former text"
    assert (place / "file").read_bytes() == b"new"
    assert os.stat(place / "file").st_ino != before
    assert os.listdir(place) == ["file"]


def test_what_is_replaced_keeps_its_mode_but_no_other_identity(place: Path) -> None:
    (place / "file").write_text("x")
    os.chmod(place / "file", 0o4755)

    write(place, "file", b"new")

    assert stat.S_IMODE(os.stat(place / "file").st_mode) == 0o755


def test_a_new_file_is_readable_by_all_users_and_writable_by_its_owner(place: Path) -> None:
    former = os.umask(0o022)
    try:
        write(place, "new", b"x")
        append(place, "other", b"x")
    finally:
        os.umask(former)

    assert {stat.S_IMODE(os.stat(place / name).st_mode) for name in ("new", "other")} == {0o644}


def test_no_reader_ever_sees_half_of_a_file(place: Path) -> None:
    """One writes whole texts, the other reads all the time: every text is one of those."""
    texts = [letter * 300_000 for letter in (b"a", b"b")]
    (place / "file").write_bytes(texts[0])
    over = threading.Event()
    seen: set[bytes] = set()
    reads = 0

    def look() -> None:
        nonlocal reads
        while not over.is_set():
            seen.add((place / "file").read_bytes())
            reads += 1

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(200):
            write(place, "file", texts[number % 2])
    finally:
        over.set()
        reader.join()

    assert seen == set(texts)
    assert reads > 20


def test_appended_is_what_comes_behind(place: Path) -> None:
    append(place, "log", b"one\n")
    append(place, "log", b"two\n")

    assert (place / "log").read_bytes() == b"one\ntwo\n"


def test_a_link_is_written_through_and_stays_a_link(place: Path) -> None:
    (place / "d").mkdir()
    (place / "link").symlink_to("d/file")

    write(place, "link", b"new")
    append(place, "link", b"er")

    assert (place / "d" / "file").read_bytes() == b"newer"
    assert (place / "link").is_symlink()


def test_a_link_that_comes_after_the_look_is_not_followed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (place / "file").write_text("x")
    for act in (io.append, io.replace):
        with found(resolve_for_writing, own(place, "file")) as what:
            os.unlink(place / "file")
            os.symlink(tmp_path / "victim", place / "file")

            with pytest.raises(BadRequest, match="a symbolic link"):
                in_thread(act, what, b"evil")
        os.unlink(place / "file")
        (place / "file").write_text("x")
    assert (tmp_path / "victim").read_text() == "untouched"


def test_a_directory_that_is_replaced_after_the_look_is_written_to_nevertheless(place: Path, tmp_path: Path) -> None:
    """What was judged is the directory, whatever has its name by now."""
    (tmp_path / "outside").mkdir()
    (place / "d").mkdir()
    with found(resolve_for_writing, own(place, "d/file")) as what:
        os.rename(place / "d", place / "moved")
        os.symlink(tmp_path / "outside", place / "d")

        in_thread(io.replace, what, b"x")

    assert os.listdir(tmp_path / "outside") == []
    assert (place / "moved" / "file").read_bytes() == b"x"


def test_a_directory_that_was_removed_gets_no_file(place: Path) -> None:
    for act in (io.replace, io.append):
        (place / "d").mkdir()
        with found(resolve_for_writing, own(place, "d/file")) as what:
            os.rmdir(place / "d")

            with pytest.raises(CallError) as caught:
                in_thread(act, what, b"x")
            assert caught.value.code in ("not_found", "busy")


def test_a_file_may_not_be_larger_than_its_writer_may_make_it(place: Path) -> None:
    append(place, "log", b"x" * 10, max_size=15)

    with pytest.raises(QuotaExceeded, match=r"20 bytes, and limits\.file_size is 15"):
        append(place, "log", b"x" * 10, max_size=15)
    with pytest.raises(QuotaExceeded, match=r"16 bytes, and limits\.file_size is 15"):
        write(place, "log", b"y" * 16, max_size=15)
    assert (place / "log").read_bytes() == b"x" * 10


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount one")
    directory = tmp_path / "small"
    directory.mkdir()
    with mounted("tmpfs", "size=256k,nr_inodes=5", directory):
        yield directory


def test_a_full_disk_leaves_the_former_file_and_nothing_else(small: Path) -> None:
    (small / "file").write_bytes(b"former")

    with pytest.raises(QuotaExceeded, match="file: there is no space left"):
        write(small, "file", b"x" * MIB)

    assert os.listdir(small) == ["file"]
    assert (small / "file").read_bytes() == b"former"


def test_a_full_disk_says_how_much_was_appended(small: Path) -> None:
    (small / "log").write_bytes(b"former")

    with pytest.raises(QuotaExceeded, match=r"no space left; (\d+) of 1048576 bytes were appended") as caught:
        append(small, "log", b"x" * MIB)

    assert int(str(caught.value).split("; ")[1].split()[0]) == os.stat(small / "log").st_size - 6


def test_without_an_inode_there_is_no_new_file(small: Path) -> None:
    for number in range(4):
        write(small, f"file-{number}", b"")

    for act in (write, append):
        with pytest.raises(QuotaExceeded, match="there is no space left"):
            act(small, "one more", b"")


def test_nothing_is_written_where_it_is_read_only(small: Path) -> None:
    (small / "file").write_bytes(b"former")
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)

    for path in ("file", "new"):
        for act in (write, append):
            with pytest.raises(PermissionDenied, match=f"{path}: is read-only"):
                act(small, path, b"x")


def test_what_is_mounted_by_itself_is_not_replaced(small: Path) -> None:
    """In the mount namespace of an agent that is how names are protected, and Linux would let us take them away."""
    (small / "protected").write_text("former")
    subprocess.run(["mount", "--bind", small / "protected", small / "protected"], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", small / "protected"], check=True)

        with pytest.raises(PermissionDenied, match="protected: is protected"):
            write(small, "protected", b"x")
        with pytest.raises(PermissionDenied, match="protected: is read-only"):
            append(small, "protected", b"x")
    finally:
        subprocess.run(["umount", small / "protected"], check=True)
    assert (small / "protected").read_text() == "former"
    assert os.listdir(small) == ["protected"]


async def test_withdrawn_it_leaves_nothing(place: Path) -> None:
    (place / "file").write_bytes(b"former")
    token = trio.lowlevel.current_trio_token()
    with found(resolve_for_writing, own(place, "file")) as what, trio.CancelScope() as scope:

        def withdrawn_before_it_is_done(what: ResolvedPath, data: bytes) -> None:
            trio.from_thread.run_sync(scope.cancel, trio_token=token)
            trio.from_thread.run_sync(str, trio_token=token)  # by now it has reached the task that waits
            io.replace(what, data)

        await run_in_thread(withdrawn_before_it_is_done, what, b"x" * 5 * MIB)

    assert scope.cancelled_caught
    assert os.listdir(place) == ["file"]
    assert (place / "file").read_bytes() == b"former"


# -- As somebody else --------------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(entered: Path, place: Path) -> Path:
    """A directory of somebody else's, which only root can be for us."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as somebody else")
    os.chown(place, SOMEBODY.uid, SOMEBODY.gid)
    return place


def test_a_new_file_belongs_to_the_user_that_makes_it(theirs: Path) -> None:
    write(theirs, "new", b"x", identity=SOMEBODY)
    append(theirs, "log", b"x", identity=SOMEBODY)
    write(theirs, "new", b"y", identity=SOMEBODY)

    for name in ("new", "log"):
        status = os.stat(theirs / name)
        assert (status.st_uid, status.st_gid) == (SOMEBODY.uid, SOMEBODY.gid)


def test_the_file_of_another_user_is_not_read_or_written_to(theirs: Path) -> None:
    (theirs / "roots").write_text("secret")
    os.chmod(theirs / "roots", 0o600)
    (theirs / "closed").mkdir(mode=0o700)
    (theirs / "closed" / "file").write_text("secret")

    for path in ("roots", "closed/file"):
        with pytest.raises((PermissionDenied, NotFound)):
            read(theirs, path, identity=SOMEBODY)
        with pytest.raises((PermissionDenied, NotFound)):
            append(theirs, path, b"x", identity=SOMEBODY)
    assert read(theirs, "roots").data == b"secret"  # and we are ourselves again
    os.chmod(theirs / "roots", 0o644)
    with opened(theirs, "roots", identity=SOMEBODY) as what:
        assert what.is_open
        assert in_thread(io.read, what, 0, None, MIB).data == b"secret"
    what = read_early(theirs, "roots", identity=SOMEBODY)  # only its owner may leave the access time as it is
    assert (what.part, what.error) == (None, None)


def test_a_second_name_of_a_secret_gives_nothing_away_to_another_user(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    os.chmod(tmp_path / "secret", 0o600)
    os.link(tmp_path / "secret", theirs / "innocent")

    with pytest.raises(PermissionDenied, match="mode"):
        read(theirs, "innocent", identity=SOMEBODY)


def test_on_the_host_a_new_file_is_given_to_its_owner_and_a_former_one_keeps_its_own(theirs: Path) -> None:
    os.chown(theirs, 0, 0)
    write(theirs, "new", b"x", owner=SOMEBODY)
    append(theirs, "log", b"x", owner=SOMEBODY)
    (theirs / "former").write_text("x")
    os.chown(theirs / "former", 12345, 12346)
    write(theirs, "former", b"y", owner=SOMEBODY)

    assert {os.stat(theirs / name).st_uid for name in ("new", "log")} == {SOMEBODY.uid}
    status = os.stat(theirs / "former")
    assert (status.st_uid, status.st_gid) == (12345, 12346)
