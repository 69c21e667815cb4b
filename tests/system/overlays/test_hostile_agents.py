"""Twenty hostile agents work in overlays of one repository: git sees nothing of it until something is applied."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.system.agents import up

RUNS = "printf '#!/bin/sh\\ntouch /tmp/aos-obeyed\\n'"
HOSTILE = (
    f"{RUNS} > .git/hooks/post-index-change; chmod 755 .git/hooks/post-index-change",
    f"mkdir -p hooks; {RUNS} > hooks/pre-commit; chmod 755 hooks/pre-commit; git config core.hooksPath hooks",
    "git config core.fsmonitor 'touch /tmp/aos-obeyed'",
    "git config filter.x.clean 'touch /tmp/aos-obeyed'; echo '* filter=x' > .gitattributes",
    "git config include.path ../evil.conf; echo '[alias] st = !touch /tmp/aos-obeyed' > evil.conf",
    "mv .git .git-old; git init -q .; git config core.worktree /",
    "rm -rf .git; echo 'gitdir: /tmp/elsewhere' > .git",
    "rm -rf .git; ln -s /tmp/elsewhere .git",
    "echo /tmp/elsewhere > .git/commondir; echo /tmp/objects > .git/objects/info/alternates",
    "echo '*' > .git/info/exclude; git update-index --assume-unchanged a.txt; echo x > a.txt",
    "git checkout -q -b other; git rm -q a.txt; git -c user.name=x -c user.email=x@x commit -q -m x; git gc -q",
    "git update-ref -d HEAD; rm -f .git/index .git/HEAD; : > .git/packed-refs",
    "find . -type f -not -path './finished*' -exec truncate -s 0 {} +",
    "find . -mindepth 1 -delete",
    "chmod -R 000 sub; chmod 000 a.txt; touch -d 1970-01-01 link",
    "rm -f a.txt; ln -s ../../../../etc/passwd a.txt; mv sub sub2; ln -s / sub",
    "ln -f a.txt hard; echo through >> hard; exec 3<> a.txt; echo held >&3; "
    f"mkdir .githooks; {RUNS} > .githooks/post-index-change; chmod 755 .githooks/*",
    "mkfifo a.fifo; rm -f a.txt; mkdir a.txt; mkfifo a.txt/x",
    "python3 -c 'import os; os.setxattr(\"sub\", \"user.overlay.opaque\", b\"y\")'; rm sub/b.txt",
    "mkdir -p .vscode; echo {} > .vscode/tasks.json; echo '[submodule \"x\"]' > .gitmodules; : > \"$(printf 'a\\nb')\"",
)  # fmt: skip
BENIGN = 16  # whose change of a file may be applied


@pytest.fixture
def repository() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aos-work-", dir="/tmp") as made:
        top = Path(made, "project")
        (top / "sub").mkdir(parents=True)
        (top / "a.txt").write_text("a\n")
        (top / "sub/b.txt").write_text("b\n")
        (top / "link").symlink_to("a.txt")
        (top / ".gitignore").write_text("*.log\n")
        git(top, "init", "-q", "-b", "main")
        git(top, "add", "-A")
        git(top, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-q", "-m", "begin")
        yield top


def git(top: Path, *words: str) -> str:
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *words], cwd=top, env=env, check=True, capture_output=True, text=True).stdout


def survey(top: Path) -> Mapping[str, tuple[object, ...]]:
    """All that a file's or directory's entry says, and each file's content."""

    def describe(path: Path) -> tuple[object, ...]:
        found = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        return found.st_ino, found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, os.listxattr(path), content

    return {str(path): describe(path) for path in (top, *top.rglob("*"))}


def await_work(client: AgentOSClient, number: int) -> None:
    """Until an agent has finished; it must have changed something."""

    def list_changes() -> Sequence[str]:
        return [one["path"] for one in client.diff(f"hostile-{number}")["changes"]]

    until(lambda: "finished" in list_changes(), f"agent {number} has done it", show=list_changes)
    assert len(list_changes()) > 1, HOSTILE[number]


def test_git_shows_nothing_of_twenty_agents_until_one_is_applied(own_kernel: OwnKernel, repository: Path) -> None:
    kernel: Kernel = own_kernel("")
    git(repository, "config", "core.hooksPath", ".githooks")
    before = survey(repository)

    with kernel.client() as client:
        for number, act in enumerate(HOSTILE):
            up(
                client.spawn(
                    f"hostile-{number}",
                    command=["/bin/sh", "-c", f"{act}\n: > finished; exec sleep 1000"],
                    restart="temporary",
                    workspace=str(repository),
                    workspace_mode="overlay",
                )
            )
        for number in range(len(HOSTILE)):
            await_work(client, number)

        assert survey(repository) == before
        assert git(repository, "status", "--porcelain", "--ignored", "--branch") == "## main\n"

        name = f"hostile-{BENIGN}"
        up(client.apply(name, client.diff(name)["digest"]))

    assert git(repository, "status", "--porcelain", "--ignored").splitlines() == [" M a.txt", "?? finished", "?? hard"]
    assert (repository / "a.txt").read_text() == "held\nough\n"
    assert not Path("/tmp/aos-obeyed").exists()
