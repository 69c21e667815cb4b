"""Commits of an agent are told, and applied when each object and each ref has all that it needs."""

import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.services.snapshots import commits
from agentos.services.snapshots.commits import Commits

from .conftest import Overlaid

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgSign=false", "-c", "safe.directory=*")
Work = Callable[[Path], object]


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *arguments], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(place: Path, name: str) -> str:
    (place / name).write_text(f"{name}\n")
    git(place, "add", name)
    git(place, "commit", "-q", "-m", name)
    return git(place, "rev-parse", "HEAD")


@pytest.fixture(params=["sha1", "sha256"])
def repository(overlaid: Overlaid, request: pytest.FixtureRequest) -> Overlaid:
    """The overlay's project as a git repository of two commits."""
    git(overlaid.project, "init", "-q", "-b", "main", f"--object-format={request.param}")
    commit(overlaid.project, "first")
    commit(overlaid.project, "second")
    return overlaid


async def let_work(overlaid: Overlaid, work: Work) -> Path:
    """Have an agent work in its overlay: a copy, of which what differs is written into a new layer."""
    copy = overlaid.project.parent / "copy"
    shutil.copytree(overlaid.project, copy, symlinks=True)
    await overlaid.overlays.discard(overlaid.name, lambda: False)
    await overlaid.open()
    work(copy)
    for path in copy.rglob("*"):
        name = str(path.relative_to(copy))
        theirs = overlaid.project / name
        if path.is_file() and not (theirs.is_file() and theirs.read_bytes() == path.read_bytes()):
            (overlaid.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, overlaid.tree / name)
    for path in overlaid.project.rglob("*"):
        if path.is_file() and not (copy / path.relative_to(overlaid.project)).exists():
            overlaid.delete(str(path.relative_to(overlaid.project)))
    return copy


def commit_twice(place: Path) -> None:
    commit(place, "third")
    commit(place, "fourth")


def rewrite(place: Path) -> None:
    git(place, "reset", "-q", "--hard", "HEAD~1")
    commit(place, "other")


def begin_branch(place: Path) -> None:
    git(place, "switch", "-q", "-c", "topic/x")
    commit_twice(place)


def collect(place: Path) -> None:
    commit_twice(place)
    git(place, "gc", "-q")


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (commit_twice, Commits("", "main", 2, 0)),
        (rewrite, Commits("", "main", 1, 1)),
        (begin_branch, Commits("", "topic/x", 2, 0)),
        (collect, Commits("", "main", 2, 0)),
    ],
)
async def test_commits_are_told_by_branch_and_applied(repository: Overlaid, work: Work, told: Commits) -> None:
    copy = await let_work(repository, work)

    shown = await repository.diff()
    await repository.apply(also=[".git"])

    assert shown.commits == [told]
    assert not [one.path for one in shown.changes if one.blocked]
    assert git(repository.project, "rev-parse", told.branch) == git(copy, "rev-parse", told.branch)
    assert git(repository.project, "status", "--porcelain", "--untracked-files=no") == ""
    git(repository.project, "fsck", "--strict")


async def test_a_repository_below_the_top_is_told_by_its_path(overlaid: Overlaid) -> None:
    def begin(copy: Path) -> None:
        git(copy, "init", "-q", "-b", "main", "sub/lib")
        commit_twice(copy / "sub/lib")

    await let_work(overlaid, begin)

    assert (await overlaid.diff()).commits == [Commits("sub/lib", "main", 2, 0)]


def newest_object(overlaid: Overlaid, kind: str) -> Path:
    """An object of the layer, of a kind."""
    copy = overlaid.project.parent / "copy"
    for path in sorted((overlaid.tree / ".git/objects").glob("[0-9a-f][0-9a-f]/*")):
        if git(copy, "cat-file", "-t", path.parent.name + path.name) == kind:
            return path
    raise AssertionError(kind)


