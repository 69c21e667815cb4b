"""An agent works in an overlay of a directory: nothing of it is in the directory until the operator applies it."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, until
from tests.system.agents import RELAY, ask, info, known, up

Agentos = Callable[..., "subprocess.CompletedProcess[str]"]

TOML = """
[[agents]]
name = "worker"
script = "{place}/relay.py"
ready = "hello"
required = true
workspace = {{ path = "{place}/project", mode = "overlay" }}
permissions = {{ level = "sandboxed", allow = {{ send = ["*"], calls = ["APPLY", "UNDO"] }} }}
"""
WORK = """
import os
open("a.txt", "w").write("the agent's\\n")
os.unlink("sub/b.txt")
os.makedirs("made/.vscode")
open("made/.vscode/tasks.json", "w").write("{}")
open("made/new.txt", "w").write("new\\n")
"""
BEFORE = {"a.txt": "a\n", "sub/b.txt": "b\n"}
APPLIED = {"a.txt": "the agent's\n", "made/new.txt": "new\n"}

WRONG: Sequence[tuple[dict[str, Any], str]] = (
    ({"paths": ["../x"]}, "bad_request"),
    ({"paths": ["/etc"]}, "bad_request"),
    ({"also": ["a.txt"]}, "bad_request"),
    ({"resolve": {"other": "ours"}}, "bad_request"),
    ({"digest": "0" * 64}, "conflict"),
    ({"name": "stranger"}, "not_found"),
)


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory of the operator's, and beside it the agent's script."""
    with tempfile.TemporaryDirectory(prefix="aos-work-", dir="/tmp") as made:
        project = Path(made, "project")
        (project / "sub").mkdir(parents=True)
        for name, text in BEFORE.items():
            (project / name).write_text(text)
        Path(made, "relay.py").write_text(dedent(RELAY))
        yield project


@pytest.fixture
def worker(own_kernel: OwnKernel, project: Path) -> Kernel:
    """A kernel whose agent has an overlay of that directory."""
    return own_kernel(TOML.format(place=project.parent))


@pytest.fixture
def agentos(worker: Kernel) -> Agentos:
    """``agentos("diff", "worker")``"""
    return lambda *words: run_agentos(
        words, worker.place, {**environment(worker.place), "AGENTOS_SOCKET": worker.socket}
    )


def run(client: AgentOSClient, code: str) -> Any:
    """Run code in the agent."""
    assert ask(client, info(client, "worker")["id"], "run", code=code) == "done"


def files(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}


def test_nothing_is_in_the_directory_until_it_is_applied_and_it_can_be_undone(worker: Kernel, project: Path) -> None:
    with worker.client() as client:
        run(client, WORK)
        assert files(project) == BEFORE

        shown = up(client.diff("worker", content=True))
        applied = up(client.apply("worker", shown["digest"]))

        assert {one["path"]: one["change"] for one in shown["changes"]} == {
            "a.txt": "changed",
            "made": "created",
            "made/.vscode": "created",
            "made/.vscode/tasks.json": "created",
            "made/new.txt": "created",
            "sub/b.txt": "deleted",
        }
        assert shown["changes"][0]["diff"] == "@@ -1,1 +1,1 @@\n-a\n+the agent's\n"
        assert {left["path"] for left in applied["conflicts"]} == {"made/.vscode", "made/.vscode/tasks.json"}
        assert files(project) == APPLIED

        up(client.undo("worker"))

        assert files(project) == BEFORE


def test_an_agent_may_look_at_its_changes_and_never_applies_them_itself(worker: Kernel, project: Path) -> None:
    with worker.client() as client:
        layer = client.inspect("worker")["isolation"]["layers"]["overlay"]
        spec = client.inspect("worker")["spec"]

    assert (layer["asked"], layer["active"]) == (True, True)
    assert "userxattr" in layer["evidence"]
    assert str(project.parent) not in layer["evidence"]
    assert (spec["workspace"], spec["workspace_mode"]) == (str(project), "overlay")

    with worker.client() as client:
        run(client, "open('a.txt', 'w').write('mine')")
        number = info(client, "worker")["id"]

        shown = ask(client, number, "diff", name="worker")
        answers = [
            ask(client, number, "diff", name="worker", content=True),
            ask(client, number, "apply", name="worker", digest=shown["digest"]),
            ask(client, number, "undo", name="worker"),
        ]
        right = {"name": "worker", "digest": client.diff("worker")["digest"]}
        wrong = [client.apply(**{**right, **words})["code"] for words, _ in WRONG]

    assert [one["path"] for one in shown["changes"]] == ["a.txt"]
    assert [answer["code"] for answer in answers] == ["permission_denied"] * 3
    assert wrong == [code for _, code in WRONG]
    assert files(project) == BEFORE


