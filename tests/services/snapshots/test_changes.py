"""What a layer has changed is found from its format, whatever lies in it and in the directory."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentos.services.snapshots import beneath, changes
from agentos.services.snapshots.changes import CHANGED, CLOCK_SET_BACK, TooManyChanges

from .conftest import ROOT, Overlaid


async def find(overlaid: Overlaid) -> Mapping[str, str]:
    return {change.shown_path: change.what for change in (await overlaid.diff()).changes}


async def test_an_untouched_overlay_has_no_changes(overlaid: Overlaid) -> None:
    assert await find(overlaid) == {}


async def test_each_kind_of_change_is_found(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "new\n")
    overlaid.write("sub/made.txt", "x\n")
    overlaid.delete("sub/b.txt")
    (overlaid.tree / "link").symlink_to("sub")
    overlaid.make("fresh")

    assert await find(overlaid) == {
        "a.txt": "changed",
        "fresh": "created",
        "link": "changed",
        "sub/b.txt": "deleted",
        "sub/made.txt": "created",
    }


async def test_a_copy_without_a_change_is_none(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "a\n")
    (overlaid.tree / "sub").mkdir()

    assert await find(overlaid) == {}


async def test_a_mode_alone_is_a_change_and_set_id_bits_are_not(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "a\n", mode=0o4755)
    overlaid.write("sub/b.txt", "b\n", mode=0o6644)

    shown = (await overlaid.diff()).changes

    assert [(change.path, change.mode) for change in shown] == [("a.txt", 0o755)]


async def test_a_removed_directory_is_all_that_was_in_it(overlaid: Overlaid) -> None:
    overlaid.delete("old")

    assert await find(overlaid) == {"old": "deleted", "old/deep": "deleted", "old/deep/d.txt": "deleted"}


async def test_an_opaque_directory_hides_what_is_below_also_in_directories_of_its_own(overlaid: Overlaid) -> None:
    (overlaid.make("old") / "deep").mkdir()
    overlaid.write("old/deep/e.txt", "e\n")

    assert await find(overlaid) == {"old/deep/d.txt": "deleted", "old/deep/e.txt": "created"}


async def test_a_file_for_a_directory_and_a_directory_for_a_file(overlaid: Overlaid) -> None:
    overlaid.write("old", "now a file\n")
    overlaid.make("a.txt")
    overlaid.write("a.txt/in", "x\n")

    assert await find(overlaid) == {
        "a.txt": "type",
        "a.txt/in": "created",
        "old": "type",
        "old/deep": "deleted",
        "old/deep/d.txt": "deleted",
    }


async def test_what_is_no_file_is_told_and_never_opened(overlaid: Overlaid) -> None:
    os.mkfifo(overlaid.tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(overlaid.tree / "socket"))
    if ROOT:
        os.mknod(overlaid.tree / "device", 0o020666, os.makedev(1, 3))

    found = (await overlaid.diff()).changes

    assert {change.path for change in found} == {"fifo", "socket", *(["device"] if ROOT else [])}
    assert all(change.blocked for change in found)


async def test_names_of_any_bytes_are_shown(overlaid: Overlaid) -> None:
    overlaid.write("two\nlines", "x\n")
    (overlaid.tree / os.fsdecode(b"bad\xff")).write_text("x")

    found = {change.shown_path: change for change in (await overlaid.diff()).changes}

    assert not found["two\nlines"].blocked
    assert found["bad\\xff"].blocked == changes.NOT_UTF8


@pytest.mark.parametrize("was", ["file", "link", "directory"])
async def test_what_is_swapped_as_it_is_read_hides_nothing_else(
    overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch, was: beneath.Kind
) -> None:
    for name in ("before", "behind"):
        (overlaid.tree / name).symlink_to("x") if was == "file" else overlaid.write(name, "x\n")
    entry, away = overlaid.tree / "swapped", overlaid.upper / "away"
    if was == "directory":
        entry.mkdir()
    elif was == "link":
        entry.symlink_to("x")
    else:
        entry.write_text("x")

    def swap(mode: int) -> beneath.Kind:
        """Between the look at it and the reading."""
        found = beneath.kind_of(mode)
        if found == was and not os.path.lexists(away):
            entry.rename(away)
            entry.write_text("y") if was == "link" else entry.symlink_to("before")
        return found

    monkeypatch.setattr(changes, "kind_of", swap)

    shown = {one.path: one.blocked for one in (await overlaid.diff()).changes}

    assert shown == {"before": "", "behind": "", "swapped": "" if was == "directory" else changes.SWAPPED}


async def test_attributes_that_only_overlayfs_may_set_lead_nowhere(overlaid: Overlaid) -> None:
    target = overlaid.write("sub/b.txt", "")
    os.setxattr(target, "user.overlay.metacopy", b"")
    os.setxattr(target, "user.overlay.redirect", b"/../../etc/passwd")
    os.setxattr(overlaid.tree / "sub", "user.overlay.redirect", b"/old")
    os.setxattr(overlaid.tree / "sub", "user.overlay.opaque", b"x")

    assert await find(overlaid) == {"sub/b.txt": "changed"}


async def test_what_the_host_has_changed_since_is_a_conflict(overlaid: Overlaid) -> None:
    for name in ("a.txt", "sub/c.txt"):
        overlaid.write(name, "the agent's\n")
    (overlaid.project / "a.txt").write_text("the host's\n")

    assert {change.path: change.conflict for change in (await overlaid.diff()).changes} == {
        "a.txt": CHANGED,
        "sub/c.txt": "",
    }


async def test_with_a_clock_that_was_set_back_all_is_a_conflict(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "new\n")
    record = overlaid.state / "layers" / "w" / "record.json"
    since = (await overlaid.diff()).changes[0].under
    assert since is not None
    record.write_text(record.read_text().replace('"since":1', '"since":9'))

    assert [change.conflict for change in (await overlaid.diff()).changes] == [CLOCK_SET_BACK]


async def test_a_directory_of_any_depth_is_searched(overlaid: Overlaid) -> None:
    fd, depth = os.open(overlaid.tree, os.O_RDONLY), 1500
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)

    found = (await overlaid.diff()).changes

    assert len(found) == depth


async def test_below_a_path_that_is_too_long_nothing_is_searched_and_that_is_told(overlaid: Overlaid) -> None:
    fd, name = os.open(overlaid.tree, os.O_RDONLY), "n" * 250
    for _ in range(20):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)

    found = (await overlaid.diff()).changes

    assert [bool(change.blocked) for change in found] == [*[False] * (len(found) - 1), True]
    assert len(found) < 20


async def test_a_layer_with_more_changes_than_are_listed_is_refused(
    overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_CHANGES", 3)
    overlaid.delete("old")
    overlaid.write("a.txt", "new\n")

    with pytest.raises(TooManyChanges, match="more than 3"):
        await overlaid.diff()


async def test_a_path_chooses_what_is_at_it_and_below(overlaid: Overlaid) -> None:
    for name in ("sub/b.txt", "sub/c.txt", "subway", "a.txt"):
        overlaid.write(name, "new\n")

    chosen = await overlaid.diff("sub", "a.txt")

    assert [change.path for change in chosen.changes] == ["a.txt", "sub/b.txt", "sub/c.txt"]


async def test_the_digest_is_of_what_would_be_applied(overlaid: Overlaid, place: Path) -> None:
    overlaid.write("a.txt", "one\n")
    first = (await overlaid.diff()).digest

    assert (await overlaid.diff()).digest == first
    overlaid.write("a.txt", "two\n")
    assert (await overlaid.diff()).digest != first


@pytest.mark.parametrize("top", ["", "inner/"])
async def test_gits_index_alone_is_no_change_and_with_a_commit_it_is_one(overlaid: Overlaid, top: str) -> None:
    index = overlaid.project / f"{top}.git/index"
    index.parent.mkdir(parents=True)
    index.write_text("before")

    overlaid.write(f"{top}.git/index", "refreshed")
    assert await find(overlaid) == {}

    overlaid.write(f"{top}.git/refs", "main")
    assert await find(overlaid) == {f"{top}.git/index": "changed", f"{top}.git/refs": "created"}