def lose(overlaid: Overlaid, kind: str) -> None:
    newest_object(overlaid, kind).unlink()


def forge(overlaid: Overlaid, kind: str) -> None:
    path = newest_object(overlaid, kind)
    path.chmod(0o600)
    shutil.copy(newest_object(overlaid, "tree" if kind != "tree" else "blob"), path)


def cut(overlaid: Overlaid, kind: str) -> None:
    path = newest_object(overlaid, kind)
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size - 4)


def borrow(overlaid: Overlaid, kind: str) -> None:
    """Have the objects elsewhere, where only the agent's own configuration leads to."""
    elsewhere = overlaid.project.parent / "elsewhere"
    path = newest_object(overlaid, kind)
    (elsewhere / path.parent.name).mkdir(parents=True)
    path.rename(elsewhere / path.parent.name / path.name)
    (overlaid.tree / ".git/objects/info").mkdir(exist_ok=True)
    (overlaid.tree / ".git/objects/info/alternates").write_text(f"{elsewhere}\n")


@pytest.mark.parametrize("kind", ["commit", "tree", "blob"])
@pytest.mark.parametrize("harm", [lose, forge, cut, borrow])
async def test_commits_that_lack_something_are_not_applied(
    overlaid: Overlaid, harm: Callable[[Overlaid, str], None], kind: str
) -> None:
    git(overlaid.project, "init", "-q", "-b", "main")
    before = commit(overlaid.project, "first")
    await let_work(overlaid, lambda copy: commit(copy, "second"))
    harm(overlaid, kind)

    shown = await overlaid.diff()
    done = await overlaid.apply(also=[".git"])

    assert shown.commits == []
    assert {one.path for one in shown.changes if "its commits can't be checked: " in one.blocked} >= {
        ".git/refs/heads/main"
    }
    assert ".git/refs/heads/main" in done.left
    assert "second" in done.paths
    assert git(overlaid.project, "rev-parse", "main") == before


@pytest.mark.parametrize("text", ["", "main\n", "g" * 40, "0" * 41, "../../../etc/passwd"])
async def test_a_ref_that_names_no_commit_is_not_applied(overlaid: Overlaid, text: str) -> None:
    git(overlaid.project, "init", "-q", "-b", "main")
    before = commit(overlaid.project, "first")
    await let_work(overlaid, lambda copy: (copy / ".git/refs/heads/main").write_text(text))

    done = await overlaid.apply(also=[".git"])

    assert "names no commit" in done.left[".git/refs/heads/main"]
    assert git(overlaid.project, "rev-parse", "main") == before


@pytest.mark.parametrize("packed", [False, True])
async def test_a_branch_that_the_host_has_moved_stays(overlaid: Overlaid, packed: bool) -> None:
    git(overlaid.project, "init", "-q", "-b", "main")
    commit(overlaid.project, "first")
    await let_work(overlaid, commit_twice)
    moved = commit(overlaid.project, "mine")
    if packed:  # as by git gc: the branch has no file that has changed
        git(overlaid.project, "pack-refs", "--all")

    shown = await overlaid.diff()
    done = await overlaid.apply(also=[".git"])

    assert shown.commits == [Commits("", "main", 2, 1)]
    assert ".git/refs/heads/main" in done.left
    assert git(overlaid.project, "rev-parse", "main") == moved


async def test_a_branch_that_the_host_has_only_packed_goes_on(overlaid: Overlaid) -> None:
    git(overlaid.project, "init", "-q", "-b", "main")
    commit(overlaid.project, "first")
    copy = await let_work(overlaid, commit_twice)
    git(overlaid.project, "pack-refs", "--all")

    await overlaid.apply(also=[".git"])

    assert git(overlaid.project, "rev-parse", "main") == git(copy, "rev-parse", "main")


