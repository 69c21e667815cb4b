"""What git's configuration leads to in a workspace, found as git would find it."""

import os
import subprocess
from pathlib import Path

import pytest

from agentos.agents.workspaces.git_names import GitNames, NotHeld, find_git_names


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and a home without a configuration."""
    home, made = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    made.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    git(made, "init", "-q")
    return made


def git(directory: Path, *words: str) -> None:
    env = {**os.environ, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
    command = ["git", "-c", "protocol.file.allow=always", *words]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, env={**env, "GIT_COMMITTER_EMAIL": "a@b"})


def write(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("core.fsmonitor", "tools/it"), ("core.sshCommand", "ssh -F tools/it"), ("core.pager", "tools/it | less")),
        *(("core.attributesFile", "tools/it"), ("core.editor", "'tools/it' -f"), ("core.askPass", "tools/it")),
        *(
            ("filter.lfs.clean", "tools/it %f"),
            ("filter.A.b.process", "sh -c 'exec tools/it'"),
            ("diff.x.textconv", "tools/it"),
        ),
        *(("diff.external", "tools/it"), ("merge.x.driver", "./tools/it %O"), ("mergetool.x.cmd", "tools/it $BASE")),
        *(
            ("credential.https://a.b.helper", "!tools/it get"),
            ("credential.helper", "tools/it"),
            ("gpg.ssh.program", "tools/it"),
        ),
        *(("alias.up", "!f() { tools/it; }; f"), ("pager.log", "tools/it"), ("sequence.editor", "tools/it")),
        *(("trailer.x.command", "tools/it"), ("interactive.diffFilter", "tools/it"), ("hook.lint.command", "tools/it")),
    ],
)
def test_a_program_that_a_configuration_names_in_the_workspace_is_found(project: Path, key: str, value: str) -> None:
    write(project / "tools" / "it")
    git(project, "config", key, value)

    assert find_git_names(str(project)).existing == {"tools/it"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("user.name", "tools/it"),
        ("alias.st", "tools/it"),
        ("branch.main.merge", "tools/it"),
        ("core.pager", "/bin/less"),
    ],
)
def test_what_names_no_program_is_left_to_the_agent(project: Path, key: str, value: str) -> None:
    write(project / "tools" / "it")
    git(project, "config", key, value)

    assert find_git_names(str(project)) == GitNames()


def test_a_directory_of_hooks_is_found_and_held_free_where_it_is_absent(project: Path) -> None:
    git(project, "config", "core.hooksPath", ".githooks")
    assert find_git_names(str(project)).stubs == {".githooks": None}

    write(project / "scripts" / "check")
    (project / ".githooks").mkdir()
    (project / ".githooks" / "pre-commit").symlink_to("../scripts/check")
    assert find_git_names(str(project)) == GitNames(frozenset({".githooks", "scripts/check"}))

    (project / ".githooks").rename(project / "real")
    (project / ".githooks").symlink_to("real")
    assert find_git_names(str(project)).existing == {".githooks", "real", "scripts/check"}


def test_hooks_in_the_top_of_the_workspace_are_refused(project: Path) -> None:
    git(project, "config", "core.hooksPath", ".")

    with pytest.raises(NotHeld, match=r"core\.hooksPath is the directory itself"):
        find_git_names(str(project))


def test_the_links_among_a_repositorys_own_hooks_are_followed(project: Path) -> None:
    write(project / "scripts" / "check")
    (project / ".git" / "hooks").mkdir(exist_ok=True)
    (project / ".git" / "hooks" / "pre-push").symlink_to("../../scripts/check")

    assert find_git_names(str(project)).existing == {"scripts/check"}


def test_includes_are_followed_whatever_their_condition(project: Path, tmp_path: Path) -> None:
    write(project / "tools" / "it")
    write(tmp_path / "home" / ".gitconfig", '[includeIf "onbranch:never"]\n\tpath = ~/more\n')
    write(tmp_path / "home" / "more", f"[include]\n\tpath = {project}/.gitsettings\n")
    write(project / ".gitsettings", "[core]\n\tpager = tools/it\n[include]\n\tpath = .gitmore\n\tpath = .gitsettings\n")

    assert find_git_names(str(project)) == GitNames(frozenset({".gitsettings", "tools/it"}), {".gitmore": ""})


def test_what_is_of_linked_worktrees_and_submodules_is_found(project: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    for place in (library, project):
        if place is library:
            git(place, "init", "-q")
        write(place / "file")
        git(place, "add", "file")
        git(place, "commit", "-qm", "first")
    git(project, "submodule", "add", "-q", str(library), "vendor/lib")
    git(project, "worktree", "add", "-q", str(tmp_path / "beside"))
    module, tree = ".git/modules/vendor/lib", ".git/worktrees/beside"

    found = find_git_names(str(project))

    assert found.existing == {f"{module}/config", f"{module}/hooks", f"{tree}/commondir", "vendor/lib/.git"}
    assert found.stubs == {
        f"{module}/config.worktree": "",
        f"{module}/commondir": ".\n",
        f"{tree}/config.worktree": "",
    }


@pytest.mark.parametrize("kind", ["fifo", "large", "no configuration", "binary", "itself"])
def test_a_configuration_that_cannot_be_read_keeps_nothing_waiting(project: Path, kind: str) -> None:
    included = project / "included"
    if kind == "fifo":
        os.mkfifo(included)
    elif kind == "large":
        with included.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "itself":
        included.symlink_to(included)
    else:
        included.write_bytes(b"[core\nno" if kind == "no configuration" else bytes(range(256)))
    git(project, "config", "include.path", str(included))

    find_git_names(str(project))


def test_reading_runs_nothing(project: Path, tmp_path: Path) -> None:
    program = write(tmp_path / "program", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "alias.config"):
        git(project, "config", key, f"!{program}" if key.startswith("alias") else str(program))

    find_git_names(str(project))

    assert not (tmp_path / "ran").exists()
