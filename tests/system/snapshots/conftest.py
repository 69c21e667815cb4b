"""A kernel whose agent works in an overlay of a directory, and what it sees there."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment
from tests.system.agents import RELAY, ask, in_state, info

Agentos = Callable[..., "subprocess.CompletedProcess[str]"]

TOML = """
[[agents]]
name = "worker"
script = "{place}/relay.py"
ready = "hello"
required = true
workspace = {{ path = "{place}/project", mode = "overlay" }}
permissions = {{ level = "sandboxed", allow = {{ send = ["*"], calls = ["*"] }} }}
"""
BEFORE = {"a.txt": "a\n", "sub/b.txt": "b\n"}


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
    """``agentos("snapshot", "worker")``"""
    return lambda *words: run_agentos(
        words, worker.place, {**environment(worker.place), "AGENTOS_SOCKET": worker.socket}
    )


def run(client: AgentOSClient, code: str, name: str = "worker") -> None:
    """Run code in the agent."""
    in_state(client, name, "running")
    assert ask(client, info(client, name)["id"], "run", code=code) == "done"


LOOK = """
import json, pathlib
found = {str(p): p.read_text() for p in sorted(pathlib.Path(".").rglob("*")) if p.is_file()}
assert me.store("seen", found, scope="session")["success"]
"""


def fetch(client: AgentOSClient, key: str, scope: str = "agent", name: str = "worker") -> dict[str, Any]:
    """FETCH's reply to the agent."""
    found: dict[str, Any] = ask(client, info(client, name)["id"], "fetch", key=key, scope=scope)
    return found


def see(client: AgentOSClient, name: str = "worker") -> dict[str, str]:
    """The files of its workspace as the agent sees them."""
    run(client, LOOK, name)
    return dict(fetch(client, "seen", "session", name)["value"])


def files(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}
