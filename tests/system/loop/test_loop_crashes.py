"""kill -9 of an agent, or of the kernel, at each of the two records of each tool: nothing is done twice.

Each agent works on a task of one tool, and has one point at which it is killed, just before or after one of its
records is stored. Then it is started again and goes on. ``make proof-loop`` takes all tools and points.
"""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.loop.engine.steps import IN_DOUBT
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import is_night
from tests.support.servers.http_server import HttpServer, http_server
from tests.support.servers.mcp_servers import PLAIN, allow_tools
from tests.system.agents import up, write
from tests.system.loop_agents import PNG, done, ended, kernel_with, rule

AGENT = """
import os, signal, sys, time
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import AgenticLoop
from agentos_sdk.opcodes import Op

tool, when, record, how = sys.argv[1:]

def bump() -> str:
    "Count up."
    with open("count", "a") as file:
        file.write("x")
    return "counted"

class Killed(AgentOSClient):
    def request(self, op, fields, wait=0.0):
        point = op == Op.STORE and fields["key"].endswith("/" + record) and not os.path.exists("killed")
        if point and when == "before":
            die()
        reply = super().request(op, fields, wait)
        if point and when == "after":
            die()
        return reply

def die():
    open("killed", "w").close()
    if how == "agent":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)  # until the kernel is killed

with Killed() as kernel:
    AgenticLoop(kernel, tools=[bump]).run(f"use {tool} in {os.environ['PLACE']}", task_id="t")
print("over", flush=True)
time.sleep(1000)
"""

FOREIGN = "plain__echo"  # a tool of an MCP server
ARGUMENTS: dict[str, dict[str, Any]] = {
    "exec": {"command": "printf x >> count; echo counted"},
    "write_file": {"path": "count", "content": "x"},
    "edit_file": {"path": "base", "old_text": "x", "new_text": "xx"},
    "bump": {},
    "http": {},
    "spawn_subagent": {"task": "use nothing"},
    "read_file": {"path": "base"},
    "list_files": {},
    "search_files": {"pattern": "x"},
    "view_image": {"path": "plot.png"},
    FOREIGN: {"text": "hello"},
}
READS = ("read_file", "list_files", "search_files", "view_image")
POINTS = list(product(("before", "after"), ("started", "finished")))
FEW = [
    *(("exec", point) for point in POINTS),
    *(("edit_file", point) for point in POINTS[1:3]),
    *((name, ("after", "started")) for name in ("bump", "read_file", "view_image", "http", "spawn_subagent", FOREIGN)),
    *((name, ("before", "finished")) for name in ("write_file", FOREIGN)),
]


# What is only the loop's is the same if the kernel dies too.
OF_KERNEL = [*FEW[:4], *((name, ("after", "started")) for name in ("http", "spawn_subagent", FOREIGN))]


def cases(killed: str) -> list[tuple[str, tuple[str, str]]]:
    if is_night():
        return list(product(ARGUMENTS, POINTS))
    return FEW if killed == "agent" else OF_KERNEL


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with http_server() as started:
        yield started


@pytest.fixture(scope="module")
def kernel(kernels: None, server: HttpServer) -> Iterator[Kernel]:
    arguments = {**ARGUMENTS, "http": {"url": server.url("/\\1")}}
    first = [rule(rf"^use {name} in (\S+)$", (name, each)) for name, each in arguments.items()]
    with kernel_with(*first, rule("^use nothing$", done()), rule("(?s).*", done()), more=PLAIN) as started:
        with started.client() as client:
            allow_tools(client, "plain")
        yield started


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("killed", ["agent", "kernel"])
def test_no_tool_call_is_made_twice(killed: str, kernel: Kernel, server: HttpServer) -> None:
    names = {
        f"{killed}-{tool}-{when}-{record}".replace("_", "-"): (tool, when, record)
        for tool, (when, record) in cases(killed)
    }
    for name in names:
        place = kernel.place / name
        place.mkdir()
        (place / "base").write_text("x")
        (place / "plot.png").write_bytes(PNG)
        os.chmod(place, 0o777)

    with kernel.client() as client:
        for name in names:
            spawn(kernel, client, name, *names[name], killed, server)
        if killed == "kernel":
            until(lambda: all((kernel.place / name / "killed").exists() for name in names), "all are at their point")
    if killed == "kernel":
        kernel.kill()
        kernel.start_again()
    with kernel.client() as client:
        if killed == "kernel":
            for name in names:
                spawn(kernel, client, name, *names[name], killed, server)
        for name, (tool, when, record) in names.items():
            until(lambda name=name: has_ended(client, name), f"{name} ends: {client.logs(name)}")  # type: ignore[misc]
            assert ended(client, name, "t")["status"] == "done"
            check(kernel, client, name, tool, when, record, server)


