"""Tools from functions, and the check of their arguments."""

import io
import json
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.loop.blocking_driver import BlockingDriver
from agentos_sdk.loop.engine.budget import Budget, Spent
from agentos_sdk.loop.engine.driving import ask_user, printable
from agentos_sdk.loop.engine.effects import Call, Work
from agentos_sdk.loop.engine.records import Records
from agentos_sdk.loop.engine.steps import Steps
from agentos_sdk.loop.tools.call_tools import SPAWN
from agentos_sdk.loop.tools.functions import tool
from agentos_sdk.loop.tools.schema import mistakes
from agentos_sdk.loop.tools.tools import Context, ToolError
from agentos_sdk.loop.trio_driver import run_work
from agentos_sdk.testing import FakeKernel
from tests.support.runs.rows import each_row

CONTEXT = Context("t", "agent", 0, None, None, Records("t").replace, Spent(Budget(), time.time()))


def order(kind: Literal["tea", "coffee"], cups: int, names: list[str], sugar: float | None = None) -> str:
    """Order a drink."""
    return f"{cups} {kind} for {names} {sugar}"


def test_the_schema_is_the_signature() -> None:
    made = tool(order)

    assert made.described() == {
        "name": "order",
        "description": "Order a drink.",
        "parameters": {
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["tea", "coffee"]},
                "cups": {"type": "integer"},
                "names": {"type": "array", "items": {"type": "string"}},
                "sugar": {"type": "number"},
            },
            "required": ["kind", "cups", "names"],
        },
    }


