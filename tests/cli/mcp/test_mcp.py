"""``agentos mcp``, the server: as a process that a client starts over stdin and stdout, and over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from agentos.userland.cli.main import cli
from agentos.userland.mcp import clients
from agentos.userland.mcp.clients import ClientEntry
from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support import fork_server
from tests.support.clients import mcp
from tests.support.kernel import Kernel, descendants, environment, until
from tests.support.runs.forked import Commands
from tests.support.wire import PATIENCE
from tests.userland.mcp.serving import error_of, eventually, value_of
from tests.userland.mcp.transports.http_serving import CLIENTS_GENERATORS, connected, make_client

pytestmark = [CLIENTS_GENERATORS, pytest.mark.usefixtures("long")]


@contextmanager
def entry(state_dir: Path, name: str, **rights: object) -> Iterator[ClientEntry]:
    made = ClientEntry(name, "stdio", 1000.0, **(rights or {"level": "standard"}))  # type: ignore[arg-type]
    clients.create(state_dir, made)
    yield made
    clients.revoke(state_dir, name)


def options(kernel: Kernel, *more: str) -> list[str]:
    return [*more, "--socket", kernel.socket, "--state-dir", str(kernel.state_dir)]


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """``agentos mcp``, forked from a process that has imported the SDK."""
    with closing(Commands(tmp_path_factory.mktemp("commands"))) as commands:
        yield [str(commands.directory / "agentos"), "mcp"]


@asynccontextmanager
async def stdio_client(
    command: Sequence[str], mode: str = "auto", errors: Path | None = None
) -> AsyncIterator[mcp.Client]:
    """An MCP client that starts this command, with an environment of a few variables, as clients do."""
    script = " ".join(["exec", '"$@"', *(["2>", str(errors)] if errors else [])])
    place = mcp.StdioServerParameters(command="sh", args=["-c", script, "sh", *command], cwd="/")
    assert sys.__stderr__ is not None
    with trio.fail_after(PATIENCE):
        # The default is sys.stderr as it was at the import, perhaps within a CliRunner.
        async with mcp.Client(mcp.stdio_client(place, errlog=sys.__stderr__), mode=mode) as client:
            yield client


async def test_what_install_writes_is_what_the_client_can_start(kernel: Kernel, agentos: Agentos) -> None:
    done = agentos("mcp", "install", "claude-desktop", "--state-dir", str(kernel.state_dir))
    assert done.returncode == 0, done.stderr
    file = kernel.place / ".config/Claude/claude_desktop_config.json"
    server = json.loads(file.read_text())["mcpServers"]["agentos"]

    async with stdio_client([server["command"], *server["args"]]) as client:
        listed = value_of(await client.call_tool("agentos_list_agents", {}))

    assert listed == {"agents": []}
    assert clients.list_entries(kernel.state_dir)[0][1] is not None  # its use is recorded
    assert clients.revoke(kernel.state_dir, "claude-desktop")


@pytest.mark.parametrize(("answer", "elicitation"), [("y\r", "decides"), ("\r", "off")])
def test_a_person_at_a_terminal_is_asked_whether_the_clients_answer_decides(
    kernel: Kernel, answer: str, elicitation: str
) -> None:
    install = ("mcp", "install", "vscode", "--state-dir", str(kernel.state_dir))
    terminal = Terminal(kernel, *install, columns=200)
    try:
        terminal.wait_for("may an answer given in VS Code decide, as `agentos approve` does? [y/N]")
        assert clients.load(kernel.state_dir, "vscode") is None
        terminal.type(answer)
        assert terminal.end() == 0
    finally:
        terminal.close()

    made = clients.load(kernel.state_dir, "vscode")
    assert made is not None
    assert made.elicitation == elicitation
    assert clients.revoke(kernel.state_dir, "vscode")


async def test_a_clients_set_binds_it_and_the_audit_names_it(kernel: Kernel, forked: list[str]) -> None:
    rights = {"level": "standard", "deny": {"commands": ["git *"]}}
    with entry(kernel.state_dir, "bound", permissions=rights):
        async with stdio_client([*forked, *options(kernel, "--client", "bound")]) as client:
            refused = error_of(await client.call_tool("agentos_exec", {"command": "git push"}))

    assert "permission_denied: " in refused
    assert "git push" in refused
    with kernel.client() as operator:

        def names() -> list[tuple[str, str]]:
            return [(one["name"], one["call"]) for one in operator.get_audit_log(limit=20)["entries"]]

        until(lambda: ("mcp:bound", "EXEC") in names(), "its call is in the audit log", show=names)


async def test_a_tool_that_the_set_never_allows_is_not_listed(kernel: Kernel, forked: list[str]) -> None:
    with entry(kernel.state_dir, "little", level="readonly"):
        async with stdio_client([*forked, *options(kernel, "--client", "little")]) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}

    assert "agentos_list_agents" in names
    assert not names & {"agentos_write", "agentos_exec", "agentos_kill"}


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}


def test_an_interrupt_ends_a_server_whose_client_says_nothing(kernel: Kernel) -> None:
    (its_input, given), (written, its_output) = os.pipe(), os.pipe()
    words = ["mcp", *options(kernel, "--client", "silent")]
    with entry(kernel.state_dir, "silent"), open(given, "w") as stdin, open(written) as stdout:
        server = fork_server.shared().fork(words, "/", environment(kernel.place), [its_input, its_output, 2])
        os.close(its_input)
        os.close(its_output)
        stdin.write(json.dumps(INITIALIZE) + "\n")
        stdin.flush()
        assert "result" in json.loads(stdout.readline())

        server.send_signal(signal.SIGINT)

        assert server.wait(PATIENCE) == -signal.SIGINT


def test_stdout_has_messages_of_mcp_alone(kernel: Kernel, forked: list[str]) -> None:
    messages = [
        INITIALIZE,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "no_such_tool", "arguments": {}}},
    ]
    with entry(kernel.state_dir, "quiet"), start([*forked, *options(kernel, "--client", "quiet")]) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for message in messages:
            server.stdin.write(json.dumps(message) + "\n")
        server.stdin.write("not JSON\n")
        server.stdin.flush()
        lines = [server.stdout.readline() for _ in range(2)]
        server.stdin.close()
        lines += server.stdout.readlines()
        status = server.wait(PATIENCE)

    assert {json.loads(line)["jsonrpc"] for line in lines} == {"2.0"}
    assert status == 0


@contextmanager
def start(command: Sequence[str], **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        env={**environment(Path("/nonexistent")), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            yield process
            process.kill()
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "an MCP client starts this server with --client NAME: make an entry with"),
        (("--client", "nobody"), "no MCP client is called 'nobody' in "),
        (("--client", "../../etc"), "name: expected 1 to 32 lower-case letters"),
        (("--client", "over-http"), "the MCP client 'over-http' has a token: it is served by `agentos mcp --http`"),
        (("--client", "a", "--http"), "--client is served over stdin and stdout"),
        (("--http", "8766"), "--http: expected HOST:PORT such as 127.0.0.1:8766, got '8766'"),
        (("--http", "0.0.0.0:0"), "0.0.0.0 is not a loopback address, and this server has no TLS"),
        (("--allow-host", "x", "--client", "a"), "--allow-host and --insecure-listen are for --http"),
        (("--config", "x", "--client", "a"), "--config is the file of the kernel that --standalone starts"),
    ],
)
def test_a_server_that_cannot_begin_says_why_on_stderr(kernel: Kernel, arguments: tuple[str, ...], why: str) -> None:
    make_client(kernel.state_dir, "over-http")

    done = CliRunner().invoke(cli, ["mcp", *options(kernel, *arguments)])

    assert done.exit_code in (1, 2)
    assert why in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_without_a_kernel_it_says_how_to_have_one(tmp_path: Path) -> None:
    with entry(tmp_path, "early"):
        command = ["mcp", "--client", "early", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path)]
        done = CliRunner().invoke(cli, command)

    assert done.exit_code == 1
    assert f"no kernel at {tmp_path}/s: start one with `agentos run`" in done.stderr
    assert "or add --standalone" in done.stderr


# -- Revocation --------------------------------------------------------------------------------------------------------


async def test_revoke_reaches_a_running_server(kernel: Kernel, forked: list[str], agentos: Agentos) -> None:
    with entry(kernel.state_dir, "leaving"):
        async with stdio_client([*forked, *options(kernel, "--client", "leaving")]) as client:
            value_of(await client.call_tool("agentos_list_agents", {}))

            revoked = agentos("mcp", "revoke", "leaving", "--state-dir", str(kernel.state_dir))
            refused = error_of(await client.call_tool("agentos_list_agents", {}))

    assert revoked.returncode == 0, revoked.stderr
    assert "the operator has revoked this client (mcp:leaving)" in refused


async def test_over_http_revoke_ends_what_the_client_has_open(
    kernel: Kernel, forked: list[str], agentos: Agentos
) -> None:
    token = make_client(kernel.state_dir, "open")
    with start([*forked, *options(kernel, "--http", "127.0.0.1:0")]) as server:
        assert server.stderr is not None
        url = server.stderr.readline().rpartition(" ")[2].strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                ended = trio.Event()

                async def sleep_long() -> None:
                    try:
                        async with connected(url, token) as client:
                            await client.call_tool("agentos_exec", {"command": "sleep 7720", "timeout": 0})
                    except BaseExceptionGroup:
                        pass
                    finally:
                        ended.set()

                nursery.start_soon(sleep_long)
                await eventually(lambda: sleeps(kernel))
                agentos("mcp", "revoke", "open", "--state-dir", str(kernel.state_dir))
                await eventually(lambda: not sleeps(kernel))
                await ended.wait()


def sleeps(kernel: Kernel) -> bool:
    """Whether the command runs."""
    commands = []
    for process in descendants(kernel.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            commands.append(Path("/proc", str(process.pid), "cmdline").read_bytes())
    return b"sleep\x007720\0" in commands


# -- A kernel of its own -----------------------------------------------------------------------------------------------


async def test_a_standalone_server_has_a_kernel_which_ends_with_it(tmp_path: Path, forked: list[str]) -> None:
    socket, errors = tmp_path / "s", tmp_path / "stderr"
    with entry(tmp_path / "state", "alone"):
        command = [*forked, "--client", "alone", "--standalone"]
        command += ["--socket", str(socket), "--state-dir", str(tmp_path / "state")]
        async with stdio_client(command, errors=errors) as client:
            value_of(await client.call_tool("agentos_list_agents", {}))
            pid = int(re.search(r"started a kernel \(pid (\d+)\)", errors.read_text())[1])  # type: ignore[index]
            assert f"with its state in {tmp_path}/state" in errors.read_text()

    until(lambda: not os.path.exists(f"/proc/{pid}"), "the kernel has ended")
    assert not socket.exists()


def test_a_kernel_ends_in_order_when_its_server_is_killed(tmp_path: Path, forked: list[str]) -> None:
    make_client(tmp_path / "state", "any")
    command = [*forked, "--http", "127.0.0.1:0", "--standalone"]
    with start([*command, "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state")]) as server:
        assert server.stderr is not None
        lines = iter(server.stderr.readline, "")
        pid = int(next(found for line in lines if (found := re.search(r"a kernel \(pid (\d+)\)", line)))[1])
        server.send_signal(signal.SIGKILL)

        until(lambda: not os.path.exists(f"/proc/{pid}"), "the kernel has ended")
        said = server.stderr.read()
    assert "| stopping, agents first" in said
    assert not (tmp_path / "s").exists(), said  # which a kernel removes last
