"""A kernel with a dashboard, and recorded lives of programs that ask an offline model."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernel import Kernel, running, until
from tests.support.ports import free_port
from tests.support.runs.enter import let_in
from tests.system.agents import RECORDED, in_state
from tests.system.loop_agents import rule
from tests.web.chromium import Open, pages

HOSTILE = "<img src=x onerror=alert(1)>"
TOML = """
[dashboard]
listen = "127.0.0.1:{port}"

[llm]
provider = "offline"
model = "wise"

[llm.offline]
rules = "{code}/rules.toml"
"""
AGENT = RECORDED + 'permissions = {{ level = "sandboxed", allow = {{ state_write = ["turn"] }} }}\n'
CODER = """
from agentos_sdk import AgentOSClient

messages = []
with AgentOSClient() as me:
    for turn in range(3):
        messages.append({"role": "user", "content": f"turn {turn} <img src=x onerror=alert(1)>"})
        messages.append({"role": "assistant", "content": me.think(messages=messages)["content"]})
        me.store("turn", turn, scope="global")
print(messages[-1]["content"], flush=True)
"""
PROGRAMS = {"coder": CODER, "changed": CODER}
RULES = [rule("turn", model="fast", reply="quick"), rule(r"turn (\d)", reply=r"said \1")]


def has_ended(manifest: Path) -> bool:
    return manifest.exists() and json.loads(manifest.read_text()).get("ended") is not None


@pytest.fixture(scope="package")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs."""
    place = tmp_path_factory.mktemp("code")
    let_in(place, tmp_path_factory.getbasetemp())
    for name, text in PROGRAMS.items():
        (place / f"{name}.py").write_text(text)
    (place / "rules.toml").write_text("\n".join(RULES))
    return place


@pytest.fixture(scope="module")
def kernel(kernels: None, code: Path) -> Iterator[Kernel]:
    agents = "".join(AGENT.format(name=name, code=code) for name in PROGRAMS)
    with running(TOML.format(code=code, port=free_port()) + agents) as started:
        with started.client() as client:
            for name in PROGRAMS:
                in_state(client, name, "exited")
                manifest = started.state_dir / "recordings" / f"{name}-1.recording" / "recording.json"
                until(partial(has_ended, manifest), f"{name} is recorded")
        yield started


@pytest.fixture
def open_page(kernel: Kernel, context: Any) -> Iterator[Open]:
    """Opens pages of the test's own: a page remembers the call that was opened, and replies about recordings."""
    with pages(context, kernel, keep=True) as show:
        yield partial(show, own=True)


def begin_two_checked_forks(question: Any, check: str) -> None:
    """On the page of a question, whose forks this command line judges."""
    question.get_by_label("times").fill("2")
    question.get_by_label("check").fill(check)
    question.get_by_role("button", name="fork from here…").click()
    question.get_by_role("alertdialog").get_by_role("button", name="begin 2 forks").click()