async def test_a_branch_that_is_applied_alone_brings_its_objects(overlaid: Overlaid) -> None:
    git(overlaid.project, "init", "-q", "-b", "main")
    commit(overlaid.project, "first")
    copy = await let_work(overlaid, commit_twice)

    await overlaid.apply(".git/refs", also=[".git/refs/heads"])

    assert git(overlaid.project, "rev-parse", "main") == git(copy, "rev-parse", "main")
    git(overlaid.project, "fsck", "--strict")


# -- What would give the host's own objects other contents -----------------------------------------------------------

EVIL = "evil\n"


def write_evil(place: Path) -> str:
    done = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=place, input=EVIL, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def index_evil(place: Path) -> None:
    """An index of all packs that says of the host's file that its content is in a pack of the agent's."""
    evil, victim = write_evil(place), git(place, "rev-parse", "HEAD:first")
    command = ["git", "pack-objects", "-q", ".git/objects/pack/pack"]
    subprocess.run(command, cwd=place, input=f"{evil}\n", capture_output=True, text=True, check=True)
    git(place, "multi-pack-index", "write")
    path = place / ".git/objects/pack/multi-pack-index"
    data = bytearray(path.read_bytes()[:-20])
    at = data.rindex(bytes.fromhex(evil))
    data[at : at + 20] = bytes.fromhex(victim)
    data[at - 1024 : at] = struct.pack(">256I", *(int(first >= int(victim[:2], 16)) for first in range(256)))
    path.chmod(0o600)
    path.write_bytes(data + hashlib.sha1(data, usedforsecurity=False).digest())


def replace_by_evil(place: Path) -> None:
    git(place, "replace", git(place, "rev-parse", "HEAD:first"), write_evil(place))


def replace_by_evil_in_a_pack(place: Path) -> None:
    replace_by_evil(place)
    git(place, "pack-refs", "--all")


@pytest.mark.parametrize("harm", [index_evil, replace_by_evil, replace_by_evil_in_a_pack])
async def test_no_object_of_the_hosts_gets_another_content(overlaid: Overlaid, harm: Callable[[Path], None]) -> None:
    git(overlaid.project, "init", "-q", "-b", "main")
    commit(overlaid.project, "first")

    def work(copy: Path) -> None:
        commit(copy, "second")
        harm(copy)

    copy = await let_work(overlaid, work)
    assert git(copy, "cat-file", "-p", "HEAD:first") == EVIL.strip()

    await overlaid.apply(also=[".git"])

    assert git(overlaid.project, "cat-file", "-p", "HEAD:first") == "first"


async def test_of_objects_only_those_and_their_packs_are_applied(overlaid: Overlaid) -> None:
    """The rest, git makes anew: a bitmap or a reverse index says what is needed, a promisor that nothing is missing."""
    git(overlaid.project, "init", "-q", "-b", "main")
    commit(overlaid.project, "first")

    def work(copy: Path) -> None:
        commit(copy, "second")
        git(copy, "repack", "-q", "-a", "-d")
        (pack,) = (copy / ".git/objects/pack").glob("*.pack")
        for kind in (".promisor", ".bitmap", ".rev", ".mtimes", ".keep"):
            pack.with_suffix(kind).write_text("")
        (copy / ".git/objects/tools").write_text("#!/bin/sh")

    await let_work(overlaid, work)
    paths = [Path(one.path) for one in (await overlaid.diff()).changes if one.kind == "file" and "objects" in one.path]
    await overlaid.apply(also=[".git"])

    assert {path.suffix for path in paths if path.parts[2] != "info"} == {".pack", ".idx"}
    found = {path.suffix for path in (overlaid.project / ".git/objects/pack").iterdir()}
    assert found == {".pack", ".idx"}
    git(overlaid.project, "fsck", "--strict")


