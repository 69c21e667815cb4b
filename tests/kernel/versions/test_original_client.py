"""A client of the original AgentOS, version 1, byte by byte: what it sends, and which keys it looks for in replies.

Frames are written by hand (magic, agent id, opcode, length, body). The header's id is such a client's own guess.
"""

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.offline import thinking
from tests.support.wire import Wire
from tests.system.jails import cgroups

ASYNC = {"async": False, "request_id": 7}
USUAL: dict[
    int, dict[str, object]
] = {  # opcode -> keys of a failure that such a client reads without looking at success first
    0x01: {"content": ""},
    0x02: {"content": "", "size": 0},
    0x03: {"bytes_written": 0},
    0x04: {"stdout": "", "stderr": "", "exit_code": -1},
    0x11: {"killed": False},
    0x21: {"messages": [], "count": 0},
}


class Original:
    """Speaks as the original's blocking client did: one request, one reply, and then the next."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def raw(self, op: int, body: bytes) -> bytes:
        self.wire.write(struct.pack("<IIBQ", 0x41474E54, 1, op, len(body)) + body)
        reply = self.wire.receive()
        assert reply.op == op
        return reply.body

    def ask(self, op: int, fields: object = None) -> Any:
        return json.loads(self.raw(op, json.dumps(fields).encode() if fields is not None else b""))


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with thinking() as started:
        yield started


@pytest.fixture
def original(wire: Wire) -> Original:
    return Original(wire)


def test_an_echo_and_a_goodbye(original: Original) -> None:
    assert original.raw(0x00, b"Hello!\xff") == b"Hello!\xff"
    assert original.raw(0xFF, b"") == b"goodbye"
    assert original.wire.ends()


def test_a_prompt_is_plain_text_or_json(original: Original) -> None:
    plain = json.loads(original.raw(0x01, b"seven"))
    asked = {"prompt": "seven", "system_instruction": "Be brief.", "thinking_level": "low", "temperature": 0.7, **ASYNC}

    for reply in (plain, original.ask(0x01, asked)):
        assert (reply["success"], reply["content"], reply["error"]) == (True, "one two three four five six seven", None)
        assert reply["tokens"] > 0


def test_an_image_goes_with_a_prompt(original: Original) -> None:
    image = {"data": base64.b64encode(b"\x89PNG\r\n\x1a\n").decode(), "mime_type": "image/png"}

    assert original.ask(0x01, {"prompt": "seven", "image": image})["success"]


def test_an_agents_life(kernel: Kernel, original: Original) -> None:
    limits = {"memory": 268435456, "max_pids": 64}
    if cgroups(kernel) is not None:  # nothing else can hold this one
        limits["cpu_quota"] = 100000
    command = {"command": ["sleep", "1000"], "sandboxed": True, "network": False, "limits": limits}

    born = original.ask(0x10, {"name": "worker1", "restart_policy": "never", **command})
    [listed] = original.ask(0x12)

    assert (born["name"], born["status"]) == ("worker1", "running")
    assert (listed["id"], listed["pid"], listed["running"]) == (born["id"], born["pid"], True)
    assert original.ask(0x11, {"name": "worker1"})["killed"] is True
    assert original.ask(0x12) == []


def test_its_supervisor_takes_absence_for_death(original: Original) -> None:
    """It asks for the list again and again, and starts a child anew that isn't in it."""
    child = {"name": "unstable", "command": ["sh", "-c", "sleep 1; exit 3"]}
    first = original.ask(0x10, child)["id"]

    until(lambda: first not in {agent["id"] for agent in original.ask(0x12)}, "the dead child isn't listed any more")
    second = original.ask(0x10, child)

    assert second["success"]
    assert second["id"] != first
    known = {agent["id"]: agent["state"] for agent in original.ask(0x12, {"all": True})}
    assert known[first] == "exited"
    original.ask(0x11, {"id": second["id"]})


def test_an_agent_that_is_to_be_restarted_is_listed_meanwhile(original: Original) -> None:
    backoff = {"first": 60, "min": 60, "max": 60}
    life = {"command": ["sh", "-c", "sleep 1; exit 3"], "restart_policy": "always", "max_restarts": 1}
    number = original.ask(0x10, {"name": "patient", **life, "backoff": backoff})["id"]

    def states() -> dict[int, str]:
        return {agent["id"]: agent["state"] for agent in original.ask(0x12)}

    until(lambda: states()[number] == "backing_off", "it waits for its restart")
    assert original.ask(0x11, {"id": number})["killed"]
    assert number not in states()


def test_files_and_commands_of_the_host(kernel: Kernel, original: Original) -> None:
    path = str(kernel.place / "note.txt")

    assert original.ask(0x03, {"path": path, "content": "hello"})["bytes_written"] == 5
    assert original.ask(0x03, {"path": path, "content": " again", "mode": "append"})["bytes_written"] == 6
    read = original.ask(0x02, {"path": path})
    ran = original.ask(0x04, {"command": f"cat {path}; echo oh >&2; exit 2", "timeout": 10, **ASYNC})

    assert (read["content"], read["size"]) == ("hello again", 11)
    assert (ran["stdout"], ran["stderr"], ran["exit_code"]) == ("hello again", "oh\n", 2)