@each_row(
    ("arguments", "wrong"),
    [
        ({"kind": "tea", "cups": 2, "names": ["Ada"]}, []),
        ({"kind": "tea", "cups": 2, "names": ["Ada"], "sugar": 1}, []),
        ({"kind": "tea", "names": []}, ["cups: required argument missing"]),
        ({"kind": "mud", "cups": 1, "names": []}, ["kind: expected one of 'tea', 'coffee', got 'mud'"]),
        ({"kind": "tea", "cups": True, "names": []}, ["cups: expected integer, got True"]),
        (
            {"kind": "tea", "cups": "2", "names": [3]},
            ["cups: expected integer, got '2'", "names[0]: expected string, got 3"],
        ),
        (
            {"kind": "tea", "cups": 1, "names": [], "milk": 1},
            ["milk: no such argument; there are kind, cups, names, sugar"],
        ),
        ([1], ["arguments: expected an object, got [1]"]),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, wrong: list[str]) -> None:
    assert list(mistakes(arguments, tool(order).parameters)) == wrong


def test_a_function_that_a_model_cannot_call_is_refused() -> None:
    def silent(path: str) -> str:
        return path

    def untyped(path) -> str:  # type: ignore[no-untyped-def]
        "Read."
        return str(path)

    def takes_bytes(data: bytes) -> str:
        "Read."
        return str(data)

    def takes_all(*paths: str) -> str:
        "Read."
        return str(paths)

    for function, why in (
        (silent, "silent: expected a docstring"),
        (untyped, "untyped: path has no type"),
        (takes_bytes, "takes_bytes: data: expected str, int"),
        (takes_all, "can't be an argument of a tool"),
    ):
        with pytest.raises(TypeError, match=why):
            tool(function)


def path_by_default(path: str = Path(".")) -> str:  # type: ignore[assignment]
    """Read."""
    return path


def no_number(x: float = float("nan")) -> float:
    """Count."""
    return x


def bytes_literal(x: Literal[b"a"]) -> None:
    """Take bytes."""


def done(summary: str) -> str:
    """End."""
    return summary


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (path_by_default, "path: a default that JSON can't have"),
        (no_number, "x: a default that JSON can't have"),
        (bytes_literal, "x: expected a Literal of str, int, bool or None"),
        (done, "done: expected another name"),
    ],
)
def test_a_signature_that_no_schema_can_say_is_refused(function: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        tool(function)


def mixed(x: Literal[1, "all"], y: Literal["a", None] = None) -> str:
    """Take some."""
    return f"{x} {y}"


def test_a_literal_of_several_types_takes_each_of_its_values() -> None:
    schema = tool(mixed).parameters

    assert [list(mistakes({"x": x, "y": y}, schema)) for x, y in ((1, "a"), ("all", None))] == [[], []]
    assert list(mistakes({"x": "1"}, schema)) == ["x: expected one of 1, 'all', got '1'"]


def circular() -> list[Any]:
    """Return what JSON can't have."""
    found: list[Any] = []
    found.append(found)
    return found


def keyed() -> dict[Any, Any]:
    """Return what JSON can't have."""
    return {(1, 2): 3}


async def waits() -> str:
    """Wait."""
    return ""


@pytest.mark.parametrize("function", [circular, keyed, waits])
def test_a_result_that_no_text_can_be_made_of_is_the_tools_failure(function: Any) -> None:
    with FakeKernel() as kernel, AgentOSClient(kernel.socket) as client, pytest.raises(ToolError):
        BlockingDriver(client).run(tool(function).act(CONTEXT, {}, "0001/00"))


def hangs() -> str:
    """Hang."""
    hang.wait()
    return "ended"


async def hangs_async() -> str:
    """Hang."""
    await trio.sleep_forever()
    return "never"


hang = threading.Event()


def test_a_function_that_hangs_is_the_tools_failure() -> None:
    with FakeKernel() as kernel, AgentOSClient(kernel.socket) as client:
        with pytest.raises(ToolError, match=r"hangs took longer than 0\.05 s: it may still be running"):
            BlockingDriver(client).run(tool(hangs, timeout=0.05).act(CONTEXT, {}, "0001/00"))
        hang.set()
        assert BlockingDriver(client).run(tool(hangs, timeout=60).act(CONTEXT, {}, "0001/00")) == "ended"


async def test_an_async_function_that_hangs_is_cancelled() -> None:
    with FakeKernel() as kernel:
        async with connect(kernel.socket) as connected:
            with pytest.raises(ToolError, match=r"hangs_async took longer than 0\.05 s: it was cancelled"):
                await run_work(connected, tool(hangs_async, timeout=0.05).act(CONTEXT, {}, "0001/00"))


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout: expected seconds above 0, or None"):
        tool(order, timeout=timeout)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm \x9b2K\u202ecod", r"rm \x9b2K\u202ecod"),
        ("grüße 世界", "grüße 世界"),
        ("x" * 2000, "x" * 2000 + "\n(2000 characters: scroll up to see them all)"),
    ],
)
def test_what_is_asked_about_is_shown_as_it_is(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_without_an_answer_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    assert not ask_user("exec")


@each_row("line", ["tokens", "money", "time"])
@each_row("amount", [float("nan"), float("inf")])
def test_a_budget_that_never_ends_is_refused(line: str, amount: float) -> None:
    with pytest.raises(ValueError, match=f"budget.{line}: expected"):
        Budget.of({line: amount})


def nothing(event: dict[str, Any]) -> Work[None]:
    return
    yield


def test_subagents_that_work_at_the_same_time_share_what_is_left() -> None:
    budgets = []

    def act(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
        spawn = next(SPAWN.act(context, arguments, place))
        assert isinstance(spawn, Call)
        budgets.append(json.loads(spawn.fields["env"]["LOOP_TASK"])["budget"])
        return ""
        yield

    spent = Spent(Budget(tokens=1000, money=2.0), time.time())
    steps = Steps({SPAWN.name: SPAWN._replace(act=act)}, CONTEXT._replace(spent=spent), Records("t"), nothing)
    calls = [{"id": str(number), "name": SPAWN.name, "arguments": {"task": "x"}} for number in range(4)]
    with FakeKernel() as kernel, AgentOSClient(kernel.socket) as client:
        kernel.reply("store", {"version": 1})
        BlockingDriver(client).run(steps.make("0001", calls))
        BlockingDriver(client).run(steps.make("0002", calls[:1]))

    assert [(budget["tokens"], budget["money"]) for budget in budgets] == [(250, 0.5)] * 4 + [(1000, 2.0)]
