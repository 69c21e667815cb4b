"""Which directories an agent may be given, and what is told of each."""

# A file in /tmp keeps nobody waiting here.
# ruff: file-ignore[ASYNC240]

import contextlib
import fcntl
import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

import agentos
from agentos.agents.workspaces import hard_links
from agentos.agents.workspaces.protected_files import Stubs
from agentos.agents.workspaces.workspace import BadWorkspace, Workspaces
from agentos.protected_names import STUBS
from agentos.sandbox.policy import MIB, Directory, Limits

LIMITS = Limits(disk=8 * MIB)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made:
        for name in ("state", "sockets", "project"):
            Path(made, name).mkdir()
        yield Path(made)


@pytest.fixture
def workspaces(place: Path) -> Workspaces:
    return Workspaces(place / "state", False, [place / "sockets"])


async def test_one_in_memory_needs_nothing(workspaces: Workspaces, place: Path) -> None:
    found = await workspaces.prepare("a", "tmp", LIMITS, None)
    await workspaces.release(found)

    assert (found.kind, found.mount, found.watched) == ("tmp", None, None)
    assert found.mechanism == "tmpfs of 8M, 16384 inodes"
    assert os.listdir(place / "state") == []


async def test_a_directory_of_the_hosts_is_watched_and_protected(workspaces: Workspaces, place: Path) -> None:
    found = await workspaces.prepare("a", str(place / "project"), LIMITS, None)

    assert found.mount == Directory(str(place / "project"), tuple(STUBS))
    assert (found.kind, found.watched) == ("host", str(place / "project"))
    await workspaces.release(found)
    assert os.listdir(place / "project") == []


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/etc", "/etc/cron.d", "/usr/local", "/home", "/root", "/tmp", "/var/lib", "/proc/self", "/dev/shm"),
        *("relative", "", "/tmp/../etc", "/no/such/directory"),
    ],
)
async def test_a_directory_of_the_systems_is_refused(workspaces: Workspaces, path: str) -> None:
    with pytest.raises(BadWorkspace, match=f"workspace {path}: "):
        await workspaces.prepare("a", path, LIMITS, None)


@pytest.mark.parametrize("below", ["state", "state/workspaces", "sockets", "sockets/deep", "."])
async def test_what_the_kernel_keeps_for_itself_is_refused(workspaces: Workspaces, place: Path, below: str) -> None:
    path = os.path.normpath(place / below)
    os.makedirs(path, exist_ok=True)

    with pytest.raises(BadWorkspace, match="is the kernel's own"):
        await workspaces.prepare("a", path, LIMITS, None)


async def test_what_the_kernel_runs_is_refused(workspaces: Workspaces) -> None:
    with pytest.raises(BadWorkspace, match="which the kernel runs"):
        await workspaces.prepare("a", os.path.dirname(os.path.realpath(agentos.__file__)), LIMITS, None)


async def test_what_the_kernel_runs_stays_read_only_in_a_directory_around_it(
    workspaces: Workspaces, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = place / "project" / ".venv"
    environment.mkdir()
    monkeypatch.setattr(sys, "prefix", str(environment))

    found = await workspaces.prepare("a", str(place / "project"), LIMITS, None)

    assert isinstance(found.mount, Directory)
    assert ".venv" in found.mount.protected
    await workspaces.release(found)


@pytest.fixture
def home() -> str:
    """This user's. Not in the async test: pytest-trio loses the reason if that skips."""
    home = os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir)
    if not os.path.isdir(home):
        pytest.skip(f"this user's home {home} is not there")
    return home


async def test_a_users_home_is_refused(workspaces: Workspaces, home: str) -> None:
    with pytest.raises(BadWorkspace, match=f"workspace {home}: (a user's whole home|a directory of the system's)"):
        await workspaces.prepare("a", home, LIMITS, None)


async def test_a_link_and_a_file_are_refused(workspaces: Workspaces, place: Path) -> None:
    (place / "link").symlink_to("project")
    (place / "file").touch()

    with pytest.raises(BadWorkspace, match="a symbolic link leads to"):
        await workspaces.prepare("a", str(place / "link"), LIMITS, None)
    with pytest.raises(BadWorkspace, match="not a directory"):
        await workspaces.prepare("a", str(place / "file"), LIMITS, None)


