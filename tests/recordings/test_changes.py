"""What a command has changed is kept by its files alone, and made again wherever the recording comes from."""

import json
import os
from functools import partial
from pathlib import Path

import pytest

from agentos.recordings import changes
from agentos.recordings.changes import INDEX, NotKept, Place, put_changes, save_changes
from agentos.services.snapshots import beneath


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace as a command finds it, and beside it a copy of it, ``again``."""
    for name in ("work", "again"):
        top = tmp_path / name
        (top / "sub" / "deep").mkdir(parents=True)
        for path in ("a", "b", "sub/c", "sub/deep/d"):
            (top / path).write_text(path)
        (top / "link").symlink_to("a")
    return tmp_path / "work"


def look(top: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in top.rglob("*"):
        shown = f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text() if path.is_file() else None
        found[str(path.relative_to(top))] = shown, 0 if path.is_symlink() else path.stat().st_mode
    return found


def open_place(top: Path, layered: bool = False) -> Place:
    return Place(partial(beneath.open_top, str(top)), layered)


def keep(work: Path, command: str, room: int = 1 << 20) -> tuple[int, int]:
    """Run a command, and keep what it changes as that of call 7."""
    place = open_place(work)
    before = place.list()
    assert os.system(f"cd {work} && {command}") == 0
    return save_changes(place, before, work.parent / "files" / "7", room)


def put(work: Path) -> list[str]:
    return [path for path, _ in put_changes(work.parent, 7, open_place(work.parent / "again").open, None)]


COMMANDS = {
    "created": "echo x > new; mkdir -p x/y; echo z > x/y/z",
    "changed": "echo more >> a; : > b; chmod 600 sub/c",
    "deleted": "rm a; rm -r sub",
    "moved": "mv sub other; mv a b",
    "replaced by another type": "rm a; mkdir a; echo in > a/in; rm -r sub; echo file > sub; ln -sfn b link",
    "a new directory of the same name": "rm -r sub; mkdir sub; echo new > sub/new",
    "linked": "ln -s nowhere dangling; ln a hard; rm link",
    "closed": "mkdir shut; echo in > shut/in; chmod 500 shut",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_what_a_command_has_changed_is_made_again(work: Path, command: str) -> None:
    paths, size = keep(work, command)

    assert paths > 0
    assert size > 0
    assert put(work) == []
    assert look(work.parent / "again") == look(work)


def test_nothing_is_kept_of_a_command_that_changes_nothing(work: Path) -> None:
    assert keep(work, "cat a sub/c > /dev/null; ls -R > /dev/null") == (0, 0)
    assert not (work.parent / "files").exists()


def test_only_what_has_changed_is_copied(work: Path) -> None:
    (work / "large").write_bytes(bytes(1 << 20))
    keep(work, "echo more >> a")

    assert sorted(os.listdir(work.parent / "files" / "7")) == ["0", INDEX]


def test_as_much_as_there_is_room_for_is_kept(work: Path) -> None:
    assert keep(work, "head -c 1000 /dev/zero > a", room=1000)[0] == 1


def test_what_is_too_much_is_not_kept_and_says_so(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotKept, match="more than 1,000 bytes"):
        keep(work, "head -c 1001 /dev/zero > a", room=1000)
    monkeypatch.setattr(changes, "MAX_ENTRIES", 7)
    assert len(open_place(work).list()) == 7
    (work / "sub" / "deep" / "more").touch()  # in the directory that is listed last
    with pytest.raises(NotKept, match="more than 7 files"):
        open_place(work).list()


@pytest.mark.parametrize(
    ("command", "why"), [("mkfifo pipe", "a FIFO"), ("touch \"$(printf '\\377')\"", "a file whose name isn't UTF-8")]
)
def test_what_can_not_be_kept_says_so(work: Path, command: str, why: str) -> None:
    with pytest.raises(NotKept, match=why):
        keep(work, command)


@pytest.mark.parametrize("path", ["../out", "/out", "sub/../../out", "", ".", "sub//c", "a\0b"])
def test_a_recording_that_leads_out_of_the_workspace_is_refused(work: Path, path: str) -> None:
    kept = work.parent / "files" / "7"
    kept.mkdir(parents=True)
    (kept / INDEX).write_text(json.dumps([{"path": path, "kind": "file"}]))
    (kept / "0").write_text("x")

    with pytest.raises(NotKept, match="is no path in a workspace"):
        put(work)


@pytest.mark.parametrize("index", [b"{}", b"\xff", b'[{"x":' + b"[" * 100_000], ids=["an object", "no UTF-8", "nested"])
def test_a_recording_whose_index_can_not_be_is_refused(work: Path, index: bytes) -> None:
    kept = work.parent / "files" / "7"
    kept.mkdir(parents=True)
    (kept / INDEX).write_bytes(index)

    with pytest.raises(NotKept, match=INDEX):
        put(work)


def test_what_was_not_kept_is_refused_and_leaves_nothing_open(work: Path) -> None:
    before = os.listdir("/proc/self/fd")

    with pytest.raises(NotKept, match="what call 7 has changed can't be read: No such file"):
        put(work)
    assert os.listdir("/proc/self/fd") == before


def test_files_with_holes_that_no_kernel_keeps_are_not_put(work: Path) -> None:
    keep(work, "echo x > new; echo y > other")
    os.truncate(work.parent / "files" / "7" / "1", 1 << 40)

    with pytest.raises(NotKept, match=r"has [0-9,]+ bytes, and at most 268,435,456 are kept"):
        put(work)
    assert not (work.parent / "again" / "new").exists()


def test_files_of_the_largest_size_are_put(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(work, "echo x > new; echo y > other")
    monkeypatch.setattr(changes, "MAX_BYTES", 4)

    assert put(work) == []
    assert look(work.parent / "again") == look(work)


def test_nothing_is_put_past_a_link_of_the_program(work: Path) -> None:
    keep(work, "echo new > sub/new; echo b >> b")
    again, out = work.parent / "again", work.parent / "out"
    out.mkdir()
    os.rename(again / "sub", again / "former")
    (again / "sub").symlink_to(out)

    assert put(work) == ["sub/new"]
    assert not [*out.iterdir()]
    assert (again / "b").read_text() == "bb\n"
