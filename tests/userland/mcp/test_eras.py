"""The table of docs/reference/mcp-server.md: what works over each transport, in each era of the protocol."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.support.clients import mcp
from tests.support.kernel import Kernel, descendants
from tests.support.wire import PATIENCE
from tests.userland.mcp.asking import answered, append, ask, asking, last_decision
from tests.userland.mcp.serving import ERAS, Cell, Person, TestEntry, error_of, eventually, value_of
from tests.userland.mcp.transports.http_serving import (
    CLIENTS_GENERATORS,
    broken_off,
    connected,
    make_client,
    serving_http,
)

SLEEP = ["sleep", "1000"]
pytestmark = CLIENTS_GENERATORS


# -- Progress and cancellation -----------------------------------------------------------------------------------------


async def test_output_of_a_command_arrives_as_progress(cell: Cell) -> None:
    seen: list[tuple[float, str | None]] = []
    arrived = trio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))
        arrived.set()

    async with cell.connect(TestEntry("progress")) as client:
        command = "echo one; read -r line; echo $line"
        done = await client.call_tool("agentos_exec", {"command": command, "stdin": "two\n"}, progress_callback=hear)
        await arrived.wait()

    assert value_of(done)["stdout"] == "one\ntwo\n"
    assert seen[0][1] is not None
    assert seen[0][1].startswith("one\n")
    assert [number for number, _ in seen] == sorted({number for number, _ in seen})


async def test_a_cancelled_call_ends_its_command(cell: Cell) -> None:
    def runs() -> bool:
        return any("7719" in words_of(one.pid) for one in descendants(cell.kernel.pid))

    async with cell.connect(TestEntry("cancelled")) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "agentos_exec", {"command": "sleep 7719", "timeout": 0})
            await eventually(runs)
            nursery.cancel_scope.cancel()
        await eventually(lambda: not runs())


def words_of(pid: int) -> list[str]:
    """The command line of a process."""
    try:
        return Path("/proc", str(pid), "cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


# -- Approval ----------------------------------------------------------------------------------------------------------


async def test_the_answer_to_an_elicitation_decides_where_the_operator_has_let_it(cell: Cell, place: Path) -> None:
    person = Person()

    async with cell.connect(asking(cell), elicitation_callback=person) as client, cell.operator() as operator:
        done = await client.call_tool("agentos_write", append(place))
        pending = await operator.approvals()
        decided = await last_decision(operator) if cell.transport.kind == "stdio" else ""

    if cell.transport.kind == "http":  # its client may be a program without a person
        assert f"approval {pending[0].id} can be given until" in error_of(done)
        assert not person.questions
        return
    assert value_of(done) == {"bytes_written": 1}
    assert (place / "file").read_text() == "x"
    [question] = person.questions
    assert question.startswith("mcp:desk wants to make the call WRITE, and the rule `ask write ")
    assert f"WRITE \u2039{place}/file\u203a\n" in question
    number, digest = question.rsplit("Approval ", 1)[1].split(", sha256 ")
    assert f"approval {number} allowed (once) by mcp:desk (elicitation), uid " in decided
    assert f"sha256 {digest}" in decided
    assert not pending


async def test_a_server_that_restarts_before_the_answer_acts_once(cell: Cell, place: Path) -> None:
    """What was asked before the restart can't be allowed any more: it is asked anew, and the answer counts once."""
    if cell.transport.kind == "http":
        await _restart_before_the_operator_decides(cell, place)
    elif cell.is_modern:
        await _restart_between_two_round_trips(cell, place)
    else:
        await _restart_while_the_connection_waits(cell, place)

    assert (place / "file").read_text() == "x"


async def _restart_before_the_operator_decides(cell: Cell, place: Path) -> None:
    async with cell.connect(asking(cell)) as client:
        assert "approval_required: " in error_of(await client.call_tool("agentos_write", append(place)))
    async with cell.connect(asking(cell)) as client, cell.operator() as operator:
        assert "approval_required: " in error_of(await client.call_tool("agentos_write", append(place)))
        [present] = [one for one in await operator.approvals() if one.caller_present]
        await operator.decide(present.id, allow=True)
        value_of(await client.call_tool("agentos_write", append(place)))
        assert "approval_required: " in error_of(await client.call_tool("agentos_write", append(place)))


async def _restart_between_two_round_trips(cell: Cell, place: Path) -> None:
    person = Person()
    async with cell.connect(asking(cell), elicitation_callback=person) as client:
        first = await ask(client, place)
    assert not (place / "file").exists()
    async with cell.connect(asking(cell), elicitation_callback=person) as client:
        value_of(await client.call_tool("agentos_write", append(place), **answered(first)))
    assert len(person.questions) == 1


