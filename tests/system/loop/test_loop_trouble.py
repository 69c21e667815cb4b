"""The loop where its summary is interrupted, its state is full, or another process works on the same task."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentic import AgenticLoop, TaskResult
from agentos_sdk import AgentOSClient
from agentos_sdk.loop.engine.result import LoopError
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import info, lines, up, write
from tests.system.loop_agents import done, kernel_with, rule

KILLED_IN_A_SUMMARY = """
import os, signal, sys
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import AgenticLoop

def note(text: str) -> str:
    "Note a text."
    with open("notes", "a") as file:
        file.write(text[:1])
    return "noted"

class Killed(AgentOSClient):
    def request(self, op, fields, wait=0.0):
        is_point = str(fields.get("prompt", "")).startswith("Summarise") and not os.path.exists("killed")
        if is_point and sys.argv[1] == "after":
            super().request(op, fields, wait)
        if is_point:
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().request(op, fields, wait)

with Killed() as kernel:
    print(AgenticLoop(kernel, tools=[note], instruction=f"long-{sys.argv[1]}").run("note all", task_id="t"), flush=True)
"""
FULL_STATE = """
import os
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import AgenticLoop
from agentos_sdk.loop.engine.result import LoopError

def fill() -> str:
    "Store until nothing more fits."
    with open("filled", "a") as file:
        file.write("x")
    size = 1 << 16
    with AgentOSClient() as client:
        while size:
            if not client.store(f"filler/{size}/{os.urandom(4).hex()}", "x" * size, "agent")["success"]:
                size //= 2
    return "filled"

with AgentOSClient() as kernel:
    loop = AgenticLoop(kernel, tools=[fill], instruction="fills")
    try:
        loop.run("fill", task_id="t")
    except LoopError as error:
        print("failed:", error, flush=True)
    while keys := kernel.keys("filler/", "agent")["keys"]:
        for key in keys:
            kernel.delete(key, "agent")
    print("then:", loop.run("fill", task_id="t").status, open("filled").read(), flush=True)
"""
NOTES = 4


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    rules = [
        rule("^Summarise this work", reply="the notes were written"),
        *(
            rule("(?s).*", ("note", {"text": f"{number}{'x' * 5000}"}), system=f"^long-{when}", times=1)
            for when in ("before", "after")
            for number in range(NOTES)
        ),
        rule("(?s).*", done("noted all"), system="^long-"),
        rule("stopped while this ran", done("filled"), system="^fills"),
        rule("(?s).*", ("fill", {}), system="^fills"),
        rule("^hold$", ("hold", {})),
        rule("^overflow$", done("x" * 250_000)),
        rule("(?s).*", done()),
    ]
    with kernel_with(
        *rules, llm="context = { offline = 6000 }", more="[kernel]\nmax_state_bytes = '200K'\n"
    ) as started:
        yield started


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as client:
        yield client


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_summary_that_was_lost_is_asked_for_once_more_and_counted(
    when: str, kernel: Kernel, client: AgentOSClient
) -> None:
    place = start(kernel, client, f"summary-{when}", KILLED_IN_A_SUMMARY, args=[when], restart="transient")
    until(lambda: has_ended(client, place.name), f"its task ends: {lines(client, place.name)}")

    records = read_records(client, place.name)
    end = records.pop("end")
    asked = {key: record["times"] for key, record in records.items() if key.endswith(("/asked", "/summary"))}
    used = [record["tokens"] for key, record in records.items() if key.endswith(("/thought", "/trim"))]
    assert (end["status"], (place / "notes").read_text()) == ("done", "0123"[:NOTES])
    assert [key for key, times in asked.items() if times == 2] == [min(key for key in asked if "summary" in key)]
    assert set(asked.values()) == {1, 2}
    assert end["tokens"] == sum(used)
    if when == "after":  # otherwise the kernel has not charged the first question
        spent = client.inspect(place.name)["llm"]["spent"]
        assert end["tokens"] == spent["input"] + spent["output"] + spent["thinking"]


def test_a_step_that_the_full_state_cannot_record_is_not_made_again(kernel: Kernel, client: AgentOSClient) -> None:
    start(kernel, client, "fills", FULL_STATE)
    until(lambda: info(client, "fills")["state"] == "exited", "both runs are over")

    first, then = lines(client, "fills")
    assert "can't be stored: quota_exceeded" in first
    assert then == "then: done x"


def test_records_that_cannot_be_kept_end_the_task_without_a_restart(client: AgentOSClient) -> None:
    found = AgenticLoop(client).run("overflow", task_id="overflow")

    assert found.status == "failed"
    assert "can't be stored: quota_exceeded" in found.reason
    said = lines(client, found.agent)
    assert "can't be stored: quota_exceeded" in said[-1], said
    assert client.fetch("task/overflow/0001/asked", "agent", agent="overflow")["value"]["times"] == 1


def test_one_of_two_processes_that_work_on_a_task_stops(kernel: Kernel, client: AgentOSClient) -> None:
    begun, go_on = threading.Event(), threading.Event()
    calls: list[str] = []

    def hold() -> str:
        "Wait."
        calls.append("x")
        begun.set()
        go_on.wait(PATIENCE)
        return "held"

    def work(client: AgentOSClient) -> TaskResult:
        return AgenticLoop(client, tools=[hold], on_host=True, confirm=lambda text: True).run("hold", task_id="both")

    errors: list[Exception] = []

    def work_first() -> None:
        with kernel.client() as other:
            try:
                work(other)
            except Exception as error:
                errors.append(error)

    first = threading.Thread(target=work_first)
    first.start()
    assert begun.wait(PATIENCE)
    second = work(client)
    go_on.set()
    first.join(PATIENCE)

    assert (second.status, calls) == ("done", ["x"])
    [error] = errors
    assert isinstance(error, LoopError)
    assert "task/both/0001/00/finished exists already: another process works on this task" in str(error)


def make_place(kernel: Kernel, name: str) -> Path:
    place = kernel.place / name
    place.mkdir()
    os.chmod(place, 0o777)
    return place


def start(kernel: Kernel, client: AgentOSClient, name: str, program: str, **more: Any) -> Path:
    place = make_place(kernel, name)
    up(client.spawn(name, write(kernel, f"{name}.py", program), workspace=str(place), **more))
    return place


def has_ended(client: AgentOSClient, name: str) -> bool:
    return bool(client.fetch("task/t/end", "agent", agent=name)["exists"])


def read_records(client: AgentOSClient, name: str) -> dict[str, Any]:
    """The records of the agent's task ``t``, by their names."""
    keys = client.keys("task/t/", "agent", agent=name)["keys"]
    return {key.removeprefix("task/t/"): client.fetch(key, "agent", agent=name)["value"] for key in keys}
