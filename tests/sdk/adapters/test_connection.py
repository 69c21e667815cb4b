"""System calls for the adapters of frameworks, from threads and from asyncio."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentos_sdk.adapters.connection import KernelConnection
from agentos_sdk.adapters.tools import (
    ALL,
    EXEC,
    LIST_FILES,
    READ_FILE,
    RECEIVE_MESSAGES,
    SEARCH_FILES,
    SEND_MESSAGE,
    THINK,
    Tool,
    ToolError,
    run_tool,
)
from agentos_sdk.errors import ConnectionFailed, NotFound, PermissionDenied
from agentos_sdk.loop.tools import host_files
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, shared, until

TOML = '[llm]\nprovider = "offline"\n'
HELLO = "[offline echo, no model was asked] hello"


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(TOML) as started:
        yield started


@pytest.fixture
def connection(kernel: Kernel) -> KernelConnection:
    return KernelConnection(kernel.socket)


def test_a_call_is_answered_in_a_thread_and_on_asyncio(connection: KernelConnection) -> None:
    question = {"prompt": "hello", "model": None}

    assert connection.call(Op.THINK, question)["content"] == HELLO
    assert asyncio.run(connection.acall(Op.THINK, question))["content"] == HELLO


def test_a_stream_ends_with_the_whole_reply(connection: KernelConnection) -> None:
    async def ask() -> list[tuple[bool, dict[str, object]]]:
        return [part async for part in connection.astream(Op.THINK, {"prompt": "hello"})]

    for parts in (list(connection.stream(Op.THINK, {"prompt": "hello"})), asyncio.run(ask())):
        *pieces, (is_last, reply) = parts
        assert "".join(str(body["delta"]) for _, body in pieces) == reply["content"] == HELLO
        assert is_last
        assert not any(last for last, _ in pieces)


def test_a_failed_call_raises_the_error_of_its_code(connection: KernelConnection) -> None:
    async def fail_in_a_stream() -> None:
        async for _ in connection.astream(Op.EXEC, {"command": "true", "name": "nobody"}):
            pass

    with pytest.raises(NotFound, match="nobody"):
        connection.call(Op.INSPECT, {"name": "nobody"})
    with pytest.raises(NotFound, match="nobody"):
        asyncio.run(connection.acall(Op.INSPECT, {"name": "nobody"}))
    with pytest.raises(NotFound, match="nobody"):
        asyncio.run(fail_in_a_stream())


def test_a_guest_has_only_the_rights_of_its_level(kernel: Kernel) -> None:
    guest = KernelConnection(kernel.socket, name="notebook", level="readonly")

    with pytest.raises(PermissionDenied):
        guest.call(Op.THINK, {"prompt": "hello"})
    with pytest.raises(PermissionDenied):
        asyncio.run(guest.acall(Op.THINK, {"prompt": "hello"}))


def test_without_a_kernel_the_advice_is_to_start_one(tmp_path: Path) -> None:
    nowhere = KernelConnection(str(tmp_path / "none"))

    with pytest.raises(ConnectionFailed, match="no kernel"):
        nowhere.call(Op.LIST, {})
    with pytest.raises(ConnectionFailed, match="no kernel"):
        asyncio.run(nowhere.acall(Op.LIST, {}))


def test_a_cancelled_call_leaves_no_command_running(connection: KernelConnection, tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    async def cancel() -> None:
        task = asyncio.create_task(connection.acall(Op.EXEC, {"command": f"echo $$ > {pid}; sleep 1000", "timeout": 0}))
        while not (pid.exists() and pid.read_text().strip()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())

    until(lambda: not os.path.exists(f"/proc/{pid.read_text().strip()}"), "the command is killed")


def test_tools_run_in_many_threads_and_tasks_at_once(connection: KernelConnection, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("text")

    async def read_all() -> list[str]:
        reads = [connection.arun(run_tool(READ_FILE, {"path": str(file)})) for _ in range(50)]
        return await asyncio.gather(*reads)

    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda _: connection.run(run_tool(READ_FILE, {"path": str(file)})), range(50)))

    assert read == ["text"] * 50
    assert asyncio.run(read_all()) == ["text"] * 50


def test_each_tool_names_wrong_arguments(connection: KernelConnection) -> None:
    for tool in ALL:
        with pytest.raises(ToolError, match="oops: no such argument"):
            connection.run(run_tool(tool, {"oops": 1}))


def test_a_tools_failure_is_a_text_for_the_model(connection: KernelConnection, kernel: Kernel) -> None:
    guest = KernelConnection(kernel.socket, name="denied-exec", level="readonly")

    for one, said in ((connection, "exit status 3\nbye"), (guest, "permission_denied")):
        for run in (one.run, lambda work, one=one: asyncio.run(one.arun(work))):
            with pytest.raises(ToolError, match=said):
                run(run_tool(EXEC, {"command": "echo bye; exit 3"}))


def test_messages_and_questions_are_tools(connection: KernelConnection, kernel: Kernel) -> None:
    guest = KernelConnection(kernel.socket, name="reader")

    assert connection.run(run_tool(THINK, {"question": "hello"})) == HELLO
    assert guest.run(run_tool(RECEIVE_MESSAGES, {})) == "no message"
    with pytest.raises(ToolError, match="not_found"):
        connection.run(run_tool(SEND_MESSAGE, {"to": "nobody", "message": "hi"}))


# -- Searches outside of a jail ----------------------------------------------------------------------------------------


def make_files(place: Path) -> None:
    (place / "open").mkdir()
    (place / "open" / "a.txt").write_text("needle zwölf\n")
    (place / "open" / "image").write_bytes(b"\0needle")
    (place / "closed").mkdir()
    (place / "closed" / "b.txt").write_text("needle\n")
    (place / "id_rsa").write_text("needle, a private key\n")


def test_a_search_outside_of_a_jail_shows_only_files_that_the_caller_may_read(kernel: Kernel, tmp_path: Path) -> None:
    make_files(tmp_path)
    rules = {"allow": {"calls": ["READ"], "read": [f"{tmp_path}/open/**"]}}
    guest = KernelConnection(kernel.socket, name="searcher", permissions=rules)

    for run in (guest.run, lambda work: asyncio.run(guest.arun(work))):
        found = run(run_tool(SEARCH_FILES, {"pattern": "needle", "path": str(tmp_path)}))
        listed = run(run_tool(LIST_FILES, {"path": str(tmp_path)}))

        assert found == f"{os.path.relpath(tmp_path)}/open/a.txt:1: needle zwölf"
        assert listed == "open/a.txt (14 bytes)\nopen/image (7 bytes)"


@pytest.mark.parametrize("tool", [SEARCH_FILES, LIST_FILES], ids=lambda tool: tool.name)
def test_a_search_of_what_the_caller_may_not_read_is_denied_and_audited(
    tool: Tool, kernel: Kernel, tmp_path: Path
) -> None:
    make_files(tmp_path)
    guest_name = f"denied-{tool.name}"
    guest = KernelConnection(kernel.socket, name=guest_name, level="readonly")

    for path in ("/etc/shadow", str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(ToolError, match="permission_denied"):
            guest.run(run_tool(tool, {"pattern": ".", "path": path}))

    def denied() -> set[str]:
        with kernel.client() as client:
            entries = client.get_audit_log(limit=1000)["entries"]
        return {one["about"] for one in entries if (one["name"], one["decision"]) == (guest_name, "deny")}

    expected = {"/etc/shadow", str(tmp_path), str(tmp_path / "none")}
    until(lambda: expected <= denied(), "the audit log has the denied calls")


def test_a_search_shows_no_file_that_is_denied_to_every_caller(connection: KernelConnection, tmp_path: Path) -> None:
    make_files(tmp_path)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_rsa").write_text("needle, a private key\n")

    found = connection.run(run_tool(SEARCH_FILES, {"pattern": "needle", "path": str(tmp_path)}))
    listed = connection.run(run_tool(LIST_FILES, {"path": str(tmp_path)}))

    assert connection.run(run_tool(LIST_FILES, {"path": str(tmp_path), "pattern": "*.md"})) == "no file matches"
    assert "closed/b.txt" in found
    assert "id_rsa" not in found + listed


@pytest.mark.parametrize("path", ["/none", "a\0b", "\ud800", "~/none"], ids=ascii)
def test_a_search_of_no_file_is_answered_with_the_kernels_error(path: str, connection: KernelConnection) -> None:
    with pytest.raises(ToolError, match=r"not_found|bad_request"):
        connection.run(run_tool(SEARCH_FILES, {"pattern": "x", "path": path}))


def test_a_search_of_many_files_says_that_there_are_more(
    connection: KernelConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "MAX_ASKED", 2)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("x")

    listed = connection.run(run_tool(LIST_FILES, {"path": str(tmp_path)}))

    assert listed.startswith("a (1 bytes)\nb (1 bytes)\n[there are more files, which were not looked at")