def spawn(
    kernel: Kernel, client: AgentOSClient, name: str, tool: str, when: str, record: str, how: str, server: HttpServer
) -> None:
    allowed = {"calls": ["HTTP"], "domains": [f"127.0.0.1:{server.port}"]}
    up(
        client.spawn(
            name,
            write(kernel, "agent.py", AGENT),
            args=[tool, when, record, how],
            env={"PLACE": name},
            workspace=str(kernel.place / name),
            restart="permanent",
            runtime="fast",
            permissions={"level": "sandboxed", "allow": allowed | ({"tools": ["plain.*"]} if tool == FOREIGN else {})},
        )
    )


def has_ended(client: AgentOSClient, name: str) -> bool:
    return bool(client.fetch("task/t/end", "agent", agent=name)["exists"])


def check(
    kernel: Kernel, client: AgentOSClient, name: str, tool: str, when: str, record: str, server: HttpServer
) -> None:
    """Its effect was had once, or, if it was in doubt, at most once, and then the model was told."""
    place: Path = kernel.place / name
    result = client.fetch("task/t/0001/00/finished", "agent", agent=name)["value"]
    in_doubt = (when, record) in (("after", "started"), ("before", "finished"))
    was_begun = (when, record) != ("after", "started")
    assert (place / "killed").exists()
    if tool in READS:
        assert result["ok"], result
    elif tool == "edit_file":
        assert (place / "base").read_text() == "xx"
        assert result["ok"], result
    elif tool == "write_file":
        assert (place / "count").read_text() == "x"
        assert result["ok"], result
    else:
        count = how_often(client, place, name, tool, server)
        assert count == (1 if was_begun else 0), (name, count)
        assert (IN_DOUBT in result["result"]) == in_doubt, result
        if tool == "exec" and in_doubt and was_begun:
            assert "counted" in result["result"], "the output so far is kept"
    lost = client.fetch("task/t/0001/asked", "agent", agent=name)["value"]["times"]
    assert lost == 1


def how_often(client: AgentOSClient, place: Path, name: str, tool: str, server: HttpServer) -> int:
    if tool == "http":
        return sum(one.target == f"/{name}" for one in server.asked)
    if tool == FOREIGN:
        entries = client.get_audit_log(category="tools", limit=1000)["entries"]
        # The intent is on disk before the call is made; the outcome may be lost with the kernel.
        return sum(one["call"] == "TOOL_CALL" and one["name"] == name and one["phase"] == "intent" for one in entries)
    if tool == "spawn_subagent":
        entries = client.get_audit_log(category="agents", limit=1000)["entries"]
        return sum(one["call"] == "SPAWN" and one["name"] == name and one["outcome"] == "ok" for one in entries)
    return len((place / "count").read_text()) if (place / "count").exists() else 0


def test_an_answer_that_was_lost_is_asked_for_once_more_and_counted(kernel: Kernel, server: HttpServer) -> None:
    (kernel.place / "asks").mkdir(mode=0o777)
    os.chmod(kernel.place / "asks", 0o777)
    with kernel.client() as client:
        spawn(kernel, client, "asks", "bump", "before", "thought", "agent", server)
        until(lambda: has_ended(client, "asks"), "its task ends")

        first, second = (
            client.fetch(f"task/t/000{step}/thought", "agent", agent="asks")["value"]["tokens"] for step in (1, 2)
        )
        assert client.fetch("task/t/0001/asked", "agent", agent="asks")["value"]["times"] == 2
        assert ended(client, "asks", "t")["tokens"] == 2 * first + second
        assert (kernel.place / "asks" / "count").read_text() == "x"


def test_a_file_that_something_else_has_changed_meanwhile_is_left_alone(kernel: Kernel, server: HttpServer) -> None:
    place = kernel.place / "edits"
    place.mkdir()
    (place / "base").write_text("x")
    os.chmod(place, 0o777)
    with kernel.client() as client:
        spawn(kernel, client, "edits", "edit_file", "after", "started", "kernel", server)
        until((place / "killed").exists, "it is at its point")
        (place / "base").write_text("another x")
        os.kill(next(one["pid"] for one in client.list_agents() if one["name"] == "edits"), 9)
        until(lambda: has_ended(client, "edits"), "its task ends")

        assert (place / "base").read_text() == "another x"
        result = client.fetch("task/t/0001/00/finished", "agent", agent="edits")["value"]
        assert not result["ok"]
        assert "changed by something else" in result["result"]
