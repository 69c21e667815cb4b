"""Stubs in a repository, as git on the host sees them: it is the real one."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.agents.workspaces.git_exclude import find_repository, replace_block, update_block
from agentos.agents.workspaces.protected_files import Stubs

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made:
        (Path(made) / "state").mkdir()
        yield Path(made)


@pytest.fixture
def project(place: Path) -> Path:
    (place / "project" / "sub dir").mkdir(parents=True)
    git(place / "project", "init", "-q")
    (place / "project" / "sub dir" / "notes").touch()
    git(place / "project", "add", "-A")
    git(place / "project", "commit", "-q", "-m", "notes")
    return place / "project"


@pytest.fixture
def stubs(place: Path) -> Stubs:
    return Stubs(place / "state" / "stubs.json")


def git(place: Path, *words: str) -> str:
    names = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {**os.environ, **names, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    return subprocess.run(["git", *words], cwd=place, env=env, check=True, capture_output=True, text=True).stdout


def shown(place: Path) -> str:
    git(place, "add", "-A")
    return git(place, "status", "--porcelain", "--untracked-files=all")


@pytest.mark.parametrize("below", ["", "sub dir"])
def test_git_sees_no_stub_and_afterwards_finds_its_file_as_it_was(stubs: Stubs, project: Path, below: str) -> None:
    exclude = project / ".git" / "info" / "exclude"
    before = exclude.read_bytes()

    stubs.acquire(str(project / below))

    assert (project / below / ".bashrc").exists()
    assert shown(project) == ""
    (project / below / "result").touch()
    assert "result" in shown(project), "what else is new is shown"
    stubs.release(str(project / below))
    assert exclude.read_bytes() == before


def test_stubs_in_a_worktree_are_hidden_in_the_common_directory(stubs: Stubs, project: Path, place: Path) -> None:
    git(project, "worktree", "add", "-q", str(place / "tree"))

    stubs.acquire(str(place / "tree"))

    assert "/.bashrc" in (project / ".git" / "info" / "exclude").read_text()
    assert shown(place / "tree") == ""
    stubs.release(str(place / "tree"))
    assert "/.bashrc" not in (project / ".git" / "info" / "exclude").read_text()


def test_two_workspaces_in_one_repository_have_a_block_each(stubs: Stubs, project: Path) -> None:
    for directory in (project, project / "sub dir"):
        stubs.acquire(str(directory))

    stubs.release(str(project))

    assert shown(project) == ""
    stubs.release(str(project / "sub dir"))
    assert "agentos" not in (project / ".git" / "info" / "exclude").read_text()


def test_a_killed_kernels_block_is_removed_with_its_stubs(stubs: Stubs, project: Path, place: Path) -> None:
    stubs.acquire(str(project))
    for held in stubs._locks.pop(str(project)):
        os.close(held)

    Stubs(place / "state" / "stubs.json").sweep()

    assert not (project / ".bashrc").exists()
    assert "agentos" not in (project / ".git" / "info" / "exclude").read_text()


@pytest.mark.parametrize("how", ["info", "exclude", "fifo", "removed"])
def test_what_an_agent_puts_in_the_place_of_the_file_is_not_followed(
    stubs: Stubs, project: Path, place: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    victim, info = place / "victim", project / ".git" / "info"
    victim.mkdir()
    (victim / "exclude").write_text("precious")
    shutil.rmtree(info)
    if how == "info":
        info.symlink_to(victim)
    elif how != "removed":
        info.mkdir()
        (info / "exclude").symlink_to(victim / "exclude") if how == "exclude" else os.mkfifo(info / "exclude")

    assert ".bashrc" in stubs.acquire(str(project)), "the agent starts all the same"

    assert os.listdir(victim) == ["exclude"]
    assert (victim / "exclude").read_text() == "precious"
    assert f"can't hide the stubs in {project} from git: " in caplog.text
    stubs.release(str(project))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_repository_of_another_user_is_left_alone(project: Path) -> None:
    os.chown(project / ".git" / "info", 1, 1)

    with pytest.raises(PermissionError, match="belongs to another user"):
        update_block(str(project), [".bashrc"])


def test_a_path_that_an_agent_wrote_and_that_names_no_repository_is_left_alone(place: Path) -> None:
    project, other = place / "project", place / "other"
    for directory in (project / "own", other / "info"):
        directory.mkdir(parents=True)
    (project / ".git").write_text("gitdir: own\n")
    (project / "own" / "HEAD").touch()
    (project / "own" / "commondir").write_text(f"{other}\n")

    with pytest.raises(FileNotFoundError, match="is no repository"):
        update_block(str(project), [".bashrc"])

    assert not os.listdir(other / "info")


def test_a_directory_in_no_repository_has_none(place: Path) -> None:
    (place / ".git").mkdir()

    assert find_repository(str(place)) is None
    update_block(str(place), [".bashrc"])


def test_a_block_is_replaced_and_what_is_around_it_stays() -> None:
    text = replace_block("mine", "# begin\n", ["/a"])
    text = replace_block(text + "later\n", "# begin\n", ["/b"])

    assert text == "mine\nlater\n# begin\n/b\n# agentos: end\n"
    assert replace_block(text, "# begin\n", []) == "mine\nlater\n"
