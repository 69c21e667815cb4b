"""Requests whose fields contradict each other or leave their bounds: the reply names the field, and nothing is done."""

from typing import Any

import pytest

from tests.support.runs.rows import each_row
from tests.support.wire import (
    ACK,
    DECIDE,
    EMIT,
    EXEC,
    FETCH,
    HELLO,
    HTTP,
    KEYS,
    LOGS,
    MAIL,
    METRICS_AGENT,
    POLL_EVENTS,
    RECV,
    SEND,
    SET_PERMS,
    SLEEP,
    SPAWN,
    START,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Wire,
)


@pytest.fixture
def guest(wire: Wire) -> Wire:
    assert wire.call(HELLO, {"as": "visitor"})["success"]
    return wire


URL = "http://127.0.0.1:9/"
WORKER = {"name": "w", "command": ["true"]}
BAD, DENIED = "bad_request", "permission_denied"


@each_row(
    ("op", "body", "code", "told"),
    [
        (SEND, {"message": 1}, BAD, "to: expected exactly one of"),
        (SEND, {"message": 1, "to": 1, "to_name": "x"}, BAD, "to: expected exactly one of"),
        (SEND, {"message": 1, "to": "12"}, BAD, "to: expected an id, which is a number, or a name, got '12'"),
        (RECV, {"max": 0}, BAD, "max: expected at least 1, got 0"),
        (RECV, {"lease": 0.9}, BAD, "lease: expected 1 to 3600 seconds, got 0.9"),
        (RECV, {"lease": 3601}, BAD, "lease: expected 1 to 3600 seconds, got 3601"),
        (ACK, {"ids": []}, BAD, "ids: expected at least one id of a message"),
        (MAIL, {"dead": True}, BAD, "name: required field missing, with dead, after, requeue and drop"),
        (MAIL, {"after": 0}, BAD, "name: required field missing, with dead"),
        (MAIL, {"requeue": [1]}, BAD, "name: required field missing, with dead"),
        (MAIL, {"drop": [1]}, BAD, "name: required field missing, with dead"),
        (SUBSCRIBE, {"event_types": []}, BAD, "event_types: expected at least one, such as AGENT_* or *"),
        (SUBSCRIBE, {"event_types": ["*"], "boot": "x"}, BAD, "boot: expected only with since"),
        (POLL_EVENTS, {"boot": "x"}, BAD, "boot: expected only with since"),
        (POLL_EVENTS, {"timeout": 0.1}, BAD, "timeout: you are subscribed to nothing"),
        (UNSUBSCRIBE, {"event_types": []}, BAD, "event_types: expected exactly one of event_types and all"),
        (UNSUBSCRIBE, {"event_types": ["*"], "all": True}, BAD, "event_types: expected exactly one of"),
        (EMIT, {}, BAD, "event_type: expected CUSTOM, TASK_STEP or custom.NAME, once"),
        (EMIT, {"event": "CUSTOM", "event_type": "CUSTOM"}, BAD, "event_type: expected CUSTOM"),
        (
            EMIT,
            {"event": "CUSTOM", "data": "x" * (16 << 10)},
            BAD,
            "data: expected at most 16384 bytes of JSON",
        ),
        (LOGS, {"name": "kernel", "tail": -1}, BAD, "tail: expected 0 to 2000, got -1"),
        (LOGS, {"name": "kernel", "tail": 2001}, BAD, "tail: expected 0 to 2000, got 2001"),
        (LOGS, {"name": "kernel", "names": ["kernel"]}, BAD, "names: expected only one of name, id and names"),
        (LOGS, {"name": "missing"}, "not_found", "no agent is called 'missing'"),
        (LOGS, {"names": ["missing"]}, "not_found", "no agent is called 'missing'"),
        (LOGS, {"stream": "stdin"}, BAD, "stream: expected one of stdout, stderr, kernel, got 'stdin'"),
        (LOGS, {"run": -1}, BAD, "run: expected 0 (this run of the kernel), 1 (the one before) or more, got -1"),
        (LOGS, {"grep": "("}, BAD, "grep: "),
        (
            FETCH,
            {"key": "k", "agent": "a", "scope": "global"},
            BAD,
            "scope: with agent only the scope agent",
        ),
        (METRICS_AGENT, {}, BAD, "agent_id: required field missing: only an agent has metrics of its own"),
        (START, {"names": [f"a{number}" for number in range(1001)]}, BAD, "names: expected 1 to "),
        (SET_PERMS, {}, BAD, "permissions: expected exactly one of level and permissions"),
        (SLEEP, {}, BAD, "seconds: expected exactly one of seconds and until"),
        (SLEEP, {"seconds": 0, "until": 0}, BAD, "seconds: expected exactly one of seconds and until"),
        (SLEEP, {"until": 1e12}, BAD, "until: expected an instant within "),
        (
            SPAWN,
            {"name": "w", "command": ["true"], "restart": "permanent", "restart_policy": "always"},
            BAD,
            "restart_policy: restart says it",
        ),
        (EXEC, {"command": ""}, BAD, "command: expected a line for the shell, or a program and its arguments"),
        (EXEC, {"command": []}, BAD, "command: expected a line for the shell, or a program and its arguments"),
        (EXEC, {"command": "true", "timeout": -1}, BAD, "timeout: "),
        (EXEC, {"command": "true", "env": {"A=B": ""}}, BAD, "env.A=B: expected a variable's name"),
        (EXEC, {"command": "true", "env": {"AGENTOS_X": ""}}, BAD, "env.AGENTOS_X: expected a variable's name"),
        (EXEC, {"command": "true", "env": {"BASH_ENV": "x"}}, BAD, "env.BASH_ENV: bash reads this before its line"),
        (HTTP, {"url": URL, "method": "get"}, BAD, "method: expected a word in upper case such as GET or POST"),
        (HTTP, {"url": "ftp://x"}, BAD, "url: "),
        (HTTP, {"url": URL, "headers": {"a b": ""}}, BAD, "headers: expected a header's name, got 'a b'"),
        (HTTP, {"url": URL, "headers": {"Host": "x"}}, BAD, "headers.Host: the kernel sets this header itself"),
        (HTTP, {"url": URL, "headers": {"a": " x"}}, BAD, "headers.a: expected printable ASCII"),
        (HTTP, {"url": URL, "headers": {"a": "1", "A": "2"}}, BAD, "headers.A: given twice"),
        (HTTP, {"url": URL, "headers": {f"a{number}": "" for number in range(101)}}, BAD, "headers: expected at most "),
        (
            HTTP,
            {"url": URL, "body": {}, "encoding": "base64"},
            BAD,
            "body: expected base64 as text, because of",
        ),
        (HTTP, {"url": URL, "body": "a", "encoding": "base64"}, BAD, "body: expected base64, with padding"),
        (DECIDE, {"id": 1, "allow": True, "forget": True}, BAD, "allow: expected false with forget"),
    ],
)
def test_a_request_that_can_not_be_meant_is_refused_with_its_field(
    wire: Wire, op: int, body: dict[str, Any], code: str, told: str
) -> None:
    reply = wire.call(op, body)

    assert (reply["success"], reply["code"], reply["error"][: len(told)]) == (False, code, told)


