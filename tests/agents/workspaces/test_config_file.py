"""The configuration file in an agent's workspace: what is protected, what is refused, when it is read again."""

import os
from pathlib import Path

import pytest

from agentos.agents.workspaces.config_file import ConfigFile, Unprotected, list_entries
from agentos.agents.workspaces.workspace import BadWorkspace, Workspaces
from agentos.sandbox.policy import Directory, Limits


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def config(path: Path) -> Path:
    path.write_text("[kernel]\n")
    return path


def protected(place: Path, file: Path) -> list[str]:
    return list(ConfigFile(str(file)).find_protected(str(place / "project")))


def test_a_file_at_the_top_is_protected_whatever_its_name(place: Path) -> None:
    assert protected(place, config(place / "project" / "kernel.toml")) == ["kernel.toml"]
    assert protected(place, config(place / "elsewhere" / "kernel.toml")) == []


@pytest.mark.parametrize("below", ["sub/agentos.toml", "sub/deep/agentos.toml"])
def test_a_file_that_an_agent_could_replace_with_its_directory_is_refused(place: Path, below: str) -> None:
    file = place / "project" / below
    file.parent.mkdir(exist_ok=True)

    with pytest.raises(Unprotected, match=f"{file}, the kernel's configuration file, is in a directory of it"):
        protected(place, config(file))


def test_symlinks_on_the_way_to_the_file_are_protected_or_refused(place: Path) -> None:
    config(place / "elsewhere" / "agentos.toml")
    (place / "project" / "link").symlink_to("../elsewhere")
    (place / "project" / "file.toml").symlink_to(place / "elsewhere" / "agentos.toml")
    (place / "outside").symlink_to("project/sub/link")
    (place / "project" / "sub" / "link").symlink_to("../../elsewhere")

    assert protected(place, place / "project" / "file.toml") == ["file.toml"]
    with pytest.raises(Unprotected):
        protected(place, place / "outside" / "agentos.toml")
    with pytest.raises(Unprotected):
        protected(place, place / "project" / "link" / ".." / "project" / "sub" / "link" / "agentos.toml")


def test_the_entries_of_a_path_are_those_that_linux_reads(place: Path) -> None:
    (place / "a").symlink_to("project/../elsewhere")
    (place / "loop").symlink_to("loop")
    top = os.path.realpath(place)

    found = [os.path.relpath(entry, top) for entry in list_entries(f"{top}/a//./x") if entry.startswith(f"{top}/")]

    assert found == ["a", "project", "elsewhere", "elsewhere/x"]
    assert len(list(list_entries(f"{top}/loop"))) < 100


async def test_workspaces_protect_the_file_with_the_other_names(place: Path) -> None:
    file = config(place / "project" / "kernel.toml")
    workspaces = Workspaces(place / "state", False, [], str(file))
    (place / "state").mkdir()

    found = await workspaces.prepare("a", str(place / "project"), Limits(), None)
    assert isinstance(found.mount, Directory)
    assert {"kernel.toml", "agentos.toml", "presets"} <= set(found.mount.protected)
    await workspaces.release(found)
    assert sorted(os.listdir(place / "project")) == ["kernel.toml", "sub"]

    with pytest.raises(BadWorkspace, match="is the kernel's own"):
        await workspaces.prepare("a", str(place), Limits(), None)


async def test_a_file_that_is_not_there_cannot_be_made(place: Path) -> None:
    workspaces = Workspaces(place / "state", False, [], str(place / "project" / "kernel.toml"))
    (place / "state").mkdir()

    found = await workspaces.prepare("a", str(place / "project"), Limits(), None)
    assert (place / "project" / "kernel.toml").read_text() == ""

    await workspaces.release(found)
    assert os.listdir(place / "project") == ["sub"]


def test_a_file_that_was_replaced_beside_an_agent_is_not_read_until_it_is_asked_for_again(place: Path) -> None:
    file, workspace = config(place / "project" / "agentos.toml"), str(place / "project")
    known = ConfigFile(str(file))
    replace(file)
    known.check_protected([])  # no agent works beside it
    known.hold(workspace)
    file.write_text("# written in place\n")
    known.check_protected([])

    replace(file)

    with pytest.raises(Unprotected, match="was replaced, and evil, in whose workspace it is, can write to the new"):
        known.check_protected(["evil"])
    with pytest.raises(Unprotected, match="can write"):
        known.check_protected(["evil"])
    known.check_protected([])
    replace(file)
    replace(file)  # which would have the former inode number
    with pytest.raises(Unprotected, match="look at the file, then reload again"):
        known.check_protected([])
    known.check_protected([])


def test_what_replaced_the_file_after_all_agents_had_ended_is_the_hosts(place: Path) -> None:
    file, workspace = config(place / "project" / "agentos.toml"), str(place / "project")
    known = ConfigFile(str(file))
    known.hold(workspace)
    known.hold(workspace)
    known.release(workspace)
    known.release(workspace)
    replace(file)
    known.check_protected([])

    known.hold(workspace)
    replace(file)
    known.release(workspace)

    with pytest.raises(Unprotected):
        known.check_protected([])
    known.check_protected([])


def replace(file: Path) -> None:
    """Save as an editor that writes a new file and renames it."""
    new = config(file.with_name("new"))
    new.replace(file)