def test_a_message_has_what_either_version_looks_for(kernel: Kernel, original: Original) -> None:
    with kernel.connect() as other:
        number = Original(other).ask(0x23, {"name": "asker"})["agent_id"]
        own = original.ask(0x23, {"name": "answerer"})["agent_id"]

        assert Original(other).ask(0x20, {"to_name": "answerer", "message": {"n": 1}})["delivered_to"] == own
    reply = original.ask(0x21, {"max": 10, "wait": False, "timeout": 30})

    assert reply["count"] == 1
    [message] = reply["messages"]
    assert (message["from"], message["from_name"], message["message"]) == (number, "asker", {"n": 1})
    assert isinstance(message["age_ms"], int)
    assert original.ask(0x21, {"wait": False, "timeout": 30}) == {"success": True, "count": 0, "messages": []}


def test_it_stores_globally_and_another_fetches_deletes_and_lists_without_a_scope(
    kernel: Kernel, original: Original
) -> None:
    stored = original.ask(0x30, {"key": "original.plan", "value": {"step": [1, "two", None]}})
    assert (stored["success"], stored["key"]) == (True, "original.plan")
    with kernel.connect() as wire:
        other = Original(wire)
        found = other.ask(0x31, {"key": "original.plan"})
        assert (found["success"], found["exists"], found["value"]) == (True, True, {"step": [1, "two", None]})
        listed = other.ask(0x33, {"prefix": "original."})
        assert (listed["keys"], listed["count"]) == (["original.plan"], 1)
        assert original.ask(0x30, {"key": "original.plan", "value": 2, "scope": "global", "ttl": 60})["success"]
        assert other.ask(0x31, {"key": "original.plan"})["value"] == 2
        assert other.ask(0x32, {"key": "original.plan"})["deleted"] is True
    missing = original.ask(0x31, {"key": "original.plan"})
    assert (missing["success"], missing["exists"], missing["value"]) == (True, False, None)
    assert original.ask(0x32, {"key": "original.plan"})["deleted"] is False


def test_reported_tokens_are_accepted_and_change_nothing(original: Original) -> None:
    original.ask(0x01, {"prompt": "seven"})
    before = original.ask(0xF0, {"tokens": 0})

    after = original.ask(0xF0, {"tokens": 10**12})

    assert after == before == {"success": True, "tokens": before["tokens"], "quota_exceeded": False}
    assert 0 < before["tokens"] < 1000


def test_a_report_says_that_a_budget_is_used_up(own_kernel: OwnKernel) -> None:
    with own_kernel('[llm]\nprovider = "offline"\nbudget = [{ calls = 1, per = "1d" }]\n').connect() as wire:
        original = Original(wire)
        original.ask(0x01, {"prompt": "?"})

        assert original.ask(0xF0, {"tokens": 1})["quota_exceeded"] is True


@pytest.mark.parametrize(
    ("op", "name", "fields"), [(0x01, "THINK", {"prompt": "seven"}), (0x04, "EXEC", {"command": "true"})]
)
def test_an_answer_for_later_is_collected(original: Original, op: int, name: str, fields: dict[str, object]) -> None:
    accepted = original.ask(op, {**fields, "async": True, "request_id": 1})
    assert accepted == {"success": True, "async": True, "request_id": 1, "status": "accepted"}

    found: list[Any] = []

    def collect() -> int:
        found.extend(original.ask(0x80, {"max": 10})["results"])
        return len(found)

    until(collect, "it is answered")
    [result] = found

    assert (result["request_id"], result["opcode"], result["opcode_name"]) == (1, op, name)
    assert json.loads(result["payload"])["success"] is True
    assert original.ask(0x80) == {"success": True, "results": [], "count": 0}


WRONG = {
    0x01: {"prompt": ""},
    0x02: {"path": "/nowhere/at/all"},
    0x03: {"path": "/nowhere/at/all", "content": "x"},
    0x04: {"command": ""},
    0x11: {"name": "nobody"},
    0x21: {"max": 0},
}


@pytest.mark.parametrize("op", USUAL)
def test_a_failure_has_the_calls_usual_keys(original: Original, op: int) -> None:
    reply = original.ask(op, WRONG[op])

    assert reply["success"] is False
    assert reply["error"]
    assert USUAL[op].items() <= reply.items()


@pytest.mark.parametrize("op", USUAL)
def test_so_has_one_that_is_refused_before_it_is_read(kernel: Kernel, op: int) -> None:
    with kernel.connect() as wire:
        refused = wire.call(0xFE, {"permissions": {"level": "unrestricted", "deny": {"calls": ["*"]}}})
        assert refused["success"], refused
        reply = Original(wire).ask(op, WRONG[op])

    assert reply["code"] == "permission_denied"
    assert USUAL[op].items() <= reply.items()


@pytest.mark.parametrize("op", [0x02, 0x04, 0x11, 0x21])
def test_so_has_one_whose_body_is_too_large(kernel: Kernel, op: int) -> None:
    with kernel.connect() as wire:
        wire.write(struct.pack("<IIBQ", 0x41474E54, 1, op, 1 << 30))
        reply = wire.receive().json

    assert reply["code"] == "too_large"
    assert USUAL[op].items() <= reply.items()


def test_so_has_one_that_was_withdrawn(wire: Wire) -> None:
    wire.hello()
    wire.send(0x21, {"timeout": 30}, number=5)

    assert wire.ask(0xFD, {"id": 5}, number=6).json["cancelled"]
    reply = wire.receive()

    assert (reply.id, reply.json["code"]) == (5, "cancelled")
    assert USUAL[0x21].items() <= reply.json.items()
