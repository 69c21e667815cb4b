"""A recorded tree of agents at one moment: whose lives go on, which calls are done, what waits in mailboxes."""

# The kernel numbers the begins and ends of all calls in one order. A cut is a number in it: a call that has ended
# before it is answered from the recording, one that is under way there is made live. That is consistent but for an
# effect that was seen already: a SEND whose message was taken, a SPAWN whose child has made a call, a stream in which
# its own life has made further calls. Such a call counts as done. What was sent before the cut and not taken before it
# waits in the receiver's mailbox.
# What must stay true: each message that was sent before is in one place only, in what a life was told or in its
# mailbox. docs/decisions/0123.

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import define, field, frozen

from agentos.recordings.format import Json, Life, Manifest
from agentos.recordings.matching import UNSEEN
from agentos.recordings.reader import RecordedCall, Recording
from agentos.recordings.replay.life import MAX_WEIGHT, check_size
from agentos.recordings.replay.progress import ReplayFailed
from agentos.recordings.replay.waiting_messages import list_messages
from agentos.threads import check_cancelled

MAX_MEMBERS = 10  # programs of one fork
SENDING = ("SEND", "BROADCAST")


@define
class Sent:
    """A message of a recorded agent. ``to`` is the receiver's id, None of a broadcast. ``done``: before the cut."""

    call: RecordedCall
    sender: int
    name: str
    to: int | None
    body: str
    done: bool

    def as_message(self) -> Json:
        """As RECV would have had it."""
        sender = {"from_id": self.sender, "from_name": self.name, "from_kind": "agent"}
        return {"id": 0, **sender, "message": self.call.request.get("message"), "sent_at": self.call.at}


@frozen
class Member:
    """An agent that goes on at the cut. ``number`` and ``names`` are what others called it, the last name first.

    ``parent`` is the agent that had spawned it. ``in_flight`` are the numbers of the calls that are made live, ``kept``
    of those whose effects the fork has. ``waiting`` are the messages in its mailbox, and ``later`` counts those of
    others that came after the cut.
    """

    life: Life
    calls: Sequence[RecordedCall]
    number: int
    names: Sequence[str]
    parent: str | None
    in_flight: frozenset[int]
    kept: frozenset[int]
    waiting: Sequence[Json]
    later: int


@frozen
class Cut:
    """The members, parents before their children, and the names and ids of agents that had ended."""

    at: float  # seconds since the epoch
    members: Sequence[Member]
    gone: Collection[str | int]


def read_calls(recording: Recording) -> Sequence[RecordedCall]:
    """The calls of all lives in the order of their begins. Raises ``ReplayFailed``, ``BadRecording``, ``OSError``."""
    check_size(recording)
    found, weight = list[RecordedCall](), 0
    for call in recording.calls():
        check_cancelled()
        found.append(call)
        weight += call.weight
        if weight > MAX_WEIGHT:
            raise ReplayFailed(f"the recording has more than {MAX_WEIGHT >> 30} GiB of calls: fork one of its lives")
    return sorted(found, key=lambda call: call.begin)


def find_cut(manifest: Manifest, calls: Sequence[RecordedCall], until: int, edited: Collection[int] = ()) -> Cut:
    """The tree before the number ``until``. Calls that are ``edited`` are answered, also if they are under way.

    Raises :class:`ReplayFailed` if a life can't go on there.
    """
    return _Finder(manifest, calls, until, frozenset(edited)).find()


class Words:
    """Messages by their senders and words."""

    def __init__(self, sent: Iterable[Sent]) -> None:
        self._sent = defaultdict[tuple[int, str], dict[int, Sent]](dict)  # by the number of the call's begin
        for one in sent:
            self._sent[one.sender, one.body][one.call.begin] = one

    def find(self, message: Json) -> Sent | None:
        """One that RECV told so: what was done before the cut first, else what was sent first."""
        same = self._sent.get((message["from_id"], _encode(message["message"])), {}).values()
        return next((one for one in same if one.done), next(iter(same), None))

    def remove(self, one: Sent) -> None:
        del self._sent[one.sender, one.body][one.call.begin]

    def __contains__(self, one: Sent) -> bool:
        return one.call.begin in self._sent.get((one.sender, one.body), ())


