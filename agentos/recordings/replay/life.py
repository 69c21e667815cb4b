"""One recorded life that an agent lives again: what answers its calls, and what is found out by that."""

# The life is replayed alone against its own recording: what it would do to others is compared and not done, what it
# would be told comes from the recording. So no partner runs, nothing leaves, and a vendor isn't asked. Rights that it
# gave up are given up again.
# What must stay true: a call without an answer ends the replay, for what follows means nothing; rights are required as
# ever, so a recording gives an agent nothing that it may not have today; approvals aren't asked for anew.
# A fork goes live at the first call that isn't to be answered from the recording, and never before: a call that has no
# answer ends it as long as others are to come, unless an answer was edited. docs/decisions/0108. One that resumes after
# a crash goes live when all that has an answer was made again. docs/decisions/0112.
# A stream that is open there, and in which the program has made other calls, is answered from the recording: what it
# read of it may be in those calls. Held back until they are made, it would wait for ever.

import json
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import trio
from attrs import define, field

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Question
from agentos.kernel.syscall import Syscall
from agentos.private_files import display_path
from agentos.recordings.format import Json, Life, encode_line, write_body
from agentos.recordings.masks import Masks
from agentos.recordings.matching import UNSEEN, Difference, Match, Matcher, Miss, list_differences
from agentos.recordings.reader import RecordedCall, Recording
from agentos.recordings.recorder.lines import describe_request
from agentos.threads import Limiter, check_cancelled, run_in_thread
from agentos_sdk.encoding import codec
from agentos_sdk.errors import CallError, Unavailable, from_reply
from agentos_sdk.opcodes import Op

from .network import count_unsent
from .progress import Progress, ReplayFailed, describe_differences
from .sealed import open_calls, read_reply, seal
from .switch import Switch, list_spawned
from .tree.names import TreeNames

MAX_BYTES = 256 << 20  # of the lines of a recording that is replayed
MAX_WEIGHT = 4 << 30  # of the calls of a life that is replayed: at most 1 GB of memory, and two minutes to compare them
MAX_DRIFT = 500  # differences that are kept
HELD = 10.0  # seconds without a further answer after which a call that has none isn't that of a thread ahead
MAX_NAMED = 5  # calls that weren't made, in one message
OF_CALLER = frozenset({Op.SET_PERMS, Op.SUBSCRIBE, Op.UNSUBSCRIBE})  # they change what the caller itself may and gets
UNREAD = frozenset({"bad_request", "too_large", "unknown_call"})  # codes of calls that are refused unread
WITHOUT_RIGHTS = frozenset({"RECV", "ACK", "REGISTER", "ASYNC_POLL"})  # they are, too, where rules refuse them
APPROVED = Decision("allow", "the recording", "a person had decided in the recorded life")

PutFiles = Callable[[Call, RecordedCall], Awaitable[Sequence[Difference]]]
"""Makes in an agent's files what a recorded command has changed; returns what could not be made."""
Do = Callable[[Any], Any] | None


def load_calls(recording: Recording, life: Life) -> Sequence[RecordedCall]:
    """The calls of a life in the order of their begins. Reads files.

    Raises :class:`ReplayFailed`, ``BadRecording``, ``OSError``.
    """
    if not life.replayable:
        raise ReplayFailed(f"{life.life} can't be replayed: {life.reason}")
    check_size(recording)
    found, weight = list[RecordedCall](), 0
    for call in recording.calls(life.life):
        check_cancelled()
        found.append(call)
        weight += call.weight
        if weight > MAX_WEIGHT:
            raise ReplayFailed(
                f"{display_path(recording.path)}: {life.life} has too many calls, or too long ones, to be replayed: "
                f"after {len(found):,} of them, each whole, more than {MAX_WEIGHT >> 30} GiB"
            )
    return sorted(found, key=lambda call: call.begin)


def check_size(recording: Recording) -> None:
    """Raise :class:`ReplayFailed` for a recording that is too large to be replayed, and ``OSError``."""
    if (size := recording.measure()) > MAX_BYTES:
        raise ReplayFailed(
            f"{display_path(recording.path)}: {size} bytes; at most {MAX_BYTES >> 20} MiB can be replayed"
        )


