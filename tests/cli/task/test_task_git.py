"""git in a repository whose configuration names programs: none of them is started."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.userland.task import git
from agentos.userland.task.repository import BadDirectory, check_repository, describe_changes, describe_git
from tests.support.runs.rows import each_row

IDENTITY = ("-c", "user.name=agent", "-c", "user.email=agent@localhost", "-c", "commit.gpgSign=false")
STATUS = ("status", "--porcelain")


def run_git(place: Path, *arguments: str, fails: bool = False) -> str:
    done = subprocess.run(["git", *IDENTITY, *arguments], cwd=place, capture_output=True, text=True, check=not fails)
    return done.stdout.strip()


def commit(place: Path) -> str:
    """A new repository with one file, which git reads again at the next status; returns the commit."""
    place.mkdir(parents=True, exist_ok=True)
    run_git(place, "init", "-q", ".")
    (place / "file").write_text("x\n")
    run_git(place, "add", "file")
    run_git(place, "commit", "-q", "-m", "one")
    os.utime(place / "file", (0, 0))
    return run_git(place, "rev-parse", "HEAD")


def add_filter(place: Path, kind: str, program: str) -> None:
    (place / ".gitattributes").write_text("* filter=a.b\n")
    run_git(place, "config", f"filter.a.b.{kind}", program)


def plant_filter(place: Path, program: str) -> None:
    commit(place)
    add_filter(place, "clean", program)


def plant_required_process(place: Path, program: str) -> None:
    commit(place)
    add_filter(place, "process", program)
    run_git(place, "config", "filter.a.b.required", "true")


def plant_included_filter(place: Path, program: str) -> None:
    plant_filter(place, program)
    (place / ".git/config").rename(place / ".git/more")
    (place / ".git/config").write_text("[include]\n\tpath = more\n")


def plant_nested_repository(place: Path, program: str) -> None:
    commit(place)
    inner = commit(place / "lib")
    add_filter(place / "lib", "clean", program)
    run_git(place, "update-index", "--add", "--cacheinfo", f"160000,{inner},lib")
    run_git(place, "config", "submodule.lib.ignore", "none")


def plant_monitor(place: Path, program: str) -> None:
    commit(place)
    run_git(place, "config", "core.fsmonitor", program)


def plant_hook(place: Path, program: str) -> None:
    commit(place)
    hook = place / ".git/hooks/post-index-change"
    hook.write_text(f"#!/bin/sh\n{program}\n")
    hook.chmod(0o755)


def plant_transport(place: Path, program: str) -> None:
    """A partial clone: git fetches an object that is missing, by a program."""
    commit(place)
    tree = run_git(place, "rev-parse", "HEAD^{tree}")
    (place / ".git/objects" / tree[:2] / tree[2:]).unlink()
    for name, value in (
        *(("core.repositoryFormatVersion", "1"), ("extensions.partialClone", "origin")),
        *(("remote.origin.promisor", "true"), ("remote.origin.url", f"ext::sh -c {program.replace(' ', '% ')}")),
        ("protocol.ext.allow", "always"),
    ):
        run_git(place, "config", name, value)


Plant = Callable[[Path, str], None]
PLANTS = (
    *(plant_filter, plant_required_process, plant_included_filter, plant_nested_repository),
    *(plant_monitor, plant_hook, plant_transport),
)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What the planted programs create."""
    return tmp_path / "marker"


