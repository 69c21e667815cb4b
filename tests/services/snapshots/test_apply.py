"""What was shown is made in the directory, whole or not at all, and can be taken back; the host's own is never lost."""

import contextlib
import hashlib
import os
import stat
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable
from itertools import product
from pathlib import Path

import pytest
import trio

from agentos.agents.workspaces.workspace import Workspaces
from agentos.services.snapshots import beneath, changes, run
from agentos.services.snapshots.choice import BadChoice, Wanted
from agentos.services.snapshots.overlays import Changed, NoOverlay, Overlays
from agentos.services.snapshots.records import BadLayer, CannotApply
from agentos.services.snapshots.run import CHANGED_BY_AGENT, CHANGED_SINCE_KEPT, LATE
from tests.support.mounts import small_disk

from .conftest import AGENT, OWNER, ROOT, Overlaid, fill, read_tree

root_only = pytest.mark.skipif(not ROOT, reason="only root gives files away and mounts")


def change_much(overlaid: Overlaid) -> None:
    """Changes of every kind."""
    overlaid.write("a.txt", "new\n", mode=0o755)
    overlaid.write("sub/made.txt", "x\n")
    overlaid.delete("sub/b.txt")
    overlaid.make("fresh")
    overlaid.write("fresh/in.txt", "y\n")
    (overlaid.tree / "fresh" / "link").symlink_to("in.txt")
    overlaid.write("old", "now a file\n")
    overlaid.make("link")
    overlaid.write("link/z.txt", "z\n")
    (overlaid.tree / "sub").chmod(0o700)


AFTER = {
    "a.txt": "new\n",
    "fresh": None,
    "fresh/in.txt": "y\n",
    "fresh/link": "-> in.txt",
    "link": None,
    "link/z.txt": "z\n",
    "old": "now a file\n",
    "sub": None,
    "sub/c.txt": "c\n",
    "sub/made.txt": "x\n",
}


async def test_all_that_was_shown_is_applied_and_undone(overlaid: Overlaid) -> None:
    before, modes = read_tree(overlaid.project), look(overlaid.project)
    change_much(overlaid)

    applied = await overlaid.apply()

    assert applied.left == {}
    assert read_tree(overlaid.project) == AFTER
    assert stat.S_IMODE((overlaid.project / "a.txt").stat().st_mode) == 0o755
    assert {path.lstat().st_uid for path in overlaid.project.rglob("*")} == {OWNER}
    assert (await overlaid.diff()).changes == []

    undone = await overlaid.undo()

    assert undone.left == {}
    assert (read_tree(overlaid.project), look(overlaid.project)) == (before, modes)


def look(top: Path) -> dict[str, tuple[int, int, int]]:
    """Modes, owners and, of files, times."""
    found = {str(path.relative_to(top)): path.lstat() for path in top.rglob("*")}
    return {
        name: (one.st_mode, one.st_uid, one.st_mtime_ns if stat.S_ISREG(one.st_mode) else 0)
        for name, one in found.items()
    }


async def test_after_an_undo_the_changes_are_shown_again_without_a_conflict(overlaid: Overlaid) -> None:
    change_much(overlaid)
    shown = [change.path for change in (await overlaid.diff()).changes]
    await overlaid.apply()
    await overlaid.undo()

    again = await overlaid.apply()

    assert (sorted(again.paths), again.left) == (sorted(shown), {})
    assert read_tree(overlaid.project) == AFTER


async def test_of_what_was_applied_the_agents_next_change_is_no_conflict_and_the_hosts_is(overlaid: Overlaid) -> None:
    for name in ("a.txt", "sub/b.txt"):
        overlaid.write(name, "one\n")
    await overlaid.apply()
    for name in ("a.txt", "sub/b.txt"):
        overlaid.write(name, "two\n")
    (overlaid.project / "sub/b.txt").write_text("the host's\n")

    applied = await overlaid.apply()

    assert applied.paths == ["a.txt"]
    assert list(applied.left) == ["sub/b.txt"]
    assert (overlaid.project / "sub/b.txt").read_text() == "the host's\n"


