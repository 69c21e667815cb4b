"""What a hostile MCP client can't do: disturb the MCP server's other clients, or fill its log."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from tests.support.clients import httpx2
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE
from tests.userland.mcp.transports.http_serving import make_client, serving_http
from tests.userland.mcp.transports.test_http_guard import ACCEPT, INITIALIZE

pytestmark = pytest.mark.usefixtures("any_user")

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class RawClient:
    """A client of the older era that sends any bytes."""

    def __init__(self, url: str, sender: httpx2.AsyncClient) -> None:
        self.url, self.sender = url, sender
        self.session: Mapping[str, str] = {}

    async def begin(self) -> None:
        begun = await self.sender.post(self.url, json=INITIALIZE)
        assert begun.status_code == 200, begun.text
        self.session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        assert (await self.sender.post(self.url, json=INITIALIZED, headers=self.session)).status_code == 202

    async def call(self, tool: str, arguments: str) -> str:
        """The body of the answer to a call with these arguments, as JSON text."""
        body = f'{{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {{"name": "{tool}", "arguments": '
        headers = {**self.session, "content-type": "application/json"}
        answer = await self.sender.post(self.url, content=f"{body}{arguments}}}}}".encode(), headers=headers)
        assert answer.status_code in (200, 400), answer.text
        return answer.text


@pytest.fixture
async def clients(kernel: Kernel) -> AsyncIterator[tuple[RawClient, RawClient]]:
    """A hostile client, and another one, of one server."""
    async with AsyncExitStack() as stack:
        url, found = await stack.enter_async_context(serving_http(kernel.socket, kernel.state_dir)), list[RawClient]()
        for name in ("hostile", "other"):
            headers = {**ACCEPT, "authorization": f"Bearer {make_client(kernel.state_dir, name, level='unrestricted')}"}
            sender = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=PATIENCE))
            found.append(RawClient(url, sender))
            await found[-1].begin()
        yield found[0], found[1]


@each_row(
    ("tool", "arguments", "error"),
    [
        ("agentos_state_set", '{"key": "k", "value": [NaN]}', "bad_request: value: out of range float values"),
        ("agentos_exec", '{"command": "true", "timeout": Infinity}', "bad_request: timeout: out of range float"),
        ("agentos_read", '{"path": "\\u0000"}', "bad_request: path: expected a string, got a NUL character in one"),
        ("agentos_spawn", '{"name": "mcp:other", "command": ["true"]}', "bad_request: name: expected a name of"),
        (
            "agentos_spawn",
            '{"name": "a", "command": ["true"], "permissions": "minimal"}',
            "bad_request: agentos_spawn has no argument 'permissions'",
        ),
        ("agentos_exec", '{"command": "true", "network": false}', "agentos_exec has no argument 'network'"),
        ("agentos_wait", '{"name": "a", "timeouts": 1}', "no argument 'timeouts', did you mean timeout?"),
        ("agentos_state_get", '{"key": ' + "[" * 5000 + "]" * 5000 + "}", "Parse error: recursion limit exceeded"),
        ("agentos_state_get", '{"key": "\\ud800"}', "Parse error: "),
    ],
)
async def test_malformed_arguments_are_answered_and_leave_nothing_in_the_log(
    clients: tuple[RawClient, RawClient], caplog: pytest.LogCaptureFixture, tool: str, arguments: str, error: str
) -> None:
    hostile, _ = clients
    with caplog.at_level(logging.WARNING):
        answer = await hostile.call(tool, arguments)

    assert error in answer
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_body_that_takes_long_to_parse_is_refused(clients: tuple[RawClient, RawClient]) -> None:
    hostile, other = clients
    headers = {**hostile.session, "content-type": "application/json"}
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"x": [' + b"[]," * 1_000_000 + b"0]}}}"

    refused = await hostile.sender.post(hostile.url, content=body, headers=headers)

    assert (refused.status_code, refused.text) == (413, "the body has more than 100,000 opening brackets and braces\n")
    assert '"agents"' in await hostile.call("agentos_list_agents", "{}")
    assert '"agents"' in await other.call("agentos_list_agents", "{}")


async def test_events_that_a_client_never_takes_hold_up_nothing(
    clients: tuple[RawClient, RawClient], kernel: Kernel
) -> None:
    """Its session never opens a stream, or has deleted itself."""
    hostile, other = clients
    gone = RawClient(hostile.url, hostile.sender)
    await gone.begin()
    assert (await gone.sender.delete(gone.url, headers=gone.session)).status_code == 200
    with trio.fail_after(PATIENCE):
        for number in range(3):
            kernel.spawn(f"agent{number}")
            for client in (hostile, other):
                assert f"agent{number}" in await client.call("agentos_list_agents", "{}")
            assert '"killed":true' in await other.call("agentos_kill", f'{{"name": "agent{number}", "grace": 0}}')


async def test_a_client_that_begins_all_its_sessions_leaves_the_others_theirs(
    clients: tuple[RawClient, RawClient],
) -> None:
    hostile, other = clients
    for _ in range(70):
        refused = await hostile.sender.post(hostile.url, json=INITIALIZE)

    assert (refused.status_code, refused.json()["error"]["message"]) == (503, "Too many open sessions")
    await RawClient(other.url, other.sender).begin()


UNREADABLE = [  # each makes the SDK log a warning
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}},
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": "x"}},
]


@contextmanager
def logging_to(log: Path, kernel: Kernel) -> Iterator[None]:
    """A server in a process of its own, which writes its log to this file."""
    words = ["--http", "127.0.0.1:0", "--socket", kernel.socket, "--state-dir", str(kernel.state_dir)]
    with (
        log.open("w") as file,
        subprocess.Popen([sys.executable, "-m", "agentos", "mcp", *words], stderr=file) as server,
    ):
        try:
            yield
        finally:
            server.send_signal(signal.SIGINT)  # it has just sent an answer, or is about to return from doing so
    assert server.returncode == 130


async def test_no_client_fills_the_log_with_a_line_for_each_request(kernel: Kernel, tmp_path: Path) -> None:
    headers = {**ACCEPT, "authorization": f"Bearer {make_client(kernel.state_dir, 'noisy', level='unrestricted')}"}
    log = tmp_path / "log"
    with logging_to(log, kernel), trio.fail_after(PATIENCE):
        while (found := re.search(r"serving MCP at (\S+)\n", log.read_text())) is None:
            await trio.sleep(0.05)
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as sender:
            client = RawClient(found[1], sender)
            await client.begin()
            for message in UNREADABLE:
                for _ in range(20):
                    await sender.post(client.url, json=message, headers=client.session)
            refused = 0
            while refused < 20:
                refused += (await sender.post(client.url, json=INITIALIZE)).status_code == 503

    lines = log.read_text().splitlines()
    for text in ("notifications/cancelled", "notifications/progress", "Refusing to open a new session"):
        assert 1 < sum(text in line for line in lines) < 10, lines
    assert sum("lines more like this one" in line for line in lines) == 2  # of two formats
