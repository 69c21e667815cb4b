"""LangChain's and LangGraph's programs on AgentOS: in jails, against a real kernel."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.frameworks.programs import INSIDE, PYTHON, audited, need, report_of
from tests.support.kernel import Kernel

SDK = Path(__file__).parents[2] / "sdk"

MAY_USE_ECHO = {"level": "sandboxed", "allow": {"tools": ["plain.echo"]}}


@pytest.fixture(scope="module")
def report(kernel: Kernel, client: AgentOSClient) -> Mapping[str, Any]:
    need("langchain")
    return report_of(kernel, client, "uses_langchain.py", permissions=MAY_USE_ECHO)


def test_the_chat_model_passes_the_standard_suite() -> None:
    need("langchain_tests")
    program = [str(PYTHON), "-m", "pytest", "-c", "/dev/null", "--noconftest", "--import-mode=importlib", "-q", "-rs"]
    plugins = "pytest_asyncio.plugin,pytest_benchmark.plugin,syrupy"  # of those that are there, which all are imported

    done = subprocess.run(
        [*program, "--benchmark-disable", "-p", "no:cacheprovider", str(INSIDE / "standard_langchain.py")],
        env={
            "PYTHONPATH": str(SDK),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": plugins,
        },
        capture_output=True,
        text=True,
        timeout=600,  # a hang alone takes so long
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]


def test_the_chat_model_answers_whole_streamed_and_async(report: Mapping[str, Any]) -> None:
    assert report["whole"] == ["Hello yourself.", True, "offline"]
    assert report["streamed"] == ["Hello yourself.", True, True]
    assert report["async"] == ["Hello yourself."] * 3
    assert report["stopped"] == ["Hello your"] * 5


def test_a_streamed_answer_calls_tools(report: Mapping[str, Any]) -> None:
    assert report["tool call"] == [["weather", {"place": "Paris"}]]


def test_structured_output_is_an_instance_of_the_class(report: Mapping[str, Any]) -> None:
    assert report["structured"] == {"json_schema": True, "function_calling": True, "unreadable": True, "agent": True}


def test_images_are_taken_in_base64_only(report: Mapping[str, Any]) -> None:
    [seen, refused] = report["image"]

    assert seen == "Hello yourself."
    assert refused == "content[0]: expected an image in base64: the kernel fetches none from elsewhere"


def test_a_graph_writes_by_system_calls(report: Mapping[str, Any], client: AgentOSClient) -> None:
    assert report["graph"] == "It says: wrote 10 bytes to notes.md"
    assert ("WRITE", "allow") in audited(client, "uses-langchain")


def test_an_async_graph_runs_commands_and_reads_why_a_call_was_denied(
    report: Mapping[str, Any], client: AgentOSClient
) -> None:
    computed, stolen, unknown = report["async graph"].values()

    assert computed == ["It says: 42\n", "success"]
    assert stolen[0].startswith("It says: permission_denied: ")
    assert stolen[1] == "error"
    assert unknown[1] == "error"  # the model asked for a tool that the graph doesn't have
    assert {("EXEC", "allow"), ("READ", "deny")} <= audited(client, "uses-langchain")


def test_messages_are_sent_and_received_by_tools(report: Mapping[str, Any]) -> None:
    assert report["messages"] == ["sent to uses-langchain", "uses-langchain: hi"]


def test_a_subagent_works_on_a_part_in_its_own_jail(report: Mapping[str, Any], client: AgentOSClient) -> None:
    assert report["subagent"].endswith(": done. two words")
    assert ("SPAWN", "allow") in audited(client, "uses-langchain")


def test_tools_of_mcp_servers_are_tools_of_the_toolkit(report: Mapping[str, Any]) -> None:
    assert report["mcp"] == [["plain__echo"], "hi"]


def test_tools_may_run_in_many_threads(report: Mapping[str, Any]) -> None:
    assert report["threads"] is True


def test_a_cancelled_tool_leaves_no_command_running(report: Mapping[str, Any]) -> None:
    assert report["cancelled"] == "ended"


def test_errors_say_what_is_wrong(report: Mapping[str, Any]) -> None:
    assert report["failed"] == ["bad_request"]
    assert report["wrong setting"] == "frequency: the kernel's model has no such setting"
