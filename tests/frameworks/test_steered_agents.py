"""Coding agents of others that take what the user types while they work on a task; ``make agents`` installs them."""

import os
from pathlib import Path

import pytest

from agentos.llm.providers.provider import Question
from agentos.presets import list_presets, read_preset
from agentos_sdk.values import ToolCall
from tests.cli.terminal import Terminal
from tests.conftest import OwnKernel
from tests.frameworks.test_coding_agents import PLACE, PROGRAMS
from tests.llm.vendors.script import Called, Says, Script, Text
from tests.support.kernel import until
from tests.support.servers.vendor import vendor

STEERED = [name for name in list_presets() if read_preset(name).steered]
WAIT = "until [ -e /workspace/go ]; do sleep 0.1; done; echo went on"


@pytest.mark.parametrize("name", STEERED)
def test_what_is_typed_reaches_a_program_while_it_works(
    framework: None, own_kernel: OwnKernel, tmp_path: Path, name: str
) -> None:
    program, place = PROGRAMS[name], PLACE / name
    if not (place / "ready").exists():
        pytest.skip(f"{name} isn't in {place}, run `make agents`: it is NOT tested")

    def answer(question: Question) -> Script:
        said = "\n".join(message.text for message in question.messages)
        if not any(tool.name == program.tool for tool in question.tools):
            return Says([Text("A title")])
        if "Say plum" in said:
            return Says([Text("A plum.")])
        if any(message.calls for message in question.messages):
            return Says([Text("No fruit yet.")])
        arguments = {**program.arguments, "command": WAIT}
        return Says([Text("I wait."), Called(ToolCall("call_1", program.tool, arguments))], "tool_calls")

    with vendor() as met:
        met.models["scripted"] = answer
        llm = f'[llm]\nprovider = "openai"\nmodel = "scripted"\nbase_url = "{met.base_url}"\nopenai_endpoint = true'
        kernel = own_kernel(llm, {"OPENAI_API_KEY": met.key})
        terminal = Terminal(
            *(kernel, "task", "--with", name, "Wait for it"), PATH=f"{place}/node_modules/.bin:{os.environ['PATH']}"
        )
        with kernel.client() as operator:
            terminal.wait_for(f"{program.tool} {{")
            assert "I wait." in terminal.shown
            terminal.type("Say plum\n")
            terminal.wait_for("it is told before its next step: Say plum")
            until(lambda: operator.mail("task-1")["count"] == 0, "the message was taken")
            assert operator.exec("touch go", name="task-1")["success"]
        terminal.wait_for("A plum.")

        assert terminal.end() == 0, terminal.shown
        assert "went on" in terminal.shown
        terminal.close()
