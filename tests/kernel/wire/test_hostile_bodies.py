"""JSON at the edge of what parsers take, in every field of every call: refused or taken, and never a bug of ours."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.support.kernel import Kernel
from tests.support.runs.rounds import some
from tests.support.runs.rows import each_row
from tests.support.wire import (
    ACK,
    APPLY,
    APPROVALS,
    ASYNC_POLL,
    BROADCAST,
    CANCEL,
    CHUNK,
    DECIDE,
    DELETE,
    DIFF,
    EMIT,
    EXEC,
    EXIT,
    EXPLAIN,
    EXPORT,
    FETCH,
    FORK,
    GET_AUDIT_LOG,
    GET_CONTENTS,
    GET_PERMS,
    HELLO,
    HTTP,
    IMAGES,
    IMPORT,
    INSPECT,
    KEYS,
    KILL,
    LIST,
    LLM_REPORT,
    LOGS,
    MAIL,
    METRICS_AGENT,
    METRICS_ALL_AGENTS,
    METRICS_CGROUP,
    METRICS_SYSTEM,
    NOOP,
    NOW,
    PAUSE,
    POLL_EVENTS,
    RANDOM,
    READ,
    RECORD_START,
    RECORD_STATUS,
    RECORD_STOP,
    RECV,
    REGISTER,
    RELOAD,
    REPLAY_START,
    REPLAY_STATUS,
    REPLAY_STOP,
    RESTART,
    RESUME,
    ROLLBACK,
    SEND,
    SERVED,
    SET_AUDIT_CONFIG,
    SET_PERMS,
    SHUTDOWN,
    SLEEP,
    SNAPSHOT,
    SNAPSHOTS,
    SPAWN,
    START,
    STATUS,
    STOP,
    STORE,
    SUBSCRIBE,
    THINK,
    TOOL_CALL,
    TOOLS,
    TREE,
    UNDO,
    UNSUBSCRIBE,
    USAGE,
    WAIT,
    WRITE,
    frame,
)

pytestmark = pytest.mark.usefixtures("unharmed")

DIGITS = b"1" + b"0" * 70_000  # like the other large ones more than is read in the event loop
LARGE = 20_000  # bytes
BATCH = 64 << 10  # bytes that a socket takes while nothing is read: so much is sent at once
HOSTILE: Mapping[str, bytes] = {
    "a byte order mark": b"\xef\xbb\xbf{}",
    "deep": b"[" * 35_000 + b"]" * 35_000,
    "deep objects": b'{"a":' * 63 + b"1" + b"}" * 63,
    "only opened": b"[" * 70_000,
    "huge exponent": b"1e400",
    "tiny exponent": b"-1e-99999999999",
    "overflow without an exponent": b"1" + b"0" * 350 + b".0",
    "just above a float": b"2e308",
    "digits": DIGITS,
    "digits beyond int()": b"1" * 5000,
    "digits below int()": b"1" * 4000,
    "64 bits and one": b"18446744073709551616",
    "negative zero": b"-0",
    "a fraction": b"0.1e1",
    "half a pair": b'"\\ud800"',
    "the other half": b'"a\\udfffb"',
    "a pair reversed": b'"\\udc00\\ud800"',
    "a half as a key": b'{"\\ud800": 1}',
    "NUL": b'"a\\u0000b"',
    "NUL as a key": b'{"\\u0000": "a"}',
    "a bare NUL": b'"a\x00b"',
    "NaN": b"NaN",
    "Infinity": b"[-Infinity]",
    "duplicates": b'{"a": 1, "a": [], "a": {"a": 2}}',
    "no UTF-8": b'"\xff\xfe"',
    "an overlong form": b'"\xc0\xaf"',
    "an encoded surrogate": b'"\xed\xa0\x80"',
    "beyond Unicode": b'"\xf4\x90\x80\x80"',
    "separators": '"a\u2028b\u2029\ufeff"'.encode(),
    "controls": b'"\\u001b[2J\\r\\n\\b\\u007f"',
    "marks": '"\u202e\u0301\u200d"'.encode(),
    "a long key": b'{"' + b"k" * 70_000 + b'": 1}',
    "many keys": b"{" + b",".join(b'"k%d": 1' % number for number in range(6000)) + b"}",
    "many numbers": b"[" + b"0," * 35_000 + b"0]",
    "many strings": b"[" + b'"",' * 25_000 + b'""]',
    "many arrays": b"[" + b"[]," * 25_000 + b"[]]",
    "a long string": b'"' + b"a/" * 35_000 + b'"',
    "a long line of escapes": b'"' + b"\\u0041" * 12_000 + b'"',
    "an empty string": b'""',
    "an empty object": b"{}",
    "a number": b"700000",
    "a negative number": b"-7",
    "true": b"true",
    "null": b"null",
}
# Fields of each call; what else a call needs is in the second part. No call here does anything to anybody else.
FIELDS: Mapping[int, tuple[Sequence[str], bytes]] = {
    THINK: (["prompt", "messages", "system", "model", "temperature", "max_tokens", "stop", "tools", "timeout"], b""),
    READ: (["path", "offset", "limit", "encoding"], b'"path": "/nowhere/x"'),
    WRITE: (["path", "content", "mode", "encoding"], b'"path": "/nowhere/x", "content": ""'),
    EXEC: (
        ["command", "cwd", "timeout", "env", "stdin", "id", "name", "stream", "tty"],
        b'"command": "true", "name": "nowhere"',
    ),
    SPAWN: (
        ["name", "script", "command", "args", "env", "limits", "restart", "backoff", "permissions", "llm", "workspace"],
        b'"name": "a/b"',
    ),
    KILL: (["id", "name", "grace"], b""),
    LIST: (["all"], b""),
    WAIT: (["id", "name", "timeout"], b""),
    PAUSE: (["id", "name"], b""),
    RESUME: (["id", "name"], b""),
    TREE: (["any"], b""),
    LOGS: (["id", "name", "tail", "follow", "names", "since", "until", "grep", "stream", "run"], b""),
    START: (["name", "names"], b""),
    STOP: (["name", "names", "keep"], b""),
    RESTART: (["name", "names"], b""),
    RELOAD: (["dry_run"], b""),
    SHUTDOWN: (["grace"], b""),
    STATUS: (["any"], b""),
    USAGE: (["name", "since", "reset"], b""),
    INSPECT: (["id", "name"], b""),
    SEND: (["to", "to_name", "message"], b'"to": 4294967295'),
    RECV: (["max", "lease"], b'"timeout": 0'),
    ACK: (["ids"], b""),
    MAIL: (["name", "dead", "limit", "after", "requeue", "drop"], b'"name": "nowhere"'),
    BROADCAST: (["message", "include_self"], b'"message": 1'),
    REGISTER: (["name"], b""),
    GET_PERMS: (["agent_id"], b""),
    APPROVALS: (["follow"], b""),
    DECIDE: (["id", "allow", "remember", "for", "reason", "forget", "digest", "via"], b'"id": 1, "allow": true'),
    SET_PERMS: (["agent_id", "permissions", "level"], b'"agent_id": 4294967295'),
    EXPLAIN: (["agent", "call", "args"], b'"agent": "bait", "call": "SEND"'),
    GET_AUDIT_LOG: (["agent_id", "category", "limit", "since_id"], b""),
    SET_AUDIT_CONFIG: (["log_http"], b'"log_http": true'),
    GET_CONTENTS: (["name", "agent_id", "since_id", "limit"], b""),
    RECORD_START: (
        [
            *("agents", "filter_agents", "tree", "include_think"),
            *("include_http", "include_exec", "max_bytes", "max_entries"),
        ],
        b'"agents": ["nowhere"]',
    ),
    RECORD_STOP: (["any"], b""),
    RECORD_STATUS: (["export", "get_entries", "limit", "since_id"], b""),
    METRICS_SYSTEM: (["history"], b""),
    METRICS_AGENT: (["agent_id", "history"], b""),
    METRICS_ALL_AGENTS: (["any"], b""),
    METRICS_CGROUP: (["agent_id"], b""),
    SNAPSHOT: (["name", "label"], b'"name": "nowhere"'),
    FORK: (["name", "count", "snapshot", "names"], b'"name": "nowhere"'),
    IMAGES: (["remove"], b'"remove": "nowhere"'),
    SNAPSHOTS: (["name", "remove"], b'"name": "nowhere"'),
    ROLLBACK: (["name", "snapshot"], b'"name": "nowhere", "snapshot": "start"'),
    DIFF: (["name", "paths", "content"], b'"name": "nowhere"'),
    APPLY: (["name", "digest", "paths", "also", "resolve"], b'"name": "nowhere", "digest": "x"'),
    UNDO: (["name", "apply"], b'"name": "nowhere"'),
    REPLAY_START: (
        ["recording", "recording_data", "path", "agent", "code", "until", "then", "edits", "model", "hold"],
        b'"recording": "["',
    ),
    REPLAY_STATUS: (["name", "calls"], b""),
    REPLAY_STOP: (["name"], b""),
    EXPORT: (["name", "include", "stream"], b'"name": "nowhere"'),
    IMPORT: (["path", "as"], b'"path": "/nowhere/x"'),
    STORE: (["key", "value", "scope", "ttl", "if_version"], b'"key": "x", "scope": "session"'),
    FETCH: (["key", "scope", "agent"], b'"key": "nothing"'),
    DELETE: (["key", "scope", "if_version"], b'"key": "nothing"'),
    KEYS: (["prefix", "scope", "limit", "after", "agent"], b""),
    SUBSCRIBE: (["event_types", "agents", "prefix", "since", "boot", "stream"], b'"event_types": ["CUSTOM"]'),
    UNSUBSCRIBE: (["event_types", "all"], b""),
    POLL_EVENTS: (["max", "timeout", "since", "boot"], b'"timeout": 0'),
    EMIT: (["event_type", "event", "data"], b'"event_type": "CUSTOM"'),
    HTTP: (
        ["url", "method", "headers", "body", "encoding", "timeout", "max_redirects", "stream"],
        b'"url": "http://127.0.0.1:9/"',
    ),
    NOW: (["any"], b""),
    SLEEP: (["seconds", "until"], b'"until": 0'),
    RANDOM: (["bytes"], b""),
    TOOLS: (["server"], b""),
    TOOL_CALL: (["tool", "arguments", "timeout"], b'"tool": "none.none"'),
    ASYNC_POLL: (["max"], b""),
    CANCEL: (["id"], b""),
    HELLO: (["protocol", "as", "level", "permissions", "mailbox"], b'"protocol": 2'),
}


def bodies(op: int, value: bytes) -> Iterator[bytes]:
    """The value as the whole body, as each field, inside one, and as a key.

    Large ones as one field, texts in two; whole only in a call of the usual parser, and in one with its own.
    """
    fields, usual = FIELDS[op]
    as_whole = len(value) <= LARGE or op in (LIST, THINK)
    if as_whole:
        yield value
    is_large = len(value) > LARGE and value[:1] != b'"'
    for name in fields[:1] if is_large else some(fields, 2) if len(value) > LARGE else fields:
        others = usual + b", " if usual else b""
        yield b"{%b%b: %b}" % (others, b'"%b"' % name.encode(), value)
    if not is_large:
        yield b'{%b"%b": [%b, {"a": %b}]}' % (usual + b", " if usual else b"", fields[-1].encode(), value, value)
    if as_whole and value[:1] == b'"':
        yield b"{%b: 1}" % value


def batches(op: int) -> Iterator[Sequence[tuple[str, bytes]]]:
    """All bodies, each with the name of its value, in groups that are sent at once; HELLO's one by one."""
    batch, size = list[tuple[str, bytes]](), 0
    for what, value in HOSTILE.items():
        for body in bodies(op, value):
            if batch and (op == HELLO or size + len(body) > BATCH):
                yield batch
                batch, size = [], 0
            batch.append((what, body))
            size += len(body)
    yield batch