@pytest.fixture
def program(marker: Path) -> str:
    script = marker.with_name("program")
    script.write_text(f"#!/bin/sh\n: > {marker}\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("plant", PLANTS)
def test_no_program_that_a_repository_names_is_started(
    tmp_path: Path, marker: Path, program: str, plant: Plant
) -> None:
    plant(tmp_path / "work", program)

    describe_changes(str(tmp_path / "work"))

    assert not marker.exists()
    run_git(tmp_path / "work", *STATUS, fails=True)
    assert marker.exists(), "git doesn't start it without our options either"


@pytest.mark.parametrize("plant", PLANTS)
def test_git_can_not_fork_even_where_no_option_forbids_the_program(
    tmp_path: Path, marker: Path, program: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "work", program)
    for name, value in {"OPTIONS": (), "NO_FILTER": {}, "STATUS": STATUS}.items():
        monkeypatch.setattr(git, name, value)

    describe_changes(str(tmp_path / "work"))

    assert not marker.exists()


def test_changes_are_found_although_a_required_filter_is_switched_off(tmp_path: Path, program: str) -> None:
    plant_required_process(tmp_path, program)
    (tmp_path / "file").write_text("changed\n")

    assert "in 3 places: file, .gitattributes, program" in str(describe_changes(str(tmp_path)))


def test_git_is_not_taken_from_the_directory_that_it_is_run_in(
    tmp_path: Path, marker: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "work")
    os.rename(program, tmp_path / "work/git")
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")

    assert "in 1 place: git" in str(describe_changes(str(tmp_path / "work")))
    assert not marker.exists()


def test_a_broken_repository_is_said(tmp_path: Path) -> None:
    commit(tmp_path)
    (tmp_path / ".git/config").write_text("[broken")

    told = str(describe_changes(str(tmp_path)))
    assert "it isn't known which files have changes that aren't committed: fatal: bad config line" in told


PEAK = """
import resource, sys
from agentos.userland.task.repository import describe_changes
print(describe_changes(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
"""


def make_sparse(place: Path, file: str, begin: bytes) -> None:
    path = place / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(begin)
    os.truncate(path, 3 << 30)


@each_row(
    "file, begin, said",
    [
        (".gitignore", b"", "Out of memory"),
        ("in/.gitignore", b"*.o\n", "Out of memory"),
        (".git/info/exclude", b"", "Out of memory"),
        (".gitattributes", b"* text\n", "changes that aren't committed"),  # git has a limit of its own
        ("file", b"x\n", "changes that aren't committed, in 1 place: file"),
        (".git/index", b"", "fatal: "),
    ],
)
def test_git_gets_no_more_memory_than_its_limit(file: str, begin: bytes, said: str) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-") as made:
        place = Path(made)
        commit(place)
        make_sparse(place, file, begin)

        done = subprocess.run([sys.executable, "-c", PEAK, made], capture_output=True, text=True, check=True)
        told, peak = done.stdout.strip().rsplit("\n", 1)

    assert said in told
    assert int(peak) < git.MAX_MEMORY


FIFOS = [".gitignore", "in/.gitignore", ".gitattributes", ".git/info/exclude", ".git/info/attributes", ".git/index"]
FIFOS += ["home/.config/git/ignore", "home/.config/git/attributes", "home/ignored", "home/included", "../elsewhere"]


@each_row("fifo", FIFOS)
def test_a_fifo_that_git_would_read_is_named(fifo: str) -> None:
    """One that an agent has left in a repository, or that the user's configuration names."""
    with tempfile.TemporaryDirectory(prefix="aos-") as made, pytest.MonkeyPatch.context() as patch:
        home = Path(made) / "work/home"
        commit(home.parent)
        (home.parent / "in").mkdir()
        (home.parent / "in/new").touch()
        (home / ".config/git").mkdir(parents=True)
        patch.setenv("HOME", str(home))
        patch.delenv("XDG_CONFIG_HOME", raising=False)
        names = {"home/ignored": "core.excludesFile", "home/included": "include.path"}
        if key := names.get(fifo, "core.attributesFile" if fifo.startswith("..") else ""):
            run_git(home, "config", "-f", str(home / ".gitconfig"), key, str(home.parent / fifo))
        (home.parent / fifo).unlink(missing_ok=True)
        os.mkfifo(home.parent / fifo)
        (home.parent / "file").write_text("y\n")  # of the same size, so that git reads it, and attributes with it

        told = str(describe_changes(str(home.parent)))

    assert re.search(f"git (config|status) reads .*{os.path.basename(fifo)}, which is a FIFO", told)


def test_a_fifo_is_told_also_where_its_name_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path / "work")
    os.mkfifo(tmp_path / "work/.gitignore")
    monkeypatch.setattr(git, "OPENAT", {})  # as /proc/PID/syscall can't be read

    with subprocess.Popen(["cat", tmp_path / "work/.gitignore"]) as waiting:
        told = str(describe_changes(str(tmp_path / "work")))
        is_hidden = Path(f"/proc/{waiting.pid}/wchan").read_text() in ("", "0")
        waiting.kill()

    if is_hidden and "took more than" in told:
        pytest.skip("/proc/PID/wchan of this host doesn't say what a process waits for")
    assert "reads a FIFO in place of a file" in told