def test_the_work_survives_a_restart_of_the_agent_and_a_kill_of_the_kernel(worker: Kernel, project: Path) -> None:
    with worker.client() as client:
        run(client, WORK)
        os.kill(known(client, "worker"), 9)
        until(lambda: info(client, "worker")["restarts"] == 1 and info(client, "worker")["state"] == "running", "again")
        run(client, f"import os\nassert open('a.txt').read() == {APPLIED['a.txt']!r}\nassert os.listdir('sub') == []")
        digest = client.diff("worker")["digest"]
    worker.kill()
    worker.start_again()

    with worker.client() as client:
        assert client.diff("worker")["digest"] == digest
        up(client.apply("worker", digest))
    assert files(project) == APPLIED


def test_look_then_apply_by_the_command_line(worker: Kernel, project: Path, agentos: Agentos) -> None:
    with worker.client() as client:
        run(client, WORK)

        shown = agentos("diff", "worker")
        assert (shown.returncode, "+the agent's" in shown.stdout, "--also made/.vscode" in shown.stdout) == (
            0,
            True,
            True,
        )
        digest = re.findall(r"--digest ([0-9a-f]{12})$", shown.stdout, re.MULTILINE)[0]
        assert "there is no terminal to ask on" in agentos("apply", "worker").stderr

        applied = agentos("apply", "worker", "--digest", digest)
        assert (applied.returncode, "left: made/.vscode" in applied.stdout) == (3, True)
        assert files(project) == APPLIED
        stale = agentos("apply", "worker", "--digest", digest)
        assert (stale.returncode, "the changes aren't those" in stale.stderr) == (1, True)

        (project / "a.txt").write_text("the host's\n")
        run(client, "open('a.txt', 'w').write('again\\n')")
        conflict = agentos("apply", "worker", "--yes", "--also", "made/.vscode")
        assert (conflict.returncode, "left: a.txt: the host has changed it" in conflict.stdout) == (3, True)
        assert agentos("apply", "worker", "--yes", "--ours", "a.txt").returncode == 0

        assert agentos("diff", "worker").stdout == "no changes\n"
        assert json.loads(agentos("undo", "worker", "--json").stdout)["undone"] == ["a.txt"]
        assert (project / "a.txt").read_text() == "the host's\n"


def test_a_rollback_begins_with_the_directory_as_it_is(worker: Kernel, project: Path, agentos: Agentos) -> None:
    with worker.client() as client:
        run(client, WORK)

        assert (
            agentos("rollback", "worker@start").stdout == "worker works on the directory as it is, and was restarted\n"
        )

        until(lambda: info(client, "worker")["state"] == "running", "it runs again")
        run(client, "assert open('a.txt').read() == 'a\\n'")
        assert client.diff("worker")["changes"] == []
        client.stop("worker")
        assert client.rollback("worker", "start")["restarted"] is False
    assert files(project) == BEFORE
    assert agentos("rollback", "worker").returncode == 2


def test_a_spawned_agent_has_an_overlay_too_and_it_must_name_a_directory(
    kernel: Kernel, client: AgentOSClient, project: Path
) -> None:
    command = ["/bin/sh", "-c", "echo new > a.txt; exec sleep 1000"]
    spawned = client.spawn(
        "maker", command=command, restart="temporary", workspace=str(project), workspace_mode="overlay"
    )
    refused = [
        client.spawn("other", command=command, workspace_mode="overlay"),
        client.spawn("other", command=["/bin/true"], workspace_mode="overlay", isolation="none"),
    ]
    until(lambda: [one["path"] for one in client.diff("maker")["changes"]] == ["a.txt"], "it has written")

    assert spawned["success"], spawned
    assert [each["error"].partition(":")[0] for each in refused] == ["workspace", "workspace_mode"]
    assert files(project) == BEFORE