async def _restart_while_the_connection_waits(cell: Cell, place: Path) -> None:
    person, asked = Person(), trio.Event()

    async def wait_for_ever(context: object, params: object) -> mcp.types.ElicitResult:
        asked.set()
        await trio.sleep_forever()
        raise AssertionError("it ends with its client")

    async with cell.connect(asking(cell), elicitation_callback=wait_for_ever) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "agentos_write", append(place))
        await asked.wait()
        nursery.cancel_scope.cancel()
    assert not (place / "file").exists()
    async with cell.connect(asking(cell), elicitation_callback=person) as client:
        value_of(await client.call_tool("agentos_write", append(place)))
    assert len(person.questions) == 1


# -- Changes, identity, errors -----------------------------------------------------------------------------------------


async def test_a_client_hears_of_agents_that_come_and_go(cell: Cell) -> None:
    heard = trio.Event()

    async def hear(message: object) -> None:
        if getattr(message, "method", "") == "notifications/resources/list_changed":
            heard.set()

    async with cell.connect(TestEntry("changes"), message_handler=hear) as client:
        capabilities = client.server_capabilities.resources
        assert capabilities is not None
        assert capabilities.list_changed
        await client.call_tool("agentos_list_agents", {})
        if cell.is_modern:
            async with client.listen(
                resources_list_changed=True, resource_subscriptions=["agentos://agents"]
            ) as events:
                await spawn(client)
                kinds = {type(await anext(events)).__name__, type(await anext(events)).__name__}
            assert kinds == {"ResourcesListChanged", "ResourceUpdated"}
        else:
            await spawn(client)
            await heard.wait()
        listed = [str(one.uri) for one in (await client.list_resources(cache_mode="bypass")).resources]
        log = await client.read_resource("agentos://agents/changing/logs", cache_mode="bypass")
        value_of(await client.call_tool("agentos_kill", {"name": "changing", "grace": 0}))

    assert "agentos://agents/changing/logs" in listed
    assert log.contents[0].text == ""  # type: ignore[union-attr]


async def spawn(client: mcp.Client) -> None:
    value_of(await client.call_tool("agentos_spawn", {"name": "changing", "command": SLEEP}))


async def test_a_client_is_the_guest_of_its_entry_and_gets_the_kernels_codes_and_sentences(cell: Cell) -> None:
    info = mcp.types.Implementation(name="mcp:somebody", version="1")

    async with cell.connect(TestEntry("known"), client_info=info) as client, cell.operator() as operator:
        denied = error_of(await client.call_tool("agentos_read", {"path": "/etc/hostname"}))
        missing = error_of(await client.call_tool("agentos_kill", {"name": "nobody"}))
        wrong = error_of(await client.call_tool("agentos_read", {"path": "/x", "offset": -1}))
        with pytest.raises(mcp.MCPError, match="not_found: "):
            await client.read_resource("agentos://agents/nobody/logs")
        value_of(await client.call_tool("agentos_exec", {"command": "true"}))
        names = {one.name for one in await operator.get_audit_log(limit=20) if one.call == "EXEC"}

    assert "mcp:known" in names
    assert "mcp:somebody" not in names  # whatever it calls itself
    assert "permission_denied: READ /etc/hostname: no rule of level standard allows it" in denied
    assert "not_found: " in missing
    assert "offset" in wrong


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_disconnects_ends_its_command(kernel: Kernel, mode: str) -> None:
    """Its connections break, as they do when it is killed: it says nothing more."""
    token = make_client(kernel.state_dir, f"broken-{mode}")

    def runs() -> bool:
        return any("7720" in words_of(one.pid) for one in descendants(kernel.pid))

    async def ask_and_lose(client: mcp.Client) -> None:
        with suppress(Exception):  # each era has its own
            await client.call_tool("agentos_exec", {"command": "sleep 7720", "timeout": 0})

    async with serving_http(kernel.socket, kernel.state_dir) as url, broken_off(url) as relay:
        with suppress(Exception):
            async with trio.open_nursery() as nursery, connected(relay.url, token, mode) as client:
                nursery.start_soon(ask_and_lose, client)
                await eventually(runs)
                relay.scope.cancel()
                with trio.fail_after(PATIENCE):
                    await eventually(lambda: not runs())
                nursery.cancel_scope.cancel()
        assert not runs()
