"""What mypy says of a user's program: the whole signatures of both clients, and their results."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.test_layers import ROOT
from tests.support.wire import PATIENCE

PROGRAM = """
from agentos_sdk import AgentOSClient, connect


def blocking(client: AgentOSClient) -> None:
    client.spawn("worker", command=["sleep", "1"], network="filtered", limits={"memory": "1G"})
    client.spawn("worker", network="everything")  # error: arg-type
    client.spawn()  # error: call-arg
    client.spawn("worker", None, True, False, None, None, ["sleep"])  # error: call-arg
    client.fetch("key", agnet="boss")  # error: call-arg
    client.exec(["ls"], timeout="soon")  # error: arg-type
    client.write_file("path", 5)  # error: arg-type
    client.think("Why?", images=[b"GIF8"], class_="batch")
    client.think("Why?", class_="soon")  # error: arg-type
    client.tree().name  # error: attr-defined
    killed: str = client.kill("worker")  # error: assignment
    reveal_type(client.list_agents())  # note: list[dict[str, Any]]
    with client.exec_stream("ls") as output:
        reveal_type(output)  # note: agentos_sdk.encoding.chunks.Outputs


async def trio() -> None:
    async with connect() as kernel:
        await kernel.spawn("worker", command=["sleep", "1"], network="filtered", limits={"memory": "1G"})
        await kernel.spawn("worker", network="everything")  # error: arg-type
        await kernel.spawn()  # error: call-arg
        await kernel.spawn("worker", None, True, False, None, None, ["sleep"])  # error: call-arg
        await kernel.fetch("key", agnet="boss")  # error: call-arg
        await kernel.exec(["ls"], timeout="soon")  # error: arg-type
        await kernel.write_file("path", 5)  # error: arg-type
        await kernel.think("Why?", images=[b"GIF8"], class_="batch")
        await kernel.think("Why?", class_="soon")  # error: arg-type
        (await kernel.list_agents())[0].nmae  # error: attr-defined
        killed: str = await kernel.kill("worker")  # error: assignment
        reveal_type(await kernel.status())  # note: agentos_sdk.calls.kernel.KernelStatus
        async with kernel.exec_stream("ls") as output:
            reveal_type(output)  # note: agentos_sdk.clients.streams.Outputs
"""


@pytest.mark.usefixtures("long")
def test_mypy_sees_the_parameters_and_results_of_both_clients(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    expected = {
        (number, *found.groups())
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if (found := re.search(r"# (error|note): (.*)", line))
    }

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}/cache", "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "sdk"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )

    said = set()
    for line in done.stdout.replace("builtins.", "").splitlines():
        if found := re.fullmatch(r'program\.py:(\d+): (?:(error): .*\[(.*)\]|(note): Revealed type is "(.*)")', line):
            number, *kinds = found.groups()
            said.add((int(number), *filter(None, kinds)))
    assert said == expected, done.stdout + done.stderr