async def test_a_path_is_applied_with_the_new_directories_that_it_is_in(overlaid: Overlaid) -> None:
    change_much(overlaid)

    applied = await overlaid.apply("fresh/in.txt")

    assert applied.paths == ["fresh", "fresh/in.txt"]
    assert (overlaid.project / "a.txt").read_text() == "a\n"
    assert [change.path for change in (await overlaid.diff("fresh")).changes] == ["fresh/link"]


async def test_what_was_not_shown_is_not_applied(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "shown\n")
    digest = (await overlaid.diff()).digest
    overlaid.write("a.txt", "swapped\n")

    with pytest.raises(Changed):
        await overlaid.overlays.apply("w", Wanted(digest))

    assert (overlaid.project / "a.txt").read_text() == "a\n"


async def test_a_file_that_the_agent_changes_while_it_is_copied_is_left(
    overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlaid.write("a.txt", "shown\n")
    overlaid.write("sub/b.txt", "shown\n")
    at(monkeypatch, "_stage", lambda: overlaid.write("a.txt", "swapped\n"))

    applied = await overlaid.apply()

    assert (applied.paths, applied.left) == (["sub/b.txt"], {"a.txt": CHANGED_BY_AGENT})
    assert (overlaid.project / "a.txt").read_text() == "a\n"


def at(monkeypatch: pytest.MonkeyPatch, place: str, happens: Callable[[], object]) -> None:
    """Have something happen between two steps of a run, once: before the first call of a function of it."""
    function = getattr(run, place)
    done: list[object] = []

    def call(*arguments: object) -> object:
        if not done:
            done.append(happens())
        return function(*arguments)

    monkeypatch.setattr(run, place, call)


@pytest.mark.parametrize("moment", ["_save", "_stage", "_act"])
async def test_what_the_host_changes_in_the_last_moment_stays(
    overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    overlaid.write("a.txt", "the agent's\n")
    overlaid.delete("sub/b.txt")
    overlaid.write("sub/made.txt", "the agent's\n")
    overlaid.delete("old")

    def change() -> None:
        for name in ("a.txt", "sub/b.txt", "sub/made.txt", "old/deep/own.txt"):
            (overlaid.project / name).write_text("the host's\n")

    at(monkeypatch, moment, change)
    applied = await overlaid.apply()

    for name in ("a.txt", "sub/b.txt", "sub/made.txt", "old/deep/own.txt"):
        assert (overlaid.project / name).read_text() == "the host's\n"
    assert applied.left.keys() == {"a.txt", "sub/b.txt", "sub/made.txt", "old", "old/deep"}
    assert applied.left["a.txt"] == LATE


async def test_each_side_of_a_conflict_can_be_chosen(overlaid: Overlaid) -> None:
    for name in ("a.txt", "sub/b.txt", "sub/c.txt"):
        overlaid.write(name, "the agent's\n")
        (overlaid.project / name).write_text("the host's\n")

    applied = await overlaid.apply(**{"a__txt": "ours", "sub/b__txt": "theirs"})

    assert (applied.paths, list(applied.left)) == (["a.txt"], ["sub/c.txt"])
    assert (overlaid.project / "a.txt").read_text() == "the agent's\n"
    assert [change.path for change in (await overlaid.diff()).changes] == ["sub/c.txt"]
    await overlaid.undo()
    assert (overlaid.project / "a.txt").read_text() == "the host's\n"


OBEYED = {
    ".vscode/tasks.json": ".vscode",
    "sub/.envrc": "sub/.envrc",
    ".git/hooks/pre-commit": ".git/hooks",
    ".git/config": ".git/config",
    ".git/objects/info/alternates": ".git/objects/info/alternates",
    ".git/refs/heads/main": ".git",
    ".git/refs/tags/v1": ".git",
    ".git/refs/.vscode/tasks.json": ".git/refs/.vscode/tasks.json",
    "module/.git": "module/.git",
    "deep/er/conftest.py": "deep/er/conftest.py",
    ".python-version": ".python-version",
    "tool/.venv/bin/python": "tool/.venv/bin/python",
    ".git/lazygit.yml": ".git/lazygit.yml",
    "sub/.config/hk.pkl": "sub/.config/hk.pkl",
    "captainhook.json": "captainhook.json",
    # files that say where the configuration is
    ".hg/sharedpath": ".hg/sharedpath",
    "sub/.sl/requires": "sub/.sl/requires",
    "sub/.jj/repo": "sub/.jj/repo",
    "sub/.pdbrc": "sub/.pdbrc",
    "bare/refs/x": "bare/refs",
    "docs/HEAD": "docs/HEAD",
    # what programs read that nobody has told to look: caches, and the configuration of hooks, debuggers and checkouts
    "sub/.direnv/flake-profile.rc": "sub/.direnv",
    ".lintstagedrc.mjs": ".lintstagedrc.mjs",
    "doc/latexmkrc": "doc/latexmkrc",
    "$irbrc": "$irbrc",
    ".repo/repo/main.py": ".repo",
    "Nuget.Config": "Nuget.Config",
    "presets/claude-code.toml": "presets",
    "sub/presets/node.toml": "sub/presets",
    # what other systems take for such a name
    ".GIT/hooks/pre-commit": ".GIT/hooks/pre-commit",
    "sub/.g\u200cit/config": "sub/.g\u200cit/config",
    "GIT~1/config": "GIT~1/config",
    ".git /config": ".git /config",
    ".git::$INDEX_ALLOCATION/config": ".git::$INDEX_ALLOCATION/config",
    ".VSCode/tasks.json": ".VSCode/tasks.json",
    "\uff0eenvrc": "\uff0eenvrc",
    "Conftest.py": "Conftest.py",
}


PLAIN = ("Refs/x", "README...", "presets/notes.txt", "a:b", "git~2/x", "Digit/.gitignore", "..x")


async def test_names_that_host_tools_obey_are_applied_only_by_name(overlaid: Overlaid) -> None:
    for name in OBEYED:
        overlaid.write(name, "ref: x\n")  # as a ref must have
    for name, target in {"out": "/etc/passwd", "up": "../x", "sub/round": "c.txt/../../../x"}.items():
        (overlaid.tree / name).symlink_to(target)
    overlaid.write("plain.txt", "x\n")
    for name in PLAIN:
        overlaid.write(name, "x\n")
    (overlaid.tree / "sub/inside").symlink_to("../a.txt")

    shown = {change.path: change.root for change in (await overlaid.diff()).changes if change.kind != "directory"}
    assert shown == {
        **OBEYED,
        "out": "out",
        "up": "up",
        "sub/round": "sub/round",
        "sub/inside": "",
        "plain.txt": "",
        **dict.fromkeys(PLAIN, ""),
    }

    with pytest.raises(BadChoice, match="also: sub is no name"):
        await overlaid.apply(also=["sub"])
    await overlaid.apply(also=[".git/refs/tags"])
    assert not (overlaid.project / ".git/refs/heads").exists()
    assert (overlaid.project / ".git/refs/tags/v1").exists()
    await overlaid.apply(also=[".git"])

    assert (overlaid.project / "plain.txt").exists()
    assert {name for name in OBEYED if (overlaid.project / name).exists()} == {
        ".git/refs/heads/main",
        ".git/refs/tags/v1",
    }
    assert not [name for name in ("out", "up", "sub/round") if (overlaid.project / name).is_symlink()]

    rest = [name for name in OBEYED if OBEYED[name] != ".git"]
    left = await overlaid.apply(also=[*rest, "out", "up", "sub/round"])

    assert left.left == {}
    assert [name for name in OBEYED if not (overlaid.project / name).exists()] == []


@pytest.mark.parametrize("top", ["", ".bare/", "deep/er/"])
async def test_what_lies_in_a_repository_of_the_hosts_is_applied_only_by_name(overlaid: Overlaid, top: str) -> None:
    for name in ("HEAD", "refs/heads/main"):
        (overlaid.project / top / name).parent.mkdir(parents=True, exist_ok=True)
        (overlaid.project / top / name).write_text("ref: refs/heads/main\n")
    changed = {
        "config": "config",
        "hooks/pre-commit": "hooks",
        "modules/x/config": "modules",
        "objects/ab/c": "objects",
    }
    for name in changed:
        overlaid.write(f"{top}{name}", "x\n")
    overlaid.write("beside/config", "x\n")
    overlaid.delete(f"{top}refs")

    shown = {change.path: change.root for change in (await overlaid.diff()).changes if change.kind != "directory"}

    assert shown == {
        **{f"{top}{name}": f"{top}{root}" for name, root in changed.items()},
        f"{top}refs/heads/main": f"{top}refs",
        "beside/config": "" if top else "beside",
    }


async def test_what_a_configuration_of_the_hosts_leads_to_is_applied_only_by_name(overlaid: Overlaid) -> None:
    led = {".githooks": "git's", "tools/clean.sh": "git's", "sub/deep/er/conf": "git's"}
    overlaid.overlays = Overlays(overlaid.state, lambda directory: led if directory == str(overlaid.project) else {})
    for name in (".githooks/a/pre-commit", "tools/clean.sh", "tools/clean.sh2", "sub/deep/er/x", ".vscode/tasks.json"):
        overlaid.write(name, "x\n")
    (overlaid.tree / "sub/deep/er/conf").symlink_to("x")

    shown = {one.path: (one.root, one.obeyed) for one in (await overlaid.diff()).changes if one.kind != "directory"}
    left = (await overlaid.apply(also=["tools/clean.sh"])).left

    assert shown == {
        ".githooks/a/pre-commit": (".githooks", "git's"),
        "tools/clean.sh": ("tools/clean.sh", "git's"),
        "tools/clean.sh2": ("", ""),
        "sub/deep/er/x": ("", ""),
        "sub/deep/er/conf": ("sub/deep/er/conf", "git's"),
        ".vscode/tasks.json": (".vscode", "a program outside of the jail obeys it"),
    }
    assert {name for name in left if not (overlaid.tree / name).is_dir()} == {
        *(".githooks/a/pre-commit", "sub/deep/er/conf", ".vscode/tasks.json")
    }


async def test_a_link_in_the_place_of_a_directory_around_such_a_name_is_applied_only_by_name(
    overlaid: Overlaid,
) -> None:
    led = {"sub/c.txt": "git's"}
    overlaid.overlays = Overlays(overlaid.state, lambda _: led)
    overlaid.tree.joinpath("sub").symlink_to("elsewhere")

    shown = {one.path: one.root for one in (await overlaid.diff()).changes}
    led[""] = "too many"

    assert shown == {"sub": "sub", "sub/b.txt": "", "sub/c.txt": "sub/c.txt"}
    assert {one.path: one.root for one in (await overlaid.diff()).changes} == {name: name for name in shown}


async def test_what_can_not_be_applied_is_left_and_told(overlaid: Overlaid) -> None:
    os.mkfifo(overlaid.tree / "fifo")
    (overlaid.tree / os.fsdecode(b"bad\xff")).write_text("x")
    overlaid.write("two\nlines", "x\n")

    applied = await overlaid.apply()

    assert (applied.paths, sorted(applied.left)) == (["two\nlines"], ["bad\\xff", "fifo"])


async def test_no_set_id_bit_and_no_attribute_of_the_agents_is_applied(overlaid: Overlaid) -> None:
    file = overlaid.write("prog", "#!/bin/sh\n", mode=0o755)
    os.setxattr(file, "user.overlay.overlay.opaque", b"y")
    os.setxattr(file, "user.mine", b"x")
    file.chmod(0o6755)

    await overlaid.apply()

    made = overlaid.project / "prog"
    assert stat.S_IMODE(made.stat().st_mode) == 0o755
    assert os.listxattr(made) == []


async def test_a_file_with_another_name_elsewhere_is_replaced_and_not_written_through(
    overlaid: Overlaid, place: Path
) -> None:
    os.link(overlaid.project / "a.txt", place / "elsewhere")
    overlaid.write("a.txt", "new\n")

    await overlaid.apply(a__txt="ours")

    assert (place / "elsewhere").read_text() == "a\n"
    assert (overlaid.project / "a.txt").read_text() == "new\n"


async def test_what_was_kept_and_has_changed_since_is_not_put_back(overlaid: Overlaid, place: Path) -> None:
    os.link(overlaid.project / "a.txt", place / "elsewhere")
    overlaid.write("a.txt", "new\n")
    overlaid.delete("sub/b.txt")
    await overlaid.apply(a__txt="ours")
    (place / "elsewhere").write_text("another's\n")

    undone = await overlaid.undo()

    assert (undone.paths, undone.left) == (["sub/b.txt"], {"a.txt": CHANGED_SINCE_KEPT})
    assert (overlaid.project / "a.txt").read_text() == "new\n"


@pytest.fixture
async def apart(place: Path) -> AsyncIterator[Overlaid]:
    """As ``overlaid``, with the project on another file system than the state directory."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/dev/shm") as memory:
        if os.stat(memory).st_dev == os.stat(place).st_dev:
            pytest.skip("/dev/shm and /var/tmp are on one file system here")
        (place / "state").mkdir(mode=0o700)
        found = Overlaid(Path(memory), place / "state", Overlays(place / "state"))
        fill(found.project)
        await found.open()
        yield found


async def test_what_is_replaced_is_kept_for_undo_with_all_that_it_had(overlaid: Overlaid) -> None:
    await apply_and_undo(overlaid)


async def test_what_is_replaced_on_another_file_system_is_copied_for_undo_with_all_that_it_had(apart: Overlaid) -> None:
    await apply_and_undo(apart)


async def apply_and_undo(here: Overlaid) -> None:
    kept = here.project / "a.txt"
    kept.chmod(0o4750)
    os.setxattr(kept, "user.mine", b"x")
    os.utime(kept, ns=(1, 1_000_000_007))
    owner, before = kept.stat().st_uid, read_tree(here.project)
    here.write("a.txt", "new\n")
    change_much(here)

    assert not (await here.apply(a__txt="ours")).left
    changed = read_tree(here.project)
    assert not (await here.undo()).left

    assert changed != before
    assert read_tree(here.project) == before
    found = kept.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns, found.st_uid) == (0o4750, 1_000_000_007, owner)
    assert os.getxattr(kept, "user.mine") == b"x"


@pytest.mark.parametrize("what", ["created", "changed", "deleted"])
async def test_a_link_in_the_way_leads_nowhere(
    overlaid: Overlaid, place: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("b\n")
    match what:
        case "created":
            overlaid.write("sub/new.txt", "the agent's\n")
        case "changed":
            overlaid.write("sub/b.txt", "the agent's\n")
        case "deleted":
            overlaid.delete("sub/b.txt")

    def swap() -> None:
        (overlaid.project / "sub").rename(place / "moved")
        (overlaid.project / "sub").symlink_to(outside)

    at(monkeypatch, "_act", swap)
    applied = await overlaid.apply()

    assert read_tree(outside) == {"b.txt": "b\n"}
    assert (applied.paths, len(applied.left)) == ([], 1)


SWAPS = 10_000


async def test_a_directory_that_is_swapped_for_a_link_all_the_time_leads_nowhere(
    overlaid: Overlaid, place: Path
) -> None:
    outside, sub = place / "outside", overlaid.project / "sub"
    outside.mkdir()
    (outside / "b.txt").write_text("b\n")
    (overlaid.project / "other").symlink_to(outside)
    overlaid.write("sub/b.txt", "the agent's\n")
    overlaid.write("sub/new.txt", "the agent's\n")
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        with beneath.open_top(str(overlaid.project)) as top:
            while swaps < SWAPS or not applies:
                beneath.exchange(top, "sub", top, "other")
                swaps += 1

    applies: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, swap)
        while swaps < SWAPS:
            with contextlib.suppress(Changed, NoOverlay):
                applies.append(await overlaid.apply(also=()))
                await overlaid.undo()

    assert applies
    assert read_tree(outside) == {"b.txt": "b\n"}
    assert not sub.is_symlink() or os.readlink(sub) == str(outside)


async def test_the_last_apply_is_undone_first_and_the_hosts_later_changes_stay(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "one\n")
    first = await overlaid.apply()
    overlaid.write("sub/b.txt", "two\n")
    overlaid.write("sub/c.txt", "two\n")
    await overlaid.apply()
    (overlaid.project / "sub/c.txt").write_text("the host's\n")

    second = await overlaid.undo()

    assert (second.paths, second.left) == (["sub/b.txt"], {"sub/c.txt": LATE})
    assert (overlaid.project / "sub/c.txt").read_text() == "the host's\n"
    assert (await overlaid.undo(first.id)).paths == ["a.txt"]
    assert (overlaid.project / "a.txt").read_text() == "a\n"
    with pytest.raises(NoOverlay, match="of the last 5 applies none is left to undo"):
        await overlaid.undo()


@pytest.mark.parametrize("top", ["", "inner/"])
async def test_objects_of_git_are_only_added_and_stay_after_an_undo(overlaid: Overlaid, top: str) -> None:
    blob = b"blob 3\0new"
    name = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    old, new = f"11/{'0' * 38}", f"{name[:2]}/{name[2:]}"
    for name in (old, "pack/pack-1.pack"):
        (overlaid.project / f"{top}.git/objects/{name}").parent.mkdir(parents=True, exist_ok=True)
        (overlaid.project / f"{top}.git/objects/{name}").write_text("the host's")
    overlaid.delete(f"{top}.git/objects/{old}")
    overlaid.write(f"{top}.git/objects/pack/pack-1.pack", "other")
    overlaid.write(f"{top}.git/objects/{new}", "").write_bytes(zlib.compress(blob))
    overlaid.write(f"{top}.git/refs/heads/main", "ref: x\n")

    applied = await overlaid.apply(also=[f"{top}.git"])
    undone = await overlaid.undo()

    objects = {f"{top}.git/objects/{new}", f"{top}.git/objects/{new[:2]}"}
    assert {*applied.paths} == {*objects, f"{top}.git/refs", f"{top}.git/refs/heads", f"{top}.git/refs/heads/main"}
    assert {*undone.paths} == {*applied.paths} - objects
    place = overlaid.project / f"{top}.git"
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert found == {
        f"objects/{old}": b"the host's",
        f"objects/{new}": zlib.compress(blob),
        "objects/pack/pack-1.pack": b"the host's",
    }


async def test_before_the_first_apply_there_is_nothing_to_undo(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "one\n")

    with pytest.raises(NoOverlay, match="nothing was applied yet"):
        await overlaid.undo()


async def test_where_all_was_applied_the_next_life_begins_with_an_empty_layer(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "new\n")
    former = overlaid.upper
    await overlaid.open()
    assert overlaid.upper == former

    await overlaid.apply()
    await overlaid.open()

    assert overlaid.upper != former
    assert not former.exists()
    (overlaid.project / "a.txt").write_text("the host's\n")
    assert (await overlaid.diff()).changes == []


async def test_a_layer_with_changes_is_not_lost_for_another_directory(overlaid: Overlaid, place: Path) -> None:
    overlaid.write("a.txt", "new\n")
    (place / "other").mkdir()

    with pytest.raises(BadLayer, match="that aren't applied"):
        await overlaid.overlays.open("w", str(place / "other"), AGENT)

    await overlaid.apply()
    await overlaid.overlays.open("w", str(place / "other"), AGENT)
    assert (await overlaid.diff()).directory == str(place / "other")


async def test_the_changes_of_a_directory_are_not_applied_to_another_one_in_its_place(
    overlaid: Overlaid, place: Path
) -> None:
    overlaid.write("a.txt", "new\n")
    digest = (await overlaid.diff()).digest
    (place / "other").mkdir()
    (place / "other" / "a.txt").write_text("another\n")
    overlaid.project.rename(place / "former")
    (place / "other").rename(overlaid.project)

    with pytest.raises(BadLayer, match="was replaced by another directory"):
        await overlaid.overlays.apply("w", Wanted(digest))
    with pytest.raises(BadLayer, match="was replaced by another directory"):
        await overlaid.open()

    assert (overlaid.project / "a.txt").read_text() == "another\n"


async def test_a_sparse_file_stays_sparse_and_one_that_takes_too_long_to_read_is_left(
    overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_BYTES", 70 << 20)
    os.truncate(overlaid.write("sparse", "\0" * (1 << 20) + "y"), 64 << 20)
    os.truncate(overlaid.write("vast", ""), 1 << 40)

    applied = await overlaid.apply()

    made = overlaid.project / "sparse"
    assert (applied.paths, list(applied.left)) == (["sparse"], ["vast"])
    assert (made.stat().st_size, made.stat().st_blocks * 512 < 4 << 20) == (64 << 20, True)
    assert made.read_bytes()[1 << 20 : (1 << 20) + 2] == b"y\0"


@pytest.mark.parametrize("in_use", [True, False])
async def test_what_was_discarded_is_gone_and_the_next_life_begins_anew(overlaid: Overlaid, in_use: bool) -> None:
    overlaid.write("a.txt", "applied\n")
    await overlaid.apply()
    overlaid.write("a.txt", "discarded\n")
    former = overlaid.upper

    await overlaid.overlays.discard("w", lambda: in_use)

    assert former.exists() == in_use
    assert (await overlaid.apply()).paths == []
    await overlaid.open()
    assert not former.exists()
    assert (await overlaid.diff()).changes == []
    assert (overlaid.project / "a.txt").read_text() == "applied\n"
    assert (await overlaid.undo()).paths == ["a.txt"]


@root_only
async def test_what_another_user_puts_in_the_place_of_the_staging_directory_stays(
    overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlaid.write("a.txt", "new\n")
    kept = overlaid.project / "roots-own"
    kept.mkdir(mode=0o700)
    (kept / "data").write_text("x\n")

    def swap() -> None:
        [stage] = overlaid.project.glob(".agentos-apply-*")
        stage.rename(overlaid.project / "moved")
        kept.rename(stage)

    at(monkeypatch, "_act", swap)
    await overlaid.apply()

    [there] = overlaid.project.glob(".agentos-apply-*")
    assert read_tree(there) == {"data": "x\n"}


@root_only
async def test_an_agents_diff_tells_nothing_of_a_file_that_it_may_not_read(overlaid: Overlaid) -> None:
    secret = overlaid.project / "secret"
    for guess, mode in product(("right", "wrong"), (0o600, 0o640)):
        secret.write_text("right")
        secret.chmod(mode)
        overlaid.write("secret", guess, mode=mode)

        shown = await overlaid.overlays.diff("w", by_agent=True)

        assert [(change.path, change.what) for change in shown.changes] == [("secret", "changed")]


class Cut(BaseException):
    """The end of a kernel in the middle of something."""


async def test_the_next_kernel_finishes_what_was_cut_off(overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut() -> None:
        raise Cut

    change_much(overlaid)
    at(monkeypatch, "_act", cut)
    with pytest.raises(Cut):
        await overlaid.apply()
    monkeypatch.undo()

    await Workspaces(overlaid.state, ROOT).sweep()

    assert read_tree(overlaid.project) == AFTER


async def test_an_agent_without_an_overlay_has_none(overlaid: Overlaid) -> None:
    with pytest.raises(NoOverlay, match="stranger has no overlay"):
        await overlaid.overlays.diff("stranger")


@root_only
async def test_a_full_disk_changes_nothing(overlaid: Overlaid, place: Path) -> None:
    with small_disk(overlaid.project, "64k") as project:
        (project / "a.txt").write_text("a\n")
        await overlaid.overlays.open("x", str(project), AGENT)
        overlaid.name, overlaid.upper = "x", Path((await overlaid.overlays.open("x", str(project), AGENT)).upper)
        overlaid.write("a.txt", "x" * 30_000)
        overlaid.write("big", "x" * 100_000)

        with pytest.raises(OSError, match="No space left"):
            await overlaid.apply()

        assert read_tree(project) == {"a.txt": "a\n"}
        assert os.listdir(project) == ["a.txt"]
        assert (await overlaid.diff()).changes[0].conflict == ""


async def test_where_names_can_not_be_exchanged_nothing_is_applied(
    overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(beneath, "exchange", refuse)
    overlaid.write("a.txt", "new\n")

    with pytest.raises(CannotApply, match="can't exchange names"):
        await overlaid.apply()

    assert read_tree(overlaid.project)["a.txt"] == "a\n"
    assert not [name for name in os.listdir(overlaid.project) if name.startswith(".agentos")]
