"""As much as a call's bound says is taken, and one more is refused or left out of the reply."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agentos.agents.registry import Registry
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.services.audit.traffic import Traffic
from agentos.services.event_log.ring import EventLog
from agentos.services.mail.mailbox import Message
from agentos.services.mail.mailboxes import Mailboxes
from agentos.services.snapshots.changes import Change
from agentos.syscalls import http, messages
from agentos.syscalls.agents.logs import MAX_TAIL, check_tail
from agentos.syscalls.agents.start_stop import MAX_NAMES, StartStopCalls
from agentos.syscalls.events import MAX_DATA_BYTES, EventCalls
from agentos.syscalls.files.exec import MAX_TIMEOUT_SECONDS, check_request
from agentos.syscalls.http import MAX_HEADER_BYTES, MAX_HEADERS, check_headers
from agentos.syscalls.operator import overlays
from agentos_sdk.calls.agents import Start
from agentos_sdk.calls.events import Emit
from agentos_sdk.calls.host import Exec
from agentos_sdk.calls.messages import Recv
from agentos_sdk.encoding.codec import Seconds
from agentos_sdk.errors import BadRequest
from tests.agents.test_registry import agent
from tests.support.rights import Grants, Notebook
from tests.support.runs.rows import each_row

NOTHING: Any = None
CALLER = Caller(7, "agent", "tester", Table(()), Grants(), Notebook())


def name_agents(count: int) -> None:
    registry, one = Registry(), agent("one")
    registry.add(one)
    assert len(StartStopCalls(registry, NOTHING).find_targets(Start(names=[str(one.id)] * count))) == 1


def emit(size: int) -> None:
    events = EventCalls(EventLog(), Registry(), authorizer=SimpleNamespace(observers=[]))  # type: ignore[arg-type]
    events.prepare_emit(CALLER, Emit(event_type="CUSTOM", data=msgspec.Raw(b"1" * size)))


@each_row(
    ("check", "taken", "refused", "told"),
    [
        (check_tail, (0, MAX_TAIL), (-1, MAX_TAIL + 1), "tail: expected 0 to 2000"),
        (
            lambda timeout: check_request(Exec(command="true", timeout=Seconds(timeout))),
            (0.0, MAX_TIMEOUT_SECONDS),
            (-0.001, math.nextafter(MAX_TIMEOUT_SECONDS, math.inf)),
            "timeout: expected at most 3600 seconds",
        ),
        (
            lambda count: check_headers({f"a{number}": "" for number in range(count)}),
            (0, MAX_HEADERS),
            (MAX_HEADERS + 1,),
            "headers: expected at most 100, of 32 KiB",
        ),
        (
            lambda size: check_headers({"a": "", "b": "1" * (size - 2)}),
            (2, MAX_HEADER_BYTES),
            (MAX_HEADER_BYTES + 1,),
            "headers: expected at most 100, of 32 KiB",
        ),
        (name_agents, (1, MAX_NAMES), (0, MAX_NAMES + 1), "names: expected 1 to 1000 names"),
        (emit, (1, MAX_DATA_BYTES), (MAX_DATA_BYTES + 1,), "data: expected at most 16384 bytes"),
    ],
)
def test_a_request_may_have_as_much_as_its_bound_says(
    check: Callable[[Any], object], taken: tuple[Any, ...], refused: tuple[Any, ...], told: str
) -> None:
    for value in taken:
        check(value)
    for value in refused:
        with pytest.raises(BadRequest, match=told):
            check(value)


@each_row(("lease", "fits"), [(1.0, True), (3600.0, True), (0.999, False), (3600.001, False)])
async def test_a_lease_is_between_a_second_and_an_hour(lease: float, fits: bool) -> None:
    mail = Mailboxes()
    mail.open(CALLER.id, CALLER.name)
    receiving = messages.Messages(mail, Registry(), Traffic(NOTHING), NOTHING)
    if fits:
        assert b'"count":0' in await receiving.recv(Call(CALLER, streams=False), Recv(lease=Seconds(lease)))
    else:
        with pytest.raises(BadRequest, match="lease: expected 1 to 3600 seconds"):
            await receiving.recv(Call(CALLER, streams=False), Recv(lease=Seconds(lease)))


def test_a_body_has_as_many_escapes_as_are_parsed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ESCAPES", 2)
    assert http.decode_body(rb'"\n\n"', "utf-8") == (b"\n\n", {})
    with pytest.raises(BadRequest, match="body: more than 2 escapes"):
        http.decode_body(rb'"\n\n\n"', "utf-8")


@each_row(("room", "listed"), [(3, 3), (2.75, 2), (2, 2), (1.75, 1), (1, 1), (0.75, 0)])
def test_a_reply_lists_the_paths_that_it_has_room_for(room: float, listed: int) -> None:
    paths = ["a", "b", "c"]
    changes = [Change(path=path, what="created", kind="file") for path in paths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlays, "MAX_LISTED", int(room * len('"a",')))
        assert overlays.cut(paths) == (paths[:listed], 3 - listed)
        patch.setattr(overlays, "MAX_LISTED", int(room * len('["a",null]')))
        found, more = overlays.list_changes(changes, {})
    assert ([one.path for one in found], more) == (paths[:listed], 3 - listed)


@each_row(("room", "shown"), [(5, 2), (4, 1), (1, 1)])
def test_a_page_of_a_mailbox_has_a_message_and_those_that_fit_beside_it(room: int, shown: int) -> None:
    kept = [Message(7, "ann", "agent", body) for body in (b'"a"', b"10")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "MAX_BATCH_BYTES", room)
        page = msgspec.json.decode(messages.encode_mail(kept, 2, 0, 0, {}))
    assert [one["message"] for one in page["messages"]] == ["a", 10][:shown]