@pytest.fixture(scope="module")
def bait(kernel: Kernel) -> None:
    """An agent for EXPLAIN to be asked about."""
    kernel.spawn("bait")


def test_these_are_all_calls_with_a_body() -> None:
    assert set(FIELDS) == SERVED - {NOOP, EXIT, LLM_REPORT}


@pytest.mark.usefixtures("bait")
@each_row("op", FIELDS)
def test_no_body_is_ever_our_own_error_nor_harms_another_connection(kernel: Kernel, op: int) -> None:
    with contextlib.ExitStack() as stack:
        other, wire = stack.enter_context(kernel.connect()), stack.enter_context(kernel.connect())
        if op == SHUTDOWN:  # some of these are valid: a guest may not make them
            assert wire.call(HELLO, {"as": "guest", "level": "minimal"})["success"]
            assert wire.call(SHUTDOWN)["code"] == "permission_denied"
        for batch in batches(op):
            if op == HELLO:  # its connection ends when it is refused
                wire.close()
                wire = stack.enter_context(kernel.connect())
            wire.write(b"".join(frame(op, body) for _, body in batch))
            assert other.ask(NOOP, b"x").body == b"x"
            for what, body in batch:
                reply = wire.receive()
                assert reply.op == op, (what, body[:100], reply)
                if isinstance(said := reply.json, dict) and not said["success"]:
                    assert said["code"] != "internal", (what, body[:100], said)
                    assert len(said["error"]) < 10_000, (what, body[:100])
        assert other.ask(NOOP, b"x").body == b"x"
    assert "Traceback" not in kernel.said


def test_no_input_of_a_terminal_is_ever_our_own_error(kernel: Kernel) -> None:
    command = {"command": ["sleep", "1000"], "tty": {}}
    with kernel.connect() as wire:
        wire.hello()
        for what, value in HOSTILE.items():
            for field in (b"stdin", b"resize", b"eof")[: 1 if len(value) > LARGE else 3]:
                wire.send(EXEC, command, 5)
                wire.send(CHUNK, b"{%b: %b}" % (b'"%b"' % field, value), 5)
                wire.send(CHUNK, b"no JSON", 5)  # ends what goes on
                while (reply := wire.receive()).op == CHUNK:
                    pass
                assert (reply.op, reply.json["code"]) == (EXEC, "bad_request"), (what, field, reply)
                assert len(reply.body) < 10_000, (what, field)
    assert "Traceback" not in kernel.said
