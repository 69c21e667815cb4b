"""The loop against answers and results that are made to break it: each is told to the model, and the task goes on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic import AgenticLoop
from agentos_sdk import AgentOSClient
from agentos_sdk.loop.engine.result import LoopError
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.system.agents import lines, up, write
from tests.system.loop_agents import done, ended, kernel_with, rule

DEEP = '{"action": "exec", "args": {"command": "true", "x": ' + "[" * 100 + "]" * 100 + "}}"
HOSTILE: dict[str, str] = {  # an answer of the model, as text
    "file-as-directory": '{"action": "write_file", "args": {"path": "file/x", "content": "y"}}',
    "forbidden-directory": '{"action": "write_file", "args": {"path": "/new/x", "content": "y"}}',
    "half-a-character": '{"action": "exec", "args": {"command": "echo \\ud800"}}',
    "unknown-half": '{"action": "\\ud800", "args": {}}',
    "endless-time": '{"action": "exec", "args": {"command": "true", "timeout": Infinity}}',
    "not-a-time": '{"action": "exec", "args": {"command": "true", "timeout": NaN}}',
    "huge-time": '{"action": "exec", "args": {"command": "true", "timeout": 1' + "0" * 400 + "}}",
    "huge-offset": '{"action": "read_file", "args": {"path": "file", "offset": 1' + "0" * 400 + "}}",
    "deep": DEEP,
    "binary-path": '{"action": "list_files", "args": {"path": "a\\u0000b"}}',
    "names": '{"action": "list_files", "args": {}}',
    "binary": '{"action": "read_file", "args": {"path": "binary"}}',
    "found-in-names": '{"action": "search_files", "args": {"pattern": "needle"}}',
    "many": "[" + ",".join(['{"action": "read_file", "args": {"path": "file"}}'] * 120) + "]",
}  # fmt: skip


def answered(reply: str) -> str:
    return rule("(?s).*", reply=reply.replace("\\", "\\\\"), system="^hostile\\s", times=1)


def sound(name: str) -> str:
    """A call that is right: a model whose answers hold none three times in a row is stopped."""
    return f'{{"action": "exec", "args": {{"command": "echo {name}"}}}}'


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    rules = [
        *(answered(each) for name, reply in HOSTILE.items() for each in (reply, sound(name))),
        answered('{"action": "done", "args": {"summary": "over"}}'),
        rule("^let (\\d) be done$", ("spawn_subagent", {"task": "be number \\1"})),
        rule("^be number (\\d)$", done("was \\1")),
        rule("(?s).*(was .).*", done("it \\1"), system="^delegates"),
        rule("^let it be done$", ("spawn_subagent", {"task": "be it"})),
        rule("(?s).*", ("write_file", {"path": "x", "content": "x" * 600_000}), times=1, system="^huge"),
        rule("was cut off", done("in smaller steps"), system="^huge"),
        rule("(?s).*", done("over")),
    ]
    with kernel_with(*rules) as started:
        yield started


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as client:
        yield client


def test_each_hostile_call_is_answered_with_what_is_wrong(kernel: Kernel, client: AgentOSClient) -> None:
    place = kernel.place / "place"
    place.mkdir()
    (place / "file").write_text("text")
    (place / "binary").write_bytes(bytes(range(256)))
    Path(os.fsdecode(os.fsencode(place) + b"/\xff\nnext")).write_text("needle")
    for path in (place, *place.iterdir()):
        os.chmod(path, 0o777)

    loop = AgenticLoop(client, 100, instruction="hostile", workspace=str(place), text_protocol=True)
    found = loop.run("do what is hostile")

    assert (found.status, found.summary) == ("done", "over"), (found, lines(client, found.agent))
    assert found.steps == 2 * len(HOSTILE) + 1
    made = [line["result"].splitlines()[0] for line in loop.transcript(found.task_id) if line.get("call") == "exec"]
    assert set(HOSTILE) <= set(made), "the task has gone on after each"
    assert not [line for line in lines(client, found.agent) if "Traceback" in line], "its agent was not restarted"


TWO_TASKS = """
from agentic import AgenticLoop
from agentos import AgentOSClient

with AgentOSClient() as kernel:
    loop = AgenticLoop(kernel, instruction="delegates", budget={"tokens": 1_000_000})
    for number in (1, 2):
        print("found", loop.run(f"let {number} be done"), flush=True)
"""


def test_subagents_of_two_tasks_are_not_taken_for_each_other(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("boss", write(kernel, "boss.py", TWO_TASKS)))

    assert client.wait("boss", timeout=PATIENCE)["success"]

    found = [line for line in lines(client, "boss") if line.startswith("found")]
    assert ["summary='it was 1'" in found[0], "summary='it was 2'" in found[1]] == [True, True], found


def test_the_tokens_of_subagents_count(client: AgentOSClient) -> None:
    found = AgenticLoop(client).run("let it be done", task_id="let")

    child = ended(client, "let-0001-00", "let-0001-00")
    own = [client.fetch(f"task/let/000{step}/thought", "agent", agent="let")["value"] for step in (1, 2)]
    assert found.tokens == child["tokens"] + sum(thought["tokens"] for thought in own)


def test_an_answer_that_no_record_can_hold_is_cut_off_and_asked_for_once(client: AgentOSClient) -> None:
    found = AgenticLoop(client, instruction="huge").run("write", task_id="huge")

    assert (found.status, found.summary) == ("done", "in smaller steps"), lines(client, found.agent)
    assert client.fetch("task/huge/0001/asked", "agent", agent="huge")["value"]["times"] == 1


def test_an_id_is_not_given_to_another_task(client: AgentOSClient) -> None:
    assert AgenticLoop(client).run("one thing", task_id="named").status == "done"

    with pytest.raises(LoopError, match="'named' is another task"):
        AgenticLoop(client).run("another thing", task_id="named")


def test_a_task_on_the_host_is_resumed_with_its_own_text(client: AgentOSClient) -> None:
    up(client.store("task/half", {"task": "the text", "at": 0.0}, "agent"))
    loop = AgenticLoop(client, on_host=True, confirm=lambda text: False)

    assert loop.resume("half").status == "done"
    with pytest.raises(LoopError, match="'half' is another task"):
        loop.run("another", task_id="half")
    with pytest.raises(LoopError, match="there is no task 'unknown'"):
        loop.resume("unknown")
