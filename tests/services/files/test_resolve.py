"""Where a path leads: what is found and by which name it is judged, whatever somebody has laid on the way."""

import contextlib
import ctypes
import os
import socket
import threading
from pathlib import Path

import pytest

from agentos.sandbox.files import openat2
from agentos.services.files.resolve import resolve_file, resolve_for_writing
from agentos_sdk.errors import BadRequest, CallError, NotFound, PermissionDenied, Unavailable

from .places import found, hosts, own


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with files, and a secret beside it."""
    directory = tmp_path / "ws"
    (directory / "deep" / "er").mkdir(parents=True)
    (directory / "notes").write_text("notes")
    (directory / "deep" / "file").write_text("deep")
    (tmp_path / "secret").write_text("secret")
    return directory


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("notes", "/workspace/notes"),
        ("deep/file", "/workspace/deep/file"),
        ("deep//./file", "/workspace/deep/file"),
        ("deep/er/../file", "/workspace/deep/file"),
        ("deep", "/workspace/deep"),
        (".", "/workspace"),
    ],
)
def test_a_file_is_found_by_its_own_name(place: Path, path: str, real: str) -> None:
    with found(resolve_file, own(place, path)) as what:
        assert (what.real, what.error) == (real, None)
        assert os.path.samestat(os.fstat(what.fd), os.stat(place / path))


def test_a_link_inside_is_followed_and_judged_by_where_it_leads(place: Path) -> None:
    (place / "deep" / "up").symlink_to("../notes")
    (place / "also").symlink_to("deep")

    with found(resolve_file, own(place, "also/up")) as what:
        assert what.real == "/workspace/notes"


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "/", "..", "deep/../../secret", "/proc/self/root"])
def test_no_link_leads_out(place: Path, target: str) -> None:
    (place / "link").symlink_to(target)

    for path in ("link", "link/passwd", "deep/../link"):
        with pytest.raises(PermissionDenied, match="leads out of /workspace"):
            resolve_file(own(place, path))
        with pytest.raises(PermissionDenied, match="leads out of /workspace"):
            resolve_for_writing(own(place, path))


@pytest.mark.parametrize("path", ["..", "../secret", "deep/../../secret", "/etc/passwd", "./../ws/notes"])
def test_no_path_leads_out(place: Path, path: str) -> None:
    with pytest.raises(PermissionDenied, match="leads out of /workspace"):
        resolve_file(own(place, path))


@pytest.mark.parametrize("path", ["../secret", "deep/../../secret", "../ws/notes", "../new"])
def test_no_path_leads_out_to_be_written(place: Path, path: str) -> None:
    with pytest.raises(PermissionDenied, match="leads out of /workspace"):
        resolve_for_writing(own(place, path))


@pytest.mark.parametrize("path", ["none", "deep/none", "none/deeper/still", "notes/below", "none/../notes"])
def test_what_isnt_there_has_the_name_that_it_would_have(place: Path, path: str) -> None:
    with found(resolve_file, own(place, path)) as what:
        assert what.real == "/workspace/" + path.split("/..")[0]
        assert isinstance(what.error, NotFound)
        with pytest.raises(NotFound, match="there is no such file"):
            what.require()


def test_what_isnt_there_is_judged_where_links_lead(place: Path, tmp_path: Path) -> None:
    """Or whoever may make links could find out what there is in directories that it mustn't look at."""
    (place / "link").symlink_to(tmp_path)
    (place / "dangling").symlink_to(tmp_path / "nowhere")

    paths = {"link/none": "none", "link/no/ne": "no/ne", "dangling": "nowhere", "dangling/x": "nowhere/x"}
    for path, real in paths.items():
        with found(resolve_file, hosts(f"{place}/{path}")) as what:
            assert (what.real, type(what.error)) == (str(tmp_path / real), NotFound)


def test_a_spot_is_a_directory_and_a_name(place: Path) -> None:
    for path, name in (("deep/new", "new"), ("deep/file", "file")):
        with found(resolve_for_writing, own(place, path)) as what:
            assert (what.real, what.last) == (f"/workspace/deep/{name}", name)
            assert os.path.samestat(os.fstat(what.fd), os.stat(place / "deep"))


def test_a_spot_is_where_a_link_leads(place: Path) -> None:
    (place / "there").symlink_to("deep/file")
    (place / "nowhere").symlink_to("deep/new")

    for path, real in (("there", "/workspace/deep/file"), ("nowhere", "/workspace/deep/new")):
        with found(resolve_for_writing, own(place, path)) as what:
            assert what.real == real


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("none/new", NotFound, "no directory /workspace/none"),
        ("notes/new", NotFound, "no directory /workspace/notes"),
        ("new/", BadRequest, "is a directory"),
        ("deep/..", BadRequest, "is a directory"),
        (".", BadRequest, "is a directory"),
    ],
)
def test_there_is_no_spot_without_a_directory_and_a_name(
    place: Path, path: str, error: type[CallError], text: str
) -> None:
    with found(resolve_for_writing, own(place, path)) as what, pytest.raises(error, match=text):
        what.require()