@define(eq=False)
class LifeReplay:
    """Answers the calls of the agent that lives it again. ``over`` is set when nothing more can be compared."""

    id: int
    name: str
    life: str
    mark_secrets: Callable[[bytes], bytes]
    recorded_end: str | None = None
    switch: Switch = field(factory=Switch)
    give_rights: Callable[[Caller, "LifeReplay", bool], None] = field(default=lambda caller, life, whole: None)
    put_files: PutFiles | None = None
    deliver: Callable[[Caller], None] | None = None  # what waited in its mailbox; once, before the first live call
    names: TreeNames | None = None  # of a fork's members, where it is one of several
    gate: trio.Event | None = None  # no call is done live before it
    is_foreign: bool = False  # another kernel has made the recording: ids in it mean nothing in this one
    repeats_files: bool = True  # WRITE and READ are done again in its files, which are those that it began with
    live: trio.Event = field(factory=trio.Event)  # calls are done that the recording doesn't answer
    chosen: WeakKeyDictionary[Call, RecordedCall | None] = field(factory=WeakKeyDictionary)  # what answers; None: live
    progress: Progress = field(factory=Progress)
    over: trio.Event = field(factory=trio.Event)
    spawned: Collection[int | str] = ()  # ids and names of agents that it had spawned
    masks: Masks = Masks()
    hash_seed: int | None = None
    _matcher: Matcher = field(init=False)
    _turn: Limiter = field(factory=lambda: Limiter(1))
    answered: trio.Event = field(factory=trio.Event)  # all recorded calls were made again
    _last: int = 0  # the number of the last recorded call that has to be made
    _last_begin: int = 0  # of the calls with a reply up to the one at which it goes live
    _last_end: int = 0
    _overlaps: bool = False  # the crashed life had several calls under way at once
    left: int = 0  # recorded calls that weren't made yet
    _edited: bool = False  # an edited answer was given
    _waiting: int = 0  # calls that got no reply in the recording either

    def __attrs_post_init__(self) -> None:
        self._matcher = Matcher(self.masks, self.switch.resumes)

    def load(self, calls: Sequence[RecordedCall]) -> None:
        """Have these calls answer. Slow: for a thread."""
        if self.switch.resumes:
            self._overlaps = any(later.begin < call.end for call, later in pairwise(calls))
        until = self.switch.until if self.switch.until is not None else math.inf
        replied = [call for call in calls if call.reply and call.begin <= until]
        self._last_end = max((call.end for call in replied), default=0)
        self._last_begin = max((call.begin for call in replied if self._has_to_come(call)), default=0)
        self.spawned = list_spawned(calls)
        for call in calls:
            if self.switch.is_before(call):
                self.progress.total += 1
                if self._is_needed(call):
                    self.left += 1
                    self._last = max(self._last, call.begin)
                else:
                    self.progress.skipped += 1
            if call.call not in UNSEEN:
                self._matcher.add(call)
        self._note_answered()

    def _is_needed(self, call: RecordedCall) -> bool:
        in_flight = self.switch.live and call.reply is None and not self._was_read(call)
        return self._has_to_come(call) and not in_flight

    def _has_to_come(self, call: RecordedCall) -> bool:
        return self.switch.is_before(call) and call.call not in UNSEEN and not is_optional(call)

    def _was_left(self, call: RecordedCall) -> bool:
        """Whether a stream without an end was withdrawn before the program went on."""
        return call.end < self._last_end

    def _was_read(self, call: RecordedCall) -> bool:
        """Whether the program read a part of a stream without an end, and made other calls then."""
        return bool(call.chunks) and (self._was_left(call) or call.begin < self._last_begin)

    def seal(self, calls: Iterable[Syscall]) -> Sequence[Syscall]:
        """The table's calls, answered from here."""
        return seal(calls, self)

    def open(self, calls: Iterable[Syscall]) -> Sequence[Syscall]:
        """The table's calls as they are done live."""
        return open_calls(calls, self)

    @property
    def keeps_name(self) -> bool:
        return self.names is not None

    def open_below(self, calls: Iterable[Syscall]) -> Sequence[Syscall] | None:
        """Those of an agent that it spawns live; None if they are as any other agent's."""
        return self.names.open(calls) if self.names is not None else None

    async def answer(self, op: Op, call: Call, request: Any, do: Do, found: RecordedCall | None = None) -> object:
        """The recorded reply to a call, or the error. ``do`` does what is done in the agent's own files.

        ``found`` is what answers, if it is known already.
        """
        recorded = found or await self.find(op, request)
        assert recorded is not None, "live calls aren't sealed"
        if recorded.reply is None:
            await self._stream(call, recorded)  # what it was told before it withdrew the call
            if self.switch.live and not self._was_left(recorded):
                await self.answered.wait()
                raise Unavailable("the recorded answer breaks off here: ask again")
            self._waiting += 1
            try:
                self._look()
                await trio.sleep_forever()
            finally:
                self._waiting -= 1
        assert recorded.reply is not None, "a call without a reply waits"
        if self.repeats_files and do is not None and op in (Op.READ, Op.WRITE):
            await self._compare_file(op, call, do, recorded)
        if op in OF_CALLER and do is not None and recorded.reply.get("success") is True:
            await self._repeat(op, call, request, do, recorded)
        if self.put_files is not None and recorded.files:
            self._add_drift(await self.put_files(call, recorded), recorded)
        await self._stream(call, recorded)
        self._look()
        if recorded.reply.get("success") is False:
            raise from_reply(recorded.reply)
        return read_reply(op, recorded.reply)

    async def _stream(self, call: Call, recorded: RecordedCall) -> None:
        for chunk in recorded.chunks:
            await call.send(write_body(chunk))

    async def compare_refused(self, op: Op, request: Any, why: CallError, found: RecordedCall | None = None) -> None:
        """A call that today's rights refuse: the recorded one must have been refused as well."""
        recorded = found or await self.find(op, request)
        assert recorded is not None, "live calls aren't sealed"
        reply = recorded.reply
        if reply is None or reply.get("code") != why.code:
            self.progress.replayed, self.left = self.progress.replayed - 1, self.left + 1  # it isn't made again
            await self._diverge(op, f"it was allowed, and is refused now: {why}", (), recorded)

    async def _diverge(
        self, op: Op, why: str, differences: Sequence[Difference], recorded: RecordedCall | None = None
    ) -> None:
        """End the agent here: what follows means nothing. ``recorded`` is the call that it should have been."""
        if self.progress.verdict is None:
            self.progress.verdict = "diverged" if self.left else "exhausted"
            called = f"{self.life}, call {self.progress.replayed + 1}, {op.name}"
            said = [f"{called}: {why}", *describe_differences(differences)]
            self.progress.divergence = "\n".join(said)
            if recorded is not None:
                self.progress.note(recorded.begin, "diverged", differences)
        self.over.set()
        await trio.sleep_forever()

    async def find(self, op: Op, request: Any) -> RecordedCall | None:
        """The recorded call that answers; None if the call is to be done live. A call without either waits."""
        if self.live.is_set() and not self.left:
            return None
        found: Match | Miss = await run_in_thread(self._match, op.name, request, limiter=self._turn)
        if isinstance(found, Miss):
            is_over = (self.switch.until is not None or self.switch.live) and not self.left
            if self._overlaps and not is_over:
                is_over = await self._hold()
            if not (is_over or self.live.is_set() or (self._edited and self.switch.live)):
                is_next = found.nearest is not None and found.nearest.begin not in self.progress.made
                await self._diverge(op, found.why, found.differences, found.nearest if is_next else None)
            await self._pass()
            return None
        if not self.switch.is_before(found.call):
            await self._pass()
            return None
        if self.switch.live and found.call.reply is None and not self._was_read(found.call):
            if self.switch.until is None:  # it was under way at the crash, or its caller gave it up, as it will again
                if found.call.begin > self._last and not await self._hold():
                    await self._diverge(op, "the recorded life made other calls before", ())
                await self.answered.wait()
                await self._pass()
            else:
                await self.live.wait()
            return None
        self.progress.replayed += 1
        self._edited |= found.call.begin in self.switch.edited
        if is_optional(found.call):
            self.progress.skipped -= 1
        else:
            self.left -= 1
            self._note_answered()
        self.progress.note(found.call.begin, found.how)
        self._add_drift(found.drift, found.call)
        for mask in found.masks:
            self.progress.masks[mask] = self.progress.masks.get(mask, 0) + 1
        return found.call

    async def _hold(self) -> bool:
        """Wait until all is answered: another thread of the program may be behind. False if none goes on."""
        left = None
        while left != self.left and not self.answered.is_set():
            left = self.left
            with trio.move_on_after(HELD):
                await self.answered.wait()
        return self.answered.is_set()

    def _note_answered(self) -> None:
        if not self.left:
            self.answered.set()

    async def _pass(self) -> None:
        """A call that the recording isn't to answer: go live, or end there."""
        if not self.switch.live:
            self.over.set()
            await trio.sleep_forever()
        if self.gate is not None:
            await self.gate.wait()
        if not self.live.is_set():
            self.live.set()
            self.progress.notes.append(f"live: what followed {self.progress.replayed} recorded answers was done")

    def go_on(self, caller: Caller) -> None:
        """A call of ``caller`` is done live, with its own rights from now on."""
        self.give_rights(caller, self, not self.left)
        deliver, self.deliver = self.deliver, None
        if deliver is not None:
            deliver(caller)

    def _add_drift(self, found: Sequence[Difference], recorded: RecordedCall | None = None) -> None:
        room = MAX_DRIFT - len(self.progress.drift)
        self.progress.drift += found[:room]
        if recorded is not None and found:
            self.progress.note(recorded.begin, "drifted", found[:room])
        if len(found) > room > 0:
            self.progress.notes.append(f"only the first {MAX_DRIFT} differences are listed")

    def _match(self, name: str, request: Any) -> Match | Miss:
        return self._matcher.find(name, json.loads(self.mark_secrets(encode_line(describe_request(request)))))

    async def _compare_file(self, op: Op, call: Call, do: Callable[[Any], Any], recorded: RecordedCall) -> None:
        """Do a READ or WRITE in the agent's own files; what differs is drift, the recorded reply counts."""
        reply = recorded.reply or {}
        if op is Op.WRITE and reply.get("success") is False:
            return
        try:
            done = await do(call)
            body = done if isinstance(done, bytes) else codec.encode(done)
        except CallError as error:
            body = codec.encode({"success": False, "code": error.code})
        self._add_drift(await run_in_thread(compare_replies, op.name, reply, body), recorded)

    async def _repeat(self, op: Op, call: Call, request: Any, do: Callable[[Any], Any], recorded: RecordedCall) -> None:
        """Give up rights and subscribe to events as it did: told that it has, it relies on it once it is live."""
        if getattr(request, "stream", False) or getattr(request, "agent_id", None) not in (
            None,
            self.id,
            call.caller.id,
        ):
            return  # a stream's events are in the recording; an agent that it had spawned isn't there
        try:
            await do(call)
        except CallError as error:
            await self.compare_refused(op, request, error, recorded)

    def _look(self) -> None:
        """End the agent if all was asked, and it waits for what the recorded one waited for at its end."""
        if not self.left and self._waiting and not self.switch.live:
            self.over.set()

    def judge(self, end: str | None) -> None:
        """Set the verdict, once the agent has ended; ``end`` says how, if it did so by itself."""
        progress = self.progress
        if progress.verdict is not None:
            return
        left = [call for call in self._matcher.unused() if call.reply is not None and self._is_needed(call)]
        if self.switch.live and not self.live.is_set():
            progress.notes.append("it ended before anything was live")
        if self.switch.until is None and end is not None and self.recorded_end is not None and end != self.recorded_end:
            self._add_drift([Difference("code", "its end", self.recorded_end, end)])
        if left:
            progress.verdict = "unfinished"
            named = ", ".join(f"{call.call} (call {call.begin})" for call in left[:MAX_NAMED])
            more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
            progress.divergence = f"{self.life} ended, and these recorded calls weren't made again: {named}{more}"
        else:
            progress.verdict = "drifted" if progress.drift else "identical"

    # -- What the kernel asks about the agent ----------------------------------------------------------------------

    def note_connection(self) -> None:
        self.progress.sealed += 1

    def count_unsent(self, pid: int) -> AbstractContextManager[None]:
        return count_unsent(pid, self.progress)

    def take(self, caller: Caller, question: Question) -> Decision:
        """What a person was asked then, and decided, is in the recorded reply."""
        return APPROVED

    def answered_until(self, caller: Caller, question: Question) -> float | None:
        return None

    async def wait(
        self, caller: Caller, question: Question, timeout: float | None = None, former: Question | None = None
    ) -> None:
        raise Unavailable("no person is asked while a recorded life is lived again")


def compare_replies(call: str, recorded: Json, body: bytes) -> Sequence[Difference]:
    """How the reply of a call in the agent's own files differs from the recorded one. Slow for a large one."""
    now: Json = json.loads(body)
    for key in ("success", "content", "bytes_written"):
        if now.get(key, "") != recorded.get(key, ""):
            return list_differences(f"{call} {key}", recorded.get(key, ""), now.get(key, ""), "file")
    return []


def is_optional(call: RecordedCall) -> bool:
    """Whether it isn't known if the call comes to be compared: it had no effect."""
    code = str(call.reply.get("code")) if call.reply is not None else None
    return code in UNREAD or (code == "permission_denied" and call.call in WITHOUT_RIGHTS)
