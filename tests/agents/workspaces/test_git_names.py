"""What git's configuration leads to in a workspace, found as git would find it."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from agentos.agents.workspaces import git_names
from agentos.agents.workspaces.git_names import MAX_CACHED, GitNames, NotHeld, _parse, find_git_names, find_led
from agentos.protected_names import IN_GIT


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
        *(("submodule.x.update", "!tools/it"), ("imap.tunnel", "tools/it"), ("remote.a.url", "ext::tools/it %S")),
        *(("lfs.extension.x.clean", "tools/it"), ("annex.x-command", "tools/it"), ("svn.authorsProg", "tools/it")),
        *(("alias.st", "-c core.fsmonitor=tools/it status"), ("instaweb.httpd", "tools/it -f")),
        *(
            ("core.fsmonitor", "$(git rev-parse --show-toplevel)/tools/it"),
            ("merge.x.driver", '"${PWD:-.}"/tools/it %O'),
            ("diff.x.command", "sh '$(cd \"$(git rev-parse --show-cdup)\" && pwd)/tools/it'"),
        ),
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
    assert list(find_led(str(project))) == [""], "none of its names can be told from others"


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


@pytest.mark.parametrize("place", ["home", "home/dotfiles"])
def test_an_include_of_a_configuration_behind_a_symlink_is_found_where_git_finds_it(
    project: Path, tmp_path: Path, place: str
) -> None:
    dotfiles = write(tmp_path / "home" / "dotfiles" / "gitconfig", "[include]\n\tpath = more\n")
    (tmp_path / "home" / ".gitconfig").symlink_to(dotfiles)
    write(tmp_path / place / "more", "[core]\n\thooksPath = .githooks\n")

    assert find_git_names(str(project)).stubs == {".githooks": None}


@pytest.mark.parametrize("workspace", [".", "sub", "sub/deeper"])
def test_a_repository_behind_a_symlink_is_found(project: Path, tmp_path: Path, workspace: str) -> None:
    (project / workspace).mkdir(parents=True, exist_ok=True)
    (project / ".git").rename(tmp_path / "elsewhere")
    (project / ".git").symlink_to(tmp_path / "elsewhere")
    git(project, "config", "core.hooksPath", f"{workspace}/.githooks")

    assert (".githooks", None) in find_git_names(str(project / workspace)).stubs.items()


@pytest.mark.parametrize("prefix", ["~{user}" + "/.." * 20, ":(optional)", ""])
def test_a_path_is_what_git_takes_it_for(project: Path, prefix: str) -> None:
    before = prefix.format(user=pwd.getpwuid(os.geteuid()).pw_name)
    git(project, "config", "core.hooksPath", f"{before}{project}/.githooks")

    assert find_git_names(str(project)).stubs == {".githooks": None}


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

    assert found.existing >= {f"{module}/config", f"{module}/hooks", f"{tree}/commondir", "vendor/lib/.git"}
    assert found.stubs.items() >= {
        (f"{module}/config.worktree", ""),
        (f"{module}/commondir", ".\n"),
        (f"{module}/remotes", None),
        (f"{tree}/config.worktree", ""),
    }
    assert found.existing | {*found.stubs} == {
        *(name.replace(".git", module) for name in IN_GIT),
        *(f"{tree}/commondir", f"{tree}/config.worktree", "vendor/lib/.git"),
    }


@pytest.mark.parametrize("kind", ["fifo", "no configuration", "binary", "itself"])
def test_a_configuration_that_cannot_be_read_keeps_nothing_waiting(project: Path, kind: str) -> None:
    included = project / "included"
    if kind == "fifo":
        os.mkfifo(included)
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


def test_a_program_that_is_not_there_can_not_be_made(project: Path) -> None:
    git(project, "config", "core.fsmonitor", "tools/watch")
    git(project, "config", "alias.up", "!sh ./up && cat a/b $1/c")
    (project / "tools").mkdir()
    assert find_git_names(str(project)) == GitNames(stubs={"tools/watch": "", "up": ""})

    (project / "tools").rmdir()
    assert find_git_names(str(project)).stubs == {"tools": None, "up": ""}


@pytest.mark.parametrize(
    ("key", "value"),
    [("include.path", "../a/b/it"), ("core.hooksPath", "a/b"), ("init.templateDir", "a/b/c")],
)
def test_a_name_in_a_directory_that_is_absent_is_held_by_the_first_that_is(project: Path, key: str, value: str) -> None:
    git(project, "config", key, value)
    assert find_git_names(str(project)) == GitNames(stubs={"a": None})

    write(project / "a")
    assert find_git_names(str(project)) == GitNames(frozenset({"a"}))


def test_a_file_that_any_key_names_is_held_if_it_can_be_executed(project: Path) -> None:
    for name in ("run", "read"):
        write(project / "tools" / name).chmod(0o755 if name == "run" else 0o644)
        git(project, "config", f"newtool.{name}", f"tools/{name} --now")

    assert find_git_names(str(project)) == GitNames(frozenset({"tools/run"}))


@pytest.mark.parametrize("made", ["linked worktree", "submodule", "submodule with a repository of its own"])
def test_relative_paths_begin_in_each_worktree_in_the_workspace(project: Path, tmp_path: Path, made: str) -> None:
    git(project, "commit", "-q", "--allow-empty", "-m", "first")
    write(tmp_path / "home" / ".gitconfig", "[core]\n\thooksPath = .hooks\n\tfsmonitor = tools/it\n")
    if made == "linked worktree":
        git(project, "worktree", "add", "-q", "inner")
    else:
        git(tmp_path, "clone", "-q", str(project), "library")
        if made == "submodule":
            git(project, "submodule", "add", "-q", str(tmp_path / "library"), "inner")
        else:
            (tmp_path / "library").rename(project / "inner")
            write(project / ".gitmodules", '[submodule "a"]\n\tpath = inner\n')
    write(project / "inner" / "tools" / "it")

    found = find_git_names(str(project))

    own = {"inner/.git/config", "inner/.git/hooks"} if made.endswith("own") else {"inner/.git"}
    assert found.existing >= {"inner/tools/it", *own}
    assert found.stubs.items() >= {".hooks": None, "inner/.hooks": None}.items()


@pytest.mark.parametrize("place", [".bare", "."])
def test_a_repository_that_is_not_in_dot_git_is_held(project: Path, tmp_path: Path, place: str) -> None:
    top = project if place == ".bare" else project / ".git"
    if place == ".bare":
        (project / ".git").rename(project / ".bare")
        write(project / ".git", "gitdir: ./.bare\n")
    write(top / place / "hooks" / "pre-commit").chmod(0o755)

    found = find_git_names(str(top))

    assert found.existing >= {os.path.normpath(f"{place}/{name}") for name in ("config", "hooks")}
    assert found.existing | {*found.stubs} == {os.path.normpath(name.replace(".git", place)) for name in IN_GIT}


def test_what_an_agent_leaves_behind_hides_nothing_from_the_next_search(project: Path) -> None:
    git(project, "config", "core.hooksPath", ".githooks")
    module = project / ".git" / "modules" / "a"
    write(module / "HEAD")
    absent = "".join(f"\tpath = /nonexistent/{number}\n" for number in range(500))
    write(module / "config", f"[include]\n{absent}")
    assert ".githooks" in find_git_names(str(project)).stubs

    included = "".join(f"\tpath = {write(module / str(number))}\n" for number in range(500))
    write(module / "config", f"[include]\n{included}")
    with pytest.raises(NotHeld, match="in more than 200 files"):
        find_git_names(str(project))

    with (module / "config").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(NotHeld, match=r"more than 4 MiB, .*/modules/a/config is a part of it"):
        find_git_names(str(project))

    write(module / "config")
    for number in range(1001):
        (project / ".git" / "modules" / f"b{number}").mkdir()
    with pytest.raises(NotHeld, match=r"modules has more than 1000 directories"):
        find_git_names(str(project))


@pytest.mark.parametrize("line", ["clean = a/b {} c/d", "clean = ./a{}", "anything = a/b {} c/d"])
def test_a_search_ends_however_many_paths_an_agents_repositories_name(
    project: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_names, "MAX_WORK", 100_000)
    named = "".join(f"\t{line.format(number)}\n" for number in range(2000))
    for number in range(40):
        (project / f"w{number}").mkdir()
        module = project / ".git" / "modules" / f"m{number}"
        write(module / "HEAD")
        write(module / "config", f'[core]\n\tworktree = ../../../w{number}\n[filter "{number}"]\n{named}')

    with pytest.raises(NotHeld, match="names too many paths"):
        find_git_names(str(project))


def test_what_is_kept_of_configurations_that_were_read_is_bounded(project: Path) -> None:
    kept = _parse.cache_info().currsize
    write(project / ".git" / "config", f"[core]\n\tfsmonitor = tools/it\n# {'x' * MAX_CACHED}\n")
    write(project / "tools" / "it")

    assert find_git_names(str(project)).existing == {"tools/it"}
    assert _parse.cache_info().currsize == kept


@pytest.mark.parametrize("kind", ["fifo", "NUL", "directory"])
def test_a_file_of_git_that_leads_nowhere_is_passed_over(project: Path, kind: str) -> None:
    (project / ".git").rename(project / ".bare")
    write(project / ".git", "gitdir: ./.bare\n")
    common = project / ".bare" / "commondir"
    if kind == "fifo":
        os.mkfifo(common)
        writer = os.open(common, os.O_RDWR)
    elif kind == "NUL":
        write(common, "a\0b\n")
    else:
        common.mkdir()

    find_git_names(str(project))

    if kind == "fifo":
        os.close(writer)