def test_links_in_a_circle_are_refused(place: Path) -> None:
    (place / "one").symlink_to("two")
    (place / "two").symlink_to("one")

    for look in (resolve_file, resolve_for_writing):
        with pytest.raises(PermissionDenied, match="in circles"):
            look(own(place, "one"))


@pytest.mark.parametrize("path", ["/proc/self/root/etc/passwd", "/proc/self/cwd", "/proc/self/exe", "/dev/fd/0"])
def test_links_of_proc_are_not_followed(path: str) -> None:
    with found(resolve_file, hosts(path)) as what, pytest.raises(PermissionDenied, match="isn't followed"):
        what.require()
    with found(resolve_for_writing, hosts(path)) as what, pytest.raises((PermissionDenied, NotFound)):
        what.require()


@pytest.mark.parametrize("length", [4096, 100_000, 8 << 20])
def test_a_path_that_is_too_long_is_refused_at_once(place: Path, length: int) -> None:
    for look in (resolve_file, resolve_for_writing):
        with pytest.raises(BadRequest, match="at most 4095"):
            look(own(place, "x/" * (length // 2)))


def test_the_longest_path_is_walked(place: Path) -> None:
    with found(resolve_for_writing, own(place, "x/" * 2046 + "y")) as what, pytest.raises(NotFound):
        what.require()


def test_a_name_that_is_too_long_is_said_to_be(place: Path) -> None:
    with found(resolve_file, own(place, "x" * 256)) as what, pytest.raises(BadRequest, match="too long"):
        what.require()


def test_a_name_that_isnt_utf_8_is_refused(place: Path) -> None:
    os.symlink("notes", os.fsencode(place) + b"/\xff")
    (place / "link").symlink_to(os.fsdecode(b"deep/\xfe"))
    (place / "deep" / os.fsdecode(b"\xfe")).write_text("odd")

    for look in (resolve_file, resolve_for_writing):
        with found(look, own(place, "link")) as what, pytest.raises(BadRequest, match="isn't UTF-8"):
            what.require()


def test_a_file_may_be_called_deleted(place: Path) -> None:
    (place / "x (deleted)").write_text("it is there")

    with found(resolve_file, own(place, "x (deleted)")) as what:
        assert what.real == "/workspace/x (deleted)"


def test_what_is_called_like_ones_own_is_not_found_on_the_host(place: Path) -> None:
    (place / "link").symlink_to(place / "deep")

    for path in (f"{place}/deep/file", f"{place}/link/file", f"{place}/link/none", f"{place}/deep"):
        with pytest.raises(PermissionDenied, match="has the name of one of your own") as caught:
            resolve_file(hosts(path, hidden=(f"{place}/deep",)))
        assert str(caught.value).count("deep") == path.count("deep")
    with found(resolve_file, hosts(f"{place}/deeper", hidden=(f"{place}/deep",))) as what:
        assert isinstance(what.error, NotFound)


def test_nothing_stays_open(place: Path) -> None:
    (place / "out").symlink_to("/etc/passwd")
    (place / "dangling").symlink_to("deep/none")
    before = sorted(os.listdir("/proc/self/fd"))

    for path in ("notes", "none", "out", "dangling", "deep/none/x", "..", "x" * 300, "x" * 5000):
        for look in (resolve_file, resolve_for_writing):
            with contextlib.suppress(CallError):
                look(own(place, path)).close()

    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_host_without_openat2_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openat2, "_OPENAT2", 9999)  # no Linux has a call of that number

    for look in (resolve_file, resolve_for_writing):
        with pytest.raises(Unavailable, match="openat2"):
            look(own(place, "deep/file"))


def test_a_way_that_is_swapped_all_the_time_never_leads_out(place: Path, tmp_path: Path) -> None:
    """Two threads: one exchanges a directory for a link that leads out, the other looks."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    (place / "here").mkdir()
    (place / "here" / "file").write_text("honest")
    (place / "swap").symlink_to(outside)
    over = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not over.is_set():
            exchange(place / "here", place / "swap")
            swaps += 1

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        outcomes = [outcome(place, "here/file") for _ in range(3000)]
    finally:
        over.set()
        attacker.join()

    assert set(outcomes) <= {"honest", "refused", "absent"}
    assert outcomes.count("honest") > 100, outcomes.count("honest")
    assert outcomes.count("refused") > 100, outcomes.count("refused")
    assert swaps > 1000


def outcome(place: Path, path: str) -> str:
    try:
        with found(resolve_file, own(place, path)) as what:
            if what.error is not None:
                return "absent"
            with open(f"/proc/self/fd/{what.fd}") as file:
                text = file.read()
            assert what.real in ("/workspace/here/file", "/workspace/swap/file"), what.real
            return text
    except PermissionDenied:
        return "refused"
    except NotFound:
        return "absent"


def exchange(one: Path, other: Path) -> None:
    """Each takes the other's name, in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0, ctypes.get_errno()


def test_what_is_found_may_be_anything(place: Path) -> None:
    """That it is no file to read is for whoever reads it to say: only to those who may look."""
    os.mkfifo(place / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place / "socket"))

    for name in ("fifo", "socket", "deep"):
        with found(resolve_file, own(place, name)) as what:
            assert what.error is None