async def test_one_where_stubs_cannot_be_made_is_refused_and_left_as_it_was(
    workspaces: Workspaces, place: Path
) -> None:
    project = place / "project"
    (project / ".git").symlink_to("elsewhere")

    with pytest.raises(BadWorkspace, match=r"\.git is a symbolic link to what the agent can write to"):
        await workspaces.prepare("a", str(project), LIMITS, None)

    assert os.listdir(project) == [".git"]
    assert not [fd for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}") == str(project)]


@contextlib.contextmanager
def locked(directory: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Another process' lock, which an agent can hold on any directory that it can open."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


async def test_a_directory_that_another_process_has_locked_is_refused_by_name(
    workspaces: Workspaces, place: Path, autojump_clock: trio.testing.MockClock
) -> None:
    with locked(place / "project"), pytest.raises(BadWorkspace, match=f"a lock on the directory {place}/project"):
        await workspaces.prepare("a", str(place / "project"), LIMITS, None)

    assert os.listdir(place / "project") == []
    found = await workspaces.prepare("a", str(place / "project"), LIMITS, None)
    await workspaces.release(found)


async def test_while_one_directory_is_waited_for_others_are_prepared_and_released(
    workspaces: Workspaces, place: Path
) -> None:
    (place / "other").mkdir()
    (place / "project" / "below").mkdir()
    held = await workspaces.prepare("a", str(place / "project"), LIMITS, None)
    with locked(place / "project" / "below"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workspaces.prepare, "b", str(place / "project" / "below"), LIMITS, None)
            await trio.testing.wait_all_tasks_blocked()

            other = await workspaces.prepare("c", str(place / "other"), LIMITS, None)
            await workspaces.release(held)
            await workspaces.release(other)

            assert os.listdir(place / "project" / "below") == []
            nursery.cancel_scope.cancel()

    assert os.listdir(place / "project") == ["below"]


async def test_a_lock_that_is_released_in_time_delays_the_start_alone(workspaces: Workspaces, place: Path) -> None:
    with locked(place / "project", fcntl.LOCK_SH):  # as another kernel holds it, whose agents work there too
        both = await workspaces.prepare("a", str(place / "project"), LIMITS, None)
        await workspaces.release(both)
    with contextlib.ExitStack() as lock:
        lock.enter_context(locked(place / "project"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workspaces.prepare, "a", str(place / "project"), LIMITS, None)
            await trio.testing.wait_all_tasks_blocked()
            lock.close()

    assert (place / "project" / ".envrc").exists()


async def test_directories_that_are_prepared_at_once_are_all_recorded(workspaces: Workspaces, place: Path) -> None:
    names = [str(place / f"one{number}") for number in range(12)]
    for name in names:
        Path(name).mkdir()
    found = []

    async def prepare(name: str) -> None:
        found.append(await workspaces.prepare("a", name, LIMITS, None))

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(prepare, name)
    assert sorted(json.loads((place / "state" / "stubs.json").read_text())) == sorted(names)

    async with trio.open_nursery() as nursery:
        for one in found:
            nursery.start_soon(workspaces.release, one)
    assert json.loads((place / "state" / "stubs.json").read_text()) == {}
    assert [os.listdir(name) for name in names] == [[]] * len(names)


async def test_no_stub_is_made_where_another_agent_leads_us_by_a_link(place: Path) -> None:
    """The way to one agent's workspace may be in another's, who can replace it at any moment."""
    (place / "victim" / "inner").mkdir(parents=True)
    (place / "project" / "way").symlink_to(place / "victim")
    stubs = Stubs(place / "state" / "stubs.json")

    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        stubs.acquire(f"{place}/project/way/inner")

    assert os.listdir(place / "victim" / "inner") == []


async def test_nothing_is_swept_away_where_a_link_leads_by_now(place: Path) -> None:
    (place / "victim" / "inner").mkdir(parents=True)
    (place / "victim" / "inner" / ".envrc").touch()
    (place / "project" / "way").symlink_to(place / "victim")
    record = place / "state" / "stubs.json"
    record.write_text(json.dumps({f"{place}/project/way/inner": [".envrc"]}))

    Stubs(record).sweep()

    assert os.listdir(place / "victim" / "inner") == [".envrc"]


def test_a_damaged_record_of_stubs_is_taken_as_none(place: Path) -> None:
    record = place / "state" / "stubs.json"

    for text in ("5", "[]", '{"/": 5}', '{"/": [5]}', "[" * 100_000, '{"/": ' + "[" * 100_000):
        record.write_text(text)
        Stubs(record).sweep()


@pytest.mark.parametrize("link", ["workspaces", "workspaces/a"])
async def test_no_workspace_is_kept_where_a_symlink_in_the_state_directory_leads(
    workspaces: Workspaces, place: Path, link: str
) -> None:
    (place / "elsewhere").mkdir()
    (place / "state" / link).parent.mkdir(exist_ok=True)
    (place / "state" / link).symlink_to(place / "elsewhere")

    with pytest.raises(BadWorkspace, match=r"workspace keep: can't be used: .*/workspaces"):
        await workspaces.prepare("a", "keep", LIMITS, None)

    assert os.listdir(place / "elsewhere") == []


def git(directory: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=directory, check=True)


@pytest.mark.parametrize("name", [".npmrc", ".envrc", ".helix/languages.toml", ".cargo/config.toml", "tools/fsmonitor"])
async def test_a_protected_file_with_another_name_in_the_workspace_is_refused(
    workspaces: Workspaces, place: Path, name: str
) -> None:
    top, state = place / "project", os.listdir(place / "state")
    git(top, "init", "-q")
    git(top, "config", "core.fsmonitor", "tools/fsmonitor")
    (top / name).parent.mkdir(exist_ok=True)
    (top / name).write_text("mine\n")
    (top / "src").mkdir()
    os.link(top / name, top / "src" / "innocent\x1b")

    with pytest.raises(
        BadWorkspace, match=rf"{name} has several names .*, src/innocent\\x1b is the same file: replace"
    ):
        await workspaces.prepare("a", str(top), LIMITS, None)
    assert {*os.listdir(top)} == {".git", "src", name.partition("/")[0]}

    (top / "src" / "innocent\x1b").rename(place / "outside")
    found = await workspaces.prepare("a", str(top), LIMITS, None)
    await workspaces.release(found)
    assert [line.partition(".")[0] for line in found.notices] == [
        "files of its workspace have other names outside of it (hard links): " + name.partition(".")[0]
    ]
    assert state == []


async def test_samples_of_hooks_and_links_among_protected_files_are_no_reason(
    workspaces: Workspaces, place: Path
) -> None:
    top = place / "project"
    git(top, "init", "-q", "--template=")
    (top / ".git" / "hooks").mkdir()
    (top / ".git" / "hooks" / "pre-push.sample").write_text("x\n")
    os.link(top / ".git" / "hooks" / "pre-push.sample", top / "sample")
    (top / ".envrc").write_text("mine\n")
    os.link(top / ".envrc", top / ".git" / "hooks" / "pre-commit")

    found = await workspaces.prepare("a", str(top), LIMITS, None)
    await workspaces.release(found)

    assert found.notices == ()


async def test_a_clone_that_shares_its_objects_with_the_original_is_told_of(
    workspaces: Workspaces, place: Path
) -> None:
    original, clone, copy = (str(place / name) for name in ("project", "clone", "copy"))
    git(place, "init", "-q", original)
    git(Path(original), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
    git(place, "clone", "-q", original, clone)
    git(place, "clone", "-q", "--no-hardlinks", original, copy)

    told = []
    for directory in (clone, copy):
        found = await workspaces.prepare("a", directory, LIMITS, None)
        await workspaces.release(found)
        told.append(found.notices)

    assert told[0][0].startswith("files of its workspace have other names outside of it (hard links): .git/objects/")
    assert told[1] == ()


async def test_where_not_all_is_looked_at_a_protected_file_with_other_names_is_refused(
    workspaces: Workspaces, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hard_links, "MAX_ENTRIES", 20)
    top = place / "project"
    (top / ".npmrc").write_text("mine\n")
    os.link(top / ".npmrc", place / "outside")
    (top / "src").mkdir()
    for number in range(20):
        (top / "src" / str(number)).write_text("")

    with pytest.raises(BadWorkspace, match=r"\.npmrc has several names .*, only the first 20 files were looked at"):
        await workspaces.prepare("a", str(top), LIMITS, None)
