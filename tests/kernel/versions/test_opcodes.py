"""All 256 of them: what a kernel serves, and what it says about the rest."""

import re

from agentos_sdk.opcodes import Op, op_name
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row
from tests.support.wire import CHUNK, NOOP, SERVED, Wire

# The table of the document: the numbers that clients were written against.
DOCUMENT = """
00 NOOP  01 THINK  02 READ  03 WRITE  04 EXEC  10 SPAWN  11 KILL  12 LIST  13 WAIT  14 PAUSE  15 RESUME  16 TREE
17 LOGS  18 INSPECT  19 RELOAD  1A START  1B STOP  1C RESTART  1D SHUTDOWN  1E STATUS  1F USAGE
20 SEND  21 RECV  22 BROADCAST  23 REGISTER  24 ACK  25 MAIL  37 ROLLBACK  39 DIFF  3A APPLY  3D UNDO
36 SNAPSHOT  38 FORK  3B SNAPSHOTS  3C IMAGES
30 STORE  31 FETCH  32 DELETE  33 KEYS  34 EXPORT  35 IMPORT  40 GET_PERMS  41 SET_PERMS  42 APPROVALS  43 DECIDE
44 EXPLAIN  50 HTTP  51 NOW  52 SLEEP  53 RANDOM
60 SUBSCRIBE  61 UNSUBSCRIBE  62 POLL_EVENTS  63 EMIT  70 RECORD_START  71 RECORD_STOP
72 RECORD_STATUS  73 REPLAY_START  74 REPLAY_STATUS  75 REPLAY_STOP  76 GET_AUDIT_LOG  77 SET_AUDIT_CONFIG
78 GET_CONTENTS
80 ASYNC_POLL  90 TOOLS  91 TOOL_CALL  A0 WORLD_CREATE  A1 WORLD_DESTROY  A2 WORLD_LIST  A3 WORLD_JOIN
A4 WORLD_LEAVE  A5 WORLD_EVENT
A6 WORLD_STATE  A7 WORLD_SNAPSHOT  A8 WORLD_RESTORE  B0 CLUSTER_JOIN  B1 CLUSTER_LEAVE  B2 CLUSTER_STATUS
B3 CLUSTER_AGENTS  B4 CLUSTER_CONFIG  C0 METRICS_SYSTEM  C1 METRICS_AGENT  C2 METRICS_ALL_AGENTS  C3 METRICS_CGROUP
F0 LLM_REPORT  F1 CHUNK  FD CANCEL  FE HELLO  FF EXIT
"""
NUMBERS = {name: int(number, 16) for number, name in re.findall(r"([0-9A-F]{2}) (\w+)", DOCUMENT)}


def test_the_opcodes_have_the_documents_numbers() -> None:
    assert {op.name: op.value for op in Op} == NUMBERS


def test_a_number_is_called_by_its_name_where_it_has_one() -> None:
    assert op_name(0x10) == "SPAWN"
    assert op_name(0x99) == "0x99"


@each_row("op", sorted(set(range(256)) - SERVED), ids=op_name)
def test_an_opcode_that_is_not_built_is_an_unknown_call(kernel: Kernel, op: int) -> None:
    with kernel.connect() as wire:
        for body in (b"", b"{}", b"\xff not json"):
            reply = wire.ask(op, body)
            assert reply.op == op
            assert reply.json["success"] is False
            assert reply.json["code"] == "unknown_call"
            assert op_name(op) in reply.json["error"]


@each_row("op", sorted(SERVED - {0xFF}), ids=op_name)
def test_an_opcode_that_is_built_is_not(kernel: Kernel, op: int) -> None:
    body = b'{"no such": "field"}'  # never what a call takes

    with kernel.connect() as wire:
        reply = wire.ask(op, body)

    assert reply.op == op
    assert reply.body == body if op == NOOP else reply.json["code"] == "bad_request"


def test_unknown_calls_carry_the_requests_id_in_version_2(wire: Wire) -> None:
    wire.hello()

    for op in (0xA0, 0x99, CHUNK):
        reply = wire.ask(op, b"{}", 12)
        assert (reply.id, reply.json["code"]) == (12, "unknown_call")