@each_row(
    ("op", "body", "code", "told"),
    [
        (MAIL, {}, DENIED, "name: required field missing: only the operator sees all mailboxes"),
        (MAIL, {"name": "visitor", "drop": [1]}, DENIED, "requeue, drop: only the operator may change"),
        (MAIL, {"name": "visitor", "requeue": [1]}, DENIED, "requeue, drop: only the operator may change"),
        (FETCH, {"key": "k", "agent": "a"}, DENIED, "agent: only the operator may read the own keys of another agent"),
        (KEYS, {"agent": "a"}, DENIED, "agent: only the operator may read the own keys of another agent"),
        (HELLO, {"level": "readonly", "permissions": {"level": "readonly"}}, BAD, "permissions: level says it already"),
        (HELLO, {"level": "readonly", "mailbox": "kept"}, BAD, "mailbox: a kept one belongs to a guest's name"),
        (HELLO, {"as": "other"}, BAD, "as: this connection is the guest 'visitor' already"),
        (SPAWN, {**WORKER, "code": "/srv"}, DENIED, "code: only the operator may give"),
    ],
)
def test_what_is_the_operators_alone_is_refused_to_a_guest(
    guest: Wire, op: int, body: dict[str, Any], code: str, told: str
) -> None:
    reply = guest.call(op, body)

    assert (reply["success"], reply["code"], reply["error"][: len(told)]) == (False, code, told)
