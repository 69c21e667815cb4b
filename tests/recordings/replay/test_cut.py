"""A cut through a recorded tree: each message that was sent before is with its reader or in the mailbox, once."""

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentos.recordings.format import AgentFacts, Json, Life, Manifest
from agentos.recordings.reader import RecordedCall, read_recording
from agentos.recordings.replay import life as life_module
from agentos.recordings.replay.progress import ReplayFailed
from agentos.recordings.replay.tree import cut as cut_module
from agentos.recordings.replay.tree.cut import Cut, find_cut, read_calls
from tests.recordings.written import line, write_recording
from tests.support.runs.rounds import rounds

IDS = {"chief": 1, "helper": 2, "child": 3}


class Order:
    """Calls of three agents in one order, as a kernel with mailboxes would have recorded them."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self.boxes: dict[str, list[Json]] = {name: [] for name in IDS}
        self.numbers, self.ids = itertools.count(1), itertools.count(1)

    def number(self) -> int:
        return next(self.numbers)

    def add(
        self,
        name: str,
        call: str,
        begin: int,
        request: Json,
        reply: Json | None,
        end: int | None = None,
        chunks: tuple[Json, ...] = (),
    ) -> None:
        last = self.number() if end is None else end
        self.calls.append(RecordedCall(begin, last, f"{name}/1", call, float(begin), 0.0, request, reply, chunks))

    def put(self, sender: str, to: str, body: object, at: float) -> None:
        given = {"id": next(self.ids), "from_id": IDS[sender], "from_name": sender, "from_kind": "agent"}
        self.boxes[to].append({**given, "message": body, "sent_at": at})

    def send(self, sender: str, to: str, body: object) -> None:
        begin = self.number()
        self.put(sender, to, body, float(begin))
        self.add(sender, "SEND", begin, {"message": body, "to": IDS[to]}, sent(to))

    def take(self, name: str, begin: int, most: int) -> None:
        taken, self.boxes[name] = self.boxes[name][:most], self.boxes[name][most:]
        self.add(name, "RECV", begin, {"max": most}, {"success": True, "messages": taken})

    def cut(self, until: int, **changed: Any) -> Cut:
        facts = {name: AgentFacts(number) for name, number in IDS.items()}
        lives = [Life(f"{name}/1", name, 0.0, **changed) for name in IDS]
        return find_cut(Manifest(lives=lives, agents=facts), sorted(self.calls, key=lambda one: one.begin), until)


def sent(to: str) -> Json:
    return {"success": True, "delivered_to": IDS[to]}


def waiting(cut: Cut, name: str) -> list[object]:
    [member] = [one for one in cut.members if one.life.agent == name]
    return [one["message"] for one in member.waiting]


@pytest.mark.parametrize("seed", range(rounds(2)))
def test_at_each_number_each_message_is_taken_or_waits_or_is_sent_again(seed: int) -> None:
    chance, order = random.Random(seed), Order()
    reading = dict[str, int]()
    for _ in range(40):
        name = chance.choice([*IDS])
        if name in reading:
            order.take(name, reading.pop(name), chance.choice([1, 3]))
        elif chance.random() < 0.4:
            reading[name] = order.number()
        else:  # bodies may be equal
            order.send(name, chance.choice([one for one in IDS if one != name]), {"n": chance.randrange(5)})
    sends = [call for call in order.calls if call.call == "SEND"]
    for until in range(1, max(call.end for call in order.calls) + 2):
        cut = order.cut(until)
        for member in cut.members:
            all_sent = Counter(str(one.request) for one in sends if one.request["to"] == member.number)
            again = [one for one in sends if one.end >= until]
            repeated = Counter(str(one.request) for one in again if one.request["to"] == member.number)
            answered = [one for one in member.calls if one.call == "RECV" and one.end < until]
            had = [one["message"] for call in answered for one in (call.reply or {})["messages"]]
            present = [*had, *(one["message"] for one in member.waiting)]
            kept = Counter(str({"message": body, "to": member.number}) for body in present)
            assert kept + repeated == all_sent, (seed, until, member.life.life)


def test_a_call_under_way_whose_message_was_taken_is_done() -> None:
    order = Order()
    first, other = order.number(), order.number()
    order.put("chief", "helper", "a", 1.0)
    order.take("helper", order.number(), 1)
    until = order.number()
    order.add("chief", "SEND", first, {"message": "a", "to": 2}, sent("helper"))
    order.add("chief", "SEND", other, {"message": "b", "to": 2}, sent("helper"))

    [chief] = [one for one in order.cut(until).members if one.number == 1]
    assert chief.in_flight == {other}
    assert waiting(order.cut(until), "helper") == []


def test_messages_wait_in_the_order_in_which_they_arrived() -> None:
    order = Order()
    first, second = order.number(), order.number()
    order.add("child", "SEND", second, {"message": "sent later", "to": 1}, sent("chief"))
    order.add("helper", "SEND", first, {"message": "arrived later", "to": 1}, sent("chief"))

    assert waiting(order.cut(order.number()), "chief") == ["sent later", "arrived later"]


def test_of_a_broadcast_those_wait_who_took_it_later() -> None:
    order = Order()
    begin = order.number()
    for name in ("helper", "child"):
        order.put("chief", name, "all", 1.0)
    order.take("helper", order.number(), 1)
    until = order.number()
    order.add("chief", "BROADCAST", begin, {"message": "all"}, {"success": True, "delivered_count": 2})
    order.take("child", order.number(), 1)

    cut = order.cut(until)
    assert (waiting(cut, "helper"), waiting(cut, "child")) == ([], ["all"])
    assert [one.in_flight for one in cut.members if one.number == 1] == [frozenset()]


def test_a_broadcast_under_way_that_was_not_seen_is_made_again() -> None:
    order = Order()
    begin, until = order.number(), order.number()
    order.put("chief", "child", "all", 1.0)
    order.add("chief", "BROADCAST", begin, {"message": "all"}, {"success": True, "delivered_count": 1})
    order.take("child", order.number(), 1)

    cut = order.cut(until)
    assert waiting(cut, "child") == []
    assert [one.in_flight for one in cut.members if one.number == 1] == [{begin}]


@pytest.mark.parametrize("has_called", [True, False])
def test_a_spawn_under_way_is_done_if_its_child_has_made_a_call(has_called: bool) -> None:
    order = Order()
    begin = order.number()
    if has_called:
        order.add("child", "NOOP", order.number(), {}, {"success": True})
    until = order.number()
    order.add("chief", "SPAWN", begin, {"name": "child"}, {"success": True, "id": 3})

    cut = order.cut(until)
    assert {one.life.agent: one.parent for one in cut.members}.get("child") == ("chief" if has_called else None)
    assert [one.in_flight for one in cut.members if one.number == 1] == [set() if has_called else {begin}]
    assert [one.life.agent for one in cut.members][-1] == ("child" if has_called else "helper")


def test_an_agent_that_had_ended_is_not_there_and_its_name_reaches_no_other() -> None:
    order = Order()
    order.send("child", "chief", "last words")
    order.add("helper", "NOOP", order.number(), {}, {"success": True})
    order.add("helper", "NOOP", 1000, {}, {"success": True}, 1001)
    cut = order.cut(1000, ended=900.0)

    assert [one.life.agent for one in cut.members] == ["helper"]
    assert set(cut.gone) == {"chief", "child", 1, 3}


@pytest.mark.parametrize(
    ("request_", "reply", "said"),
    [
        ({"base64": "e30="}, sent("chief"), "call 1, SEND: its message isn't in the recording as JSON"),
        ({"message": "x"}, {"success": True}, "call 1, SEND: its reply doesn't name the receiver"),
    ],
)
def test_a_message_that_can_not_be_read_is_refused(request_: Json, reply: Json, said: str) -> None:
    order = Order()
    order.add("child", "SEND", order.number(), request_, reply)

    with pytest.raises(ReplayFailed, match=said):
        order.cut(1)


def test_a_life_that_began_before_the_recording_says_what_to_do() -> None:
    with pytest.raises(ReplayFailed, match=r"chief/1 can't be forked at 1: it began before.*agentos restart"):
        Order().cut(1, replayable=False, partial=True, reason="it began before the recording")


def test_a_cut_has_as_many_members_as_the_bound_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_module, "MAX_MEMBERS", 3)
    assert len(Order().cut(1).members) == 3

    monkeypatch.setattr(cut_module, "MAX_MEMBERS", 2)
    with pytest.raises(ReplayFailed, match="3 agents lived at 1, and at most 2 are forked"):
        Order().cut(1)


def test_the_operator_and_guests_are_no_members_of_a_cut() -> None:
    lives = [Life(f"{name}/1", name, 0.0) for name in ("chief", "operator", "guest ann")]

    cut = find_cut(Manifest(lives=lives, agents={"chief": AgentFacts(1)}), [], 1)

    assert [one.life.agent for one in cut.members] == ["chief"]


def test_calls_are_read_up_to_their_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = read_recording(write_recording(tmp_path / "r", [line(1, "NOOP"), line(2, "NOOP")]))
    weight = sum(call.weight for call in read_calls(recording))

    monkeypatch.setattr(cut_module, "MAX_WEIGHT", weight)
    assert [call.begin for call in read_calls(recording)] == [1, 3]
    monkeypatch.setattr(cut_module, "MAX_WEIGHT", weight - 1)
    with pytest.raises(ReplayFailed, match="fork one of its lives"):
        read_calls(recording)


def test_a_recording_that_is_too_large_to_be_replayed_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = read_recording(write_recording(tmp_path / "r", [line(1, "NOOP")]))

    monkeypatch.setattr(life_module, "MAX_BYTES", recording.measure())
    assert len(read_calls(recording)) == 1
    monkeypatch.setattr(life_module, "MAX_BYTES", recording.measure() - 1)
    with pytest.raises(ReplayFailed, match="can be replayed"):
        read_calls(recording)


@pytest.mark.parametrize("called", ["FETCH", "NOOP", None])
def test_a_stream_under_way_is_done_if_its_life_has_made_calls_since(called: str | None) -> None:
    order = Order()
    other, begin = order.number(), order.number()
    if called is not None:
        order.add("chief", called, order.number(), {}, {"success": True})
    until = order.number()
    order.add("chief", "THINK", begin, {"stream": True}, {"success": True}, chunks=({"delta": "a"},))
    order.add("helper", "THINK", other, {"stream": True}, {"success": True}, chunks=({"delta": "a"},))

    flying = {one.number: one.in_flight for one in order.cut(until).members}
    assert flying == {1: set() if called == "FETCH" else {begin}, 2: {other}, 3: set()}