def forge_index(place: Path, name: str) -> None:
    """An index of version 2 with one path more, which ``git update-index`` would refuse."""
    path = place / ".git/index"
    data, blob = path.read_bytes()[:-20], bytes.fromhex(git(place, "rev-parse", "HEAD:first"))
    entry = struct.pack(">10I20sH", *[0] * 6, 0o100755, 0, 0, 0, blob, len(name.encode())) + name.encode()
    count = int.from_bytes(data[8:12])
    data = data[:8] + (count + 1).to_bytes(4) + entry.ljust(len(entry) // 8 * 8 + 8, b"\0") + data[12:]
    path.write_bytes(data + hashlib.sha1(data, usedforsecurity=False).digest())


async def test_an_index_by_which_git_would_write_a_hook_is_not_applied(overlaid: Overlaid) -> None:
    """Git checks no path of an index that it reads: ``git checkout -- .`` writes each where it says."""
    git(overlaid.project, "init", "-q", "-b", "main")
    commit(overlaid.project, "first")

    copy = await let_work(overlaid, lambda copy: commit(copy, "second"))
    sound = (copy / ".git/index").read_bytes()
    for path in (".git/hooks/post-checkout", ".GIT/x", "../x", "/tmp/x", ".git./x"):
        forge_index(copy, path)
        shutil.copy(copy / ".git/index", overlaid.tree / ".git/index")
        [why] = [one.blocked for one in (await overlaid.diff()).changes if one.path == ".git/index"]
        assert "to which git would write" in why, path
        (copy / ".git/index").write_bytes(sound)

    done = await overlaid.apply(also=[".git"])

    assert [*done.left] == [".git/index"]
    assert git(overlaid.project, "rev-parse", "HEAD") == git(copy, "rev-parse", "HEAD")
    assert git(overlaid.project, "ls-files") == "first"


@pytest.mark.parametrize("name", ["COMMIT_EDITMSG", "FETCH_HEAD", "logs/HEAD", "refs/heads/x", "objects/xy", "index"])
async def test_a_link_in_a_repository_has_to_be_named(overlaid: Overlaid, name: str) -> None:
    """Git writes through it: a commit would replace any file of the operator's by its message."""
    git(overlaid.project, "init", "-q", "-b", "main")
    await let_work(overlaid, lambda copy: commit(copy, "first"))
    path = overlaid.tree / ".git" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("../../victim")

    done = await overlaid.apply(also=[".git"])

    assert "git writes to where it leads" in done.left[f".git/{name}"]
    assert not (overlaid.project / ".git" / name).is_symlink()


def delete_branch(place: Path) -> None:
    git(place, "branch", "-q", "-D", "topic")


def unpack_branch(place: Path) -> None:
    (place / ".git/packed-refs").write_text("# pack-refs with: peeled fully-peeled sorted \n")


@pytest.mark.parametrize(
    ("before", "work"),
    [((), delete_branch), (("pack-refs", "--all"), delete_branch), (("pack-refs", "--all"), unpack_branch)],
)
async def test_a_branch_that_would_be_gone_is_told_with_what_is_lost(
    overlaid: Overlaid, before: tuple[str, ...], work: Work
) -> None:
    git(overlaid.project, "init", "-q", "-b", "main")
    commit(overlaid.project, "first")
    git(overlaid.project, "switch", "-q", "-c", "topic")
    commit(overlaid.project, "second")
    git(overlaid.project, "checkout", "-q", "--detach", "main")
    if before:
        git(overlaid.project, *before)

    await let_work(overlaid, work)

    lost = [one for one in (await overlaid.diff()).commits if one.branch == "topic"]
    assert [(one.commits, one.dropped > 0) for one in lost] == [(0, True)]


async def test_objects_that_take_too_long_are_not_looked_at_for_ever(
    overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a thousand objects unpacks to 250 MiB."""
    git(overlaid.project, "init", "-q", "-b", "main")
    commit(overlaid.project, "first")
    await let_work(overlaid, commit_twice)
    monkeypatch.setattr(commits, "ALL_SECONDS", 0.0)

    changes = (await overlaid.diff()).changes

    assert any("that takes more than" in one.blocked for one in changes if one.root == ".git")