@define(eq=False)
class _Finder:
    manifest: Manifest
    calls: Sequence[RecordedCall]
    until: int
    edited: frozenset[int]
    seen: set[int] = field(factory=set)  # calls under way whose effects others have seen
    by_life: dict[str, list[RecordedCall]] = field(factory=lambda: defaultdict(list))
    spawned: dict[str, list[tuple[RecordedCall, str]]] = field(factory=lambda: defaultdict(list))  # by the child's name
    agent_of: dict[str, str] = field(factory=dict)  # by the life's name

    def find(self) -> Cut:
        lives = [
            life for life in self.manifest.lives if life.agent != "operator" and not life.agent.startswith("guest ")
        ]
        self.agent_of = {life.life: life.agent for life in lives}
        for call in self.calls:
            self.by_life[call.life].append(call)
            is_spawn = call.call == "SPAWN" and _is_done(call) and isinstance((call.reply or {}).get("id"), int)
            if is_spawn and call.life in self.agent_of:
                self.spawned[str(call.request.get("name"))].append((call, self.agent_of[call.life]))
        present = self._choose(lives)
        for life in present.values():
            self.seen |= self._list_read(self.by_life[life.life])
        sent = self._list_sent()
        received = {agent: self._list_received(agent, life.life) for agent, life in present.items()}
        for agent, (taken, _) in received.items():
            number = self._number(agent)
            self._match_taken(taken, Words(one for one in sent if one.to in (None, number)))
        members = []
        for agent, life in present.items():
            number = self._number(agent)
            mine = [one for one in sent if one.to == number]
            casts = [one for one in sent if one.to is None and one.sender != number]
            waiting, later = self._find_waiting(received[agent], mine, Words(casts))
            members.append(self._describe(agent, life, waiting, later, present))
        return Cut(self._at, _sort(members), self._list_gone(lives, present))

    @property
    def _at(self) -> float:
        """When the first call began that isn't before the cut, or else the last one ended."""
        after = min((call.at for call in self.calls if call.begin >= self.until), default=None)
        return after if after is not None else max((_end(call) for call in self.calls), default=0.0)

    def _is_before(self, call: RecordedCall) -> bool:
        return call.end < self.until or call.begin in self.seen or call.begin in self.edited

    def _list_read(self, calls: Sequence[RecordedCall]) -> set[int]:
        """The streams under way of a life that has made further calls since their begin."""
        done = (call.begin for call in calls if call.end < self.until and call.call not in UNSEEN)
        last = max(done, default=0)
        return {call.begin for call in calls if call.chunks and call.begin < last and call.end >= self.until}

    # -- Whose lives go on ---------------------------------------------------------------------------------------------

    def _choose(self, lives: Iterable[Life]) -> dict[str, Life]:
        """The life of each agent that goes on: the present one, or of a declared agent the next."""
        at, present, next_ones = self._at, dict[str, Life](), dict[str, Life]()
        for life in lives:
            mine = self.by_life[life.life]
            if any(call.begin < self.until for call in mine) or life.began <= at:
                is_over = life.ended is not None and life.ended < at and all(call.end < self.until for call in mine)
                if not is_over:
                    present[life.agent] = life
            else:
                next_ones.setdefault(life.agent, life)
        for agent, calls in self.spawned.items():
            under_way = [call for call, _ in calls if call.begin < self.until <= call.end]
            if under_way and agent in present:
                if any(call.begin < self.until for call in self.by_life[present[agent].life]):
                    self.seen.add(under_way[-1].begin)
                else:
                    del present[agent]  # it is spawned live
        declared = {agent: life for agent, life in next_ones.items() if agent not in self.spawned}
        present = {**declared, **present}
        for life in present.values():
            if not life.replayable:
                fix = "; record it from its begin: `agentos restart` it while it is recorded" if life.partial else ""
                raise ReplayFailed(f"{life.life} can't be forked at {self.until}: {life.reason}{fix}")
        if not present:
            raise ReplayFailed(f"no agent lived at {self.until}")
        if len(present) > MAX_MEMBERS:
            raise ReplayFailed(
                f"{len(present)} agents lived at {self.until}, and at most {MAX_MEMBERS} are forked: fork one life"
            )
        return present

    def _list_gone(self, lives: Iterable[Life], present: Mapping[str, Life]) -> frozenset[str | int]:
        """Names and ids of agents that had ended; one that is spawned later has no id yet."""
        names = {life.agent for life in lives if life.began <= self._at} - present.keys()
        spawned = (call for calls in self.spawned.values() for call, _ in calls if call.begin < self.until)
        ids = {int((call.reply or {})["id"]) for call in spawned}
        ids |= {facts.id for agent, facts in self.manifest.agents.items() if agent in names}
        ids -= {self._number(agent) for agent in present}
        return frozenset[str | int]([*names, *ids])

    def _number(self, agent: str, before: int | None = None) -> int:
        """The agent's id at a moment: one that was spawned several times has had several."""
        limit = self.until if before is None else before
        known = [call.reply["id"] for call, _ in self.spawned.get(agent, ()) if call.reply and call.begin < limit]
        if known:
            return int(known[-1])
        facts = self.manifest.agents.get(agent)
        return facts.id if facts is not None else 0

    def _describe(
        self, agent: str, life: Life, waiting: Sequence[Json], later: int, present: Mapping[str, Life]
    ) -> Member:
        mine = self.by_life[life.life]
        parents = [parent for call, parent in self.spawned.get(agent, ()) if call.begin < self.until]
        names = [agent]
        for call in mine:
            if call.call == "REGISTER" and _is_done(call) and self._is_before(call):
                names.insert(0, str(call.request.get("name")))
        flying = [call.begin for call in mine if call.begin < self.until and not self._is_before(call)]
        inside = {self._number(one) for one in present}
        kept = [call.begin for call in mine if self._is_before(call) and _is_about(call, inside)]
        return Member(
            life,
            mine,
            self._number(agent),
            names,
            parents[-1] if parents else None,
            frozenset(flying),
            frozenset(kept),
            waiting,
            later,
        )

    # -- Messages ------------------------------------------------------------------------------------------------------

    def _list_sent(self) -> list[Sent]:
        """What recorded agents have sent, in the order in which it arrived."""
        found = []
        for call in sorted(self.calls, key=lambda call: call.end):
            agent = self.agent_of.get(call.life)
            if agent is None or call.call not in SENDING or not _is_done(call):
                continue
            if "message" not in call.request:
                raise ReplayFailed(f"call {call.begin}, {call.call}: its message isn't in the recording as JSON")
            to = (call.reply or {}).get("delivered_to") if call.call == "SEND" else None
            if call.call == "SEND" and not isinstance(to, int):
                raise ReplayFailed(f"call {call.begin}, SEND: its reply doesn't name the receiver")
            body = _encode(call.request["message"])
            sender = self._number(agent, call.begin)
            found.append(Sent(call, sender, agent, to, body, call.end < self.until))
        return found

    def _list_received(self, agent: str, present: str) -> tuple[Mapping[int, Json], Mapping[int, Json]]:
        """By their ids: the messages that an agent had taken at the cut, and those that it took later.

        One that a life before had taken, and that came again after its end, isn't taken.
        """
        own, before, after = set[int](), dict[int, Json](), dict[int, Json]()
        calls = [call for life, one in self.agent_of.items() if one == agent for call in self.by_life[life]]
        for call in sorted(calls, key=lambda call: call.end):
            for message in list_messages(call):
                if self._is_before(call):
                    before[message["id"]] = message
                    own |= {message["id"]} if call.life == present else set()
                else:
                    after.setdefault(message["id"], message)
        later = {number: after[number] for number in sorted(after) if number not in own}
        return {number: one for number, one in before.items() if number not in later}, later

    def _match_taken(self, taken: Mapping[int, Json], sent: "Words") -> None:
        """Note for each message that was taken which SEND it is from; one under way was seen then."""
        for message in taken.values():
            found = sent.find(message)
            if found is None:
                continue
            if not found.done:
                found.done = True
                self.seen.add(found.call.begin)
            if found.to is not None:
                sent.remove(found)
                found.to = -1  # it is in no mailbox

    def _find_waiting(
        self, received: tuple[Mapping[int, Json], Mapping[int, Json]], mine: Sequence[Sent], casts: "Words"
    ) -> tuple[list[Json], int]:
        """The messages that wait at the cut, the oldest first, and how many of unrecorded senders came later."""
        waiting, later, at, left = list[Json](), 0, self._at, Words(mine)
        for message in received[1].values():
            if (found := left.find(message)) is not None:
                left.remove(found)
                is_there = found.done
            elif (found := casts.find(message)) is not None:
                is_there = found.done
            else:
                is_there = message["sent_at"] <= at
                later += not is_there
            if is_there:
                waiting.append(message)
        return [*waiting, *(one.as_message() for one in mine if one.done and one in left)], later


def _encode(message: object) -> str:
    """A message so that equal ones are the same."""
    return json.dumps(message, sort_keys=True)


def _is_done(call: RecordedCall) -> bool:
    return call.reply is not None and call.reply.get("success") is True


def _is_about(call: RecordedCall, inside: Collection[object]) -> bool:
    """Whether it has its effect on members of the fork alone."""
    reply = call.reply or {}
    return (call.call == "SEND" and reply.get("delivered_to") in inside) or (
        call.call == "SPAWN" and reply.get("id") in inside
    )


def _end(call: RecordedCall) -> float:
    return math.nextafter(call.at + call.milliseconds / 1000, math.inf)


def _sort(members: Sequence[Member]) -> Sequence[Member]:
    """Parents before their children."""
    left, found = [*members], list[Member]()
    while left:
        names = {one.life.agent for one in left}
        ready = [one for one in left if one.parent not in names] or left
        found += ready
        left = [one for one in left if one not in ready]
    return found
