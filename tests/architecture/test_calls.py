"""A call has a handler, a request and a page; one that lacks any of them is found here."""

import importlib
import itertools
import pkgutil
from pathlib import Path
from typing import get_type_hints

import pytest

import agentos_sdk.calls
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire import connection_calls
from agentos_sdk.calls.request import Request
from agentos_sdk.encoding.codec import Invalid, decode
from agentos_sdk.encoding.strict import wire_name
from agentos_sdk.opcodes import Op
from tests.support.calls import syscalls
from tests.support.runs.rows import each_row

ROOT = Path(__file__).parents[2]
WITHOUT_RIGHTS = frozenset(
    {Op.NOOP, Op.RECV, Op.ACK, Op.REGISTER, Op.ASYNC_POLL, Op.NOW, Op.SLEEP, Op.RANDOM}
)  # a set may refuse such a call, whatever it is about
WITHOUT_A_REQUEST = frozenset({Op.NOOP, Op.EXIT})  # bytes and nothing


def requests() -> dict[Op, type]:
    found: dict[Op, type] = {}
    for module in pkgutil.walk_packages(agentos_sdk.calls.__path__, "agentos_sdk.calls."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Request) and isinstance(vars(value).get("op"), Op):
                found[value.op] = value
    return found


SYSCALLS = syscalls()
SERVED = sorted({syscall.op for syscall in SYSCALLS} | connection_calls.OPS)


def test_these_are_the_calls_of_this_version() -> None:
    names = (
        "NOOP THINK EXEC SPAWN KILL LIST WAIT PAUSE RESUME TREE LOGS INSPECT SEND RECV ACK MAIL BROADCAST REGISTER "
        "METRICS_SYSTEM METRICS_AGENT METRICS_ALL_AGENTS METRICS_CGROUP "
        "LLM_REPORT CANCEL HELLO EXIT READ WRITE GET_PERMS SET_PERMS EXPLAIN GET_AUDIT_LOG "
        "SET_AUDIT_CONFIG START STOP RESTART SHUTDOWN STATUS RELOAD USAGE APPROVALS DECIDE ASYNC_POLL HTTP "
        "NOW SLEEP RANDOM TOOLS TOOL_CALL STORE FETCH DELETE KEYS GET_CONTENTS SUBSCRIBE UNSUBSCRIBE POLL_EVENTS EMIT "
        "DIFF APPLY UNDO ROLLBACK SNAPSHOT SNAPSHOTS FORK IMAGES EXPORT IMPORT RECORD_START RECORD_STOP RECORD_STATUS "
        "REPLAY_START REPLAY_STATUS REPLAY_STOP"
    )

    assert {op.name for op in SERVED} == set(names.split())


def test_no_opcode_is_served_twice() -> None:
    assert len({syscall.op for syscall in SYSCALLS}) == len(SYSCALLS)


@each_row("syscall", SYSCALLS, ids=lambda syscall: syscall.op.name)
def test_every_call_that_needs_rights_or_is_recorded_is_prepared(syscall: Syscall) -> None:
    assert (syscall.prepare is None) == (syscall.op in WITHOUT_RIGHTS)
    assert (syscall.prepare is None) != (syscall.handler is None)
    if syscall.audit != "none" or syscall.charge is not None:
        assert syscall.prepare is not None
        deferred = syscall.deferred and syscall.audit != "intent" and syscall.charge is None
        assert syscall.waits or deferred, "an entry can wait for the disk, or for a person, only in a task"


def test_every_request_is_of_a_call_that_is_served() -> None:
    assert set(requests()) == set(SERVED) - WITHOUT_A_REQUEST


def test_no_duration_of_any_call_is_longer_than_a_hundred_years() -> None:
    durations = [
        (request, wire_name(name))
        for request in requests().values()
        for name, kind in get_type_hints(request, include_extras=True).items()
        if "Seconds" in repr(kind)
    ]
    named = {(request.__name__, name) for request, name in durations}
    assert named >= {("Recv", "timeout"), ("Wait", "timeout"), ("Decide", "for"), ("Hello", "approval_timeout")}

    for request, name in durations:
        with pytest.raises(Invalid, match=rf"(^|; ){name}: expected .*, got 1e\+308"):
            decode(request, {name: 1e308})


@each_row("op", SERVED, ids=lambda op: op.name)
def test_every_call_has_a_page(op: Op) -> None:
    page = ROOT / "docs" / "reference" / "calls" / f"{op.name.lower()}.md"

    assert page.is_file()
    assert op.name in page.read_text()


def test_every_page_is_of_a_call_that_is_served() -> None:
    pages = {path.stem.upper() for path in (ROOT / "docs" / "reference" / "calls").glob("*.md")} - {"INDEX", "README"}

    assert pages - {op.name for op in SERVED} <= {Op.CHUNK.name}


def test_numbers_are_bytes_and_used_once() -> None:
    assert len({int(op) for op in Op}) == len(list(Op))
    assert all(0 <= op <= 255 for op in Op)


def test_every_module_says_in_its_first_line_what_it_is() -> None:
    packages = ("agentos", "supervisors", "sdk/agentos_attacks", "sdk/agentos_sdk")
    files = itertools.chain.from_iterable((ROOT / package).rglob("*.py") for package in packages)

    assert [str(file) for file in files if not file.read_text().startswith(('"""', 'r"""'))] == []
