"""A fork begins with the messages that waited in the mailbox at its call: each once, none that came later."""

from typing import Any

import pytest

from agentos.agents.registry import Registry
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.recordings.format import Json
from agentos.recordings.reader import RecordedCall
from agentos.recordings.replay.life import LifeReplay
from agentos.recordings.replay.switch import Switch
from agentos.recordings.replay.tree.names import TreeNames
from agentos.recordings.replay.waiting_messages import find_waiting
from agentos.services.mail.mailboxes import Mailboxes
from agentos_sdk.errors import NotFound
from tests.support.rights import Grants, Notebook


def message(number: int, sent_at: float, **changed: Any) -> Json:
    made = {"id": number, "attempt": 1, "from_id": 5, "from": 5, "from_name": "boss", "from_kind": "agent"}
    return {**made, "message": {"n": number}, "sent_at": sent_at, "age_ms": 3, **changed}


def recv(begin: int, at: float, *messages: Any) -> RecordedCall:
    reply = {"success": True, "count": len(messages), "messages": [*messages]}
    return RecordedCall(begin, begin + 1, "coder/1", "RECV", at, 1.0, {}, reply)


CALLS = [
    recv(1, 1000.0, message(1, 999.0), message(2, 999.5)),
    recv(3, 1010.0, message(2, 999.5, attempt=2), message(4, 1010.0), message(3, 1001.0)),
    recv(5, 1020.0, message(5, 1004.0), message(6, 1015.0), message(7, 1.0, from_kind=3), "no message"),
]


def test_a_message_of_an_agent_that_had_ended_waits_in_the_fork_of_its_receiver() -> None:
    mail, waiting = Mailboxes(), find_waiting([recv(1, 1000.0, message(1, 999.0))], Switch(1, True))
    mail.open(9, "coder-fork")
    names = TreeNames(Registry(), gone={5, "boss"})

    waiting.put(mail, Caller(9, "agent", "coder-fork", Table([]), Grants(), Notebook()), names.find_sender)

    [one] = mail.by_id(9).messages
    assert (one.from_id, one.from_name, one.from_kind) == (5, "boss", "agent")
    with pytest.raises(NotFound, match="5 had ended when its tree was forked"):
        names.find(5)


def deliver(until: int) -> tuple[list[bytes], list[str]]:
    """What is in the mailbox of an agent that goes live at this call, after two live calls; and the notes."""
    mail, waiting = Mailboxes(), find_waiting(CALLS, Switch(until, True))
    mail.open(9, "coder-fork")
    life = LifeReplay(1, "coder", "coder/1", lambda data: data, switch=Switch(until, True))
    life.deliver = lambda caller: waiting.put(mail, caller)
    for _ in range(2):
        life.go_on(Caller(9, "agent", "coder-fork", Table([]), Grants(), Notebook()))
    box = mail.by_id(9)
    assert all((one.from_id, one.from_name, one.from_kind) == (5, "boss", "agent") for one in box.messages)
    return [one.body for one in box.messages], [*waiting.notes]


FORGED = [
    message(1, 999.0, from_kind="operator"),
    message(2, 999.0, from_kind="boss"),
    message(3, 999.0, from_id=1 << 70),
    message(4, 999.0, from_id=-1),
    message(5, float("-inf")),
    message(6, 999.0, from_kind="agent"),
]


@pytest.mark.parametrize("own", [True, False])
def test_a_recording_from_elsewhere_makes_nothing_the_operators(own: bool) -> None:
    mail, waiting = Mailboxes(), find_waiting([recv(1, 1000.0, *FORGED)], Switch(1, True), own)
    box = mail.open(9, "coder-fork")
    waiting.put(mail, Caller(9, "agent", "coder-fork", Table([]), Grants(), Notebook()))

    senders = [(5, "operator"), (5, "agent")] if own else [(0, "guest"), (0, "guest")]
    assert [(one.from_id, one.from_kind) for one in box.messages] == senders
    assert [one.body for one in box.messages] == [b'{"n":1}', b'{"n":6}']
    by_others = "messages of the operator or the kernel, by a recording from elsewhere, come from a guest: 1"
    assert waiting.notes == ([] if own else [by_others])


def test_each_message_that_waited_is_delivered_once() -> None:
    later = "messages that were sent later, which aren't delivered: {}".format
    assert deliver(1) == ([b'{"n":1}', b'{"n":2}'], [later(4)])
    assert deliver(3) == ([b'{"n":3}', b'{"n":4}', b'{"n":5}'], [later(1)])
    assert deliver(5) == ([b'{"n":5}', b'{"n":6}'], [])
    assert deliver(6) == ([], [])