def test_git_says_no_more_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "MAX_OUTPUT", 4 << 10)
    commit(tmp_path)
    for number in range(100):
        (tmp_path / f"{number:0>100}").touch()

    assert "git status says more than" in str(describe_changes(str(tmp_path)))


def test_many_changes_in_many_threads_are_found_within_the_limits(tmp_path: Path) -> None:
    """git looks at 500 files of the index in each of up to 20 threads, whose stacks are memory too."""
    commit(tmp_path)
    for number in range(11_000):
        (tmp_path / f"f{number}").touch()
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-q", "-m", "many")
    (tmp_path / "f7").write_text("changed")

    assert "in 1 place: f7" in str(describe_changes(str(tmp_path)))


def commit_and_name(place: Path) -> Path:
    commit(place / "main")
    return place / "main"


def link_worktree(place: Path) -> Path:
    commit(place / "main")
    run_git(place / "main", "worktree", "add", "-q", "../feature", "-b", "feature")
    return place / "feature"


def make_submodule(place: Path) -> Path:
    commit(place / "main")
    commit(place / "lib")
    run_git(place / "main", "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(place / "lib"), "lib")
    return place / "main" / "lib"


def make_subdirectory(place: Path) -> Path:
    commit(place / "main")
    (place / "main/sub/deep").mkdir(parents=True)
    return place / "main/sub/deep"


def separate(place: Path) -> Path:
    run_git(place, "init", "-q", "--separate-git-dir", str(place / "data.git"), str(place / "work"))
    return place / "work"


def link(place: Path) -> Path:
    commit(place / "main")
    (place / "work").mkdir()
    (place / "work/.git").symlink_to("../main/.git")
    return place / "work"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (link_worktree, "a linked worktree of git"),
        (make_submodule, "a submodule of git"),
        (make_subdirectory, "in the git repository"),
        (separate, "a repository whose data is in"),
        (link, "a repository whose data is in"),
    ],
)
def test_a_repository_that_lies_elsewhere_is_told(make: Callable[[Path], Path], kind: str, tmp_path: Path) -> None:
    place = make(tmp_path)

    said, for_model = describe_git(str(place))

    assert kind in said
    assert "git won't work there" in said
    assert for_model


def test_a_repository_that_is_in_the_directory_is_not_worth_a_word(tmp_path: Path) -> None:
    commit(tmp_path / "main")
    run_git(tmp_path, "init", "-q", "--separate-git-dir", str(tmp_path / "own/data.git"), str(tmp_path / "own"))
    (tmp_path / "plain").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/.git").write_bytes(b"gitdir: \0\xff")

    for name in ("main", "own", "plain", "odd"):
        assert describe_git(str(tmp_path / name)) == ("", "")


@pytest.mark.parametrize("make", [link_worktree, make_submodule, separate, link])
def test_an_overlay_of_a_repository_that_lies_elsewhere_is_refused_with_what_to_do(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    place = make(tmp_path)

    with pytest.raises(BadDirectory, match=rf"Use a clone \(git clone --no-hardlinks {place} COPY\)"):
        check_repository(str(place))


@pytest.mark.parametrize("make", [commit_and_name, make_subdirectory])
def test_other_directories_are_not_refused(make: Callable[[Path], Path], tmp_path: Path) -> None:
    check_repository(str(make(tmp_path)))
