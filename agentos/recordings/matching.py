"""Finds the recorded answer to a call that a replayed program makes, and says how the two calls differ."""

# A program that is run again asks nearly the same: tools print times and sizes, and a conversation repeats them in each
# question after that. Rules, in this order; among equal recorded calls the n-th call gets the n-th answer:
#   1. exact: the same request, without what isn't part of the question, such as timeouts.
#   2. masked: equal after the masks of cassettes and the user's. A question that has answers of the model must have the
#      same place, and its parts must be equal after masks, or have been reported as drift before.
#   3. place: model, tools, roles and the model's answers so far are the same in exactly one unused question, and there
#      is at least one answer. What differs is drift, and is reported once.
#   4. task, in a life that goes on after a crash: the first question of a conversation with tools, of which only what
#      comes before its task differs, as it tells of files that the crashed life has changed; and the recording has no
#      second one like it.
#   5. Else there is no answer. The nearest question serves only to say what differs.
# What must stay true: nothing is matched in silence, and never by order or likeness alone. docs/decisions/0108.

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

from attrs import Factory, define, field, frozen

from agentos.llm.cassettes.recorded_question import (
    Digests,
    MessageDigests,
    digest_masked,
    digest_question,
    find_masked,
    find_nearest,
    read_escapes,
    write_canonical,
)
from agentos_sdk.calls.request import request_types
from agentos_sdk.encoding import codec
from agentos_sdk.opcodes import Op

from .masks import Masks
from .reader import RecordedCall
from .words import Covered, are_times, compare_words, quote

ASIDE = frozenset({"stream", "timeout", "class", "max_tokens", "async", "request_id"})  # keys that no answer depends on
UNSEEN = frozenset({"NOOP", "HELLO", "CANCEL", "EXIT"})  # calls that say nothing, and aren't compared
MAX_DIFFERENCES = 50  # of one call
TASK = "THINK, by its task"  # among the digests by calls
CONTEXTS = ("session_context", "system-reminder")  # what Gemini CLI and Claude Code call it in the task's message

Json = dict[str, Any]
How = Literal["exact", "masked", "drifted"]
Kind = Literal["model", "prompt", "tool output", "code", "time", "call", "file", "answer"]


@frozen
class Difference:
    """Words that stand in one of two requests only. ``kind`` says what has changed, ``where`` its place for people."""

    kind: Kind
    where: str
    recorded: str
    now: str


@frozen
class Match:
    """The recorded call that answers. ``masks`` are the names of those that made it equal."""

    call: RecordedCall
    how: How
    masks: Sequence[str] = ()
    drift: Sequence[Difference] = ()


@frozen
class Miss:
    """No recorded call answers. ``why`` is one sentence; ``nearest`` is the one that ``differences`` compare with."""

    why: str
    nearest: RecordedCall | None = None
    differences: Sequence[Difference] = ()


@define(eq=False)
class _Candidate:
    call: RecordedCall
    question: Json  # its request as it is compared
    digests: Digests
    used: bool = False


@define(eq=False)
class Matcher:
    """The recorded calls of one life. Not for several threads at once. ``masks`` are the user's.

    ``goes_on``: the program runs in the files that the recorded life has left, and may tell of them as it begins.
    """

    masks: Masks = Masks()
    goes_on: bool = False
    _by_call: dict[str, list[_Candidate]] = field(factory=lambda: defaultdict(list))
    _by_digest: dict[tuple[str, str], list[_Candidate]] = field(factory=lambda: defaultdict(list))
    _passed: defaultdict[tuple[str, str], int] = field(factory=lambda: defaultdict(int))  # how many are used, at least
    _asked: defaultdict[tuple[str, str], int] = field(factory=lambda: defaultdict(int))
    _known: MessageDigests = Factory(lambda self: MessageDigests(self.masks.apply), takes_self=True)
    _reported: set[tuple[str, str]] = field(factory=set)  # masked digests of parts that differed, as pairs

    def add(self, call: RecordedCall) -> None:
        """Have this call answer one that is like it."""
        request = read_compared(call.call, call.request)
        candidate = _Candidate(call, request, self._digest(call.call, request, self._known))
        self._by_call[call.call].append(candidate)
        for digest in {candidate.digests.exact, candidate.digests.masked, candidate.digests.place} - {""}:
            self._by_digest[call.call, digest].append(candidate)
        if task := self._digest_task(call.call, request, candidate.digests):
            self._by_digest[TASK, task].append(candidate)

    def unused(self) -> Sequence[RecordedCall]:
        """The recorded calls that weren't made again, in the order of their begins."""
        left = [one.call for candidates in self._by_call.values() for one in candidates if not one.used]
        return sorted(left, key=lambda call: call.begin)

    def find(self, call: str, request: Json) -> Match | Miss:
        """The recorded call that answers this one; it answers no other. Takes 30 ms for a question of 1 MiB."""
        request = read_compared(call, request)
        digests = self._digest(call, request, MessageDigests(self.masks.apply))
        self._asked[call, digests.masked] += 1
        if (equal := self._first(call, digests.exact)) is not None:
            return _use(equal, "exact")
        if not digests.place:
            equal = self._first(call, digests.masked)
            if equal is not None:
                return _use(equal, "masked", list_masks(equal.question, request, self.masks))
            task = self._digest_task(call, request, digests)
            alike = self._by_digest[TASK, task] if task else []
            if len(alike) == 1 and not alike[0].used:
                return self._use_drifted(alike[0], request)
            return self._explain(call, request, digests)
        there = [one for one in self._by_digest[call, digests.place] if not one.used]
        for one in there:
            if not self._new_parts(one.question, request):
                return _use(one, "masked", list_masks(one.question, request, self.masks))
        if len(there) != 1:
            return self._explain(call, request, digests)
        return self._use_drifted(there[0], request)

    def _use_drifted(self, candidate: _Candidate, request: Json) -> Match:
        drift, covered = list[Difference](), Covered()
        for part, recorded, now in self._new_parts(candidate.question, request):
            self._reported.add((self._digest_part(recorded), self._digest_part(now)))
            drift += self._list_differences(part, recorded, now, covered)
        return _use(candidate, "drifted", [*covered], drift[:MAX_DIFFERENCES])

    def _list_differences(self, part: str, recorded: object, now: object, covered: Covered) -> list[Difference]:
        """Those that no mask covers, of parts that differ also after masks."""
        covered |= dict.fromkeys(self.masks.list_used(recorded, now))
        return list_differences(part, self.masks.apply(recorded), self.masks.apply(now), covered=covered)

    def _first(self, call: str, digest: str) -> _Candidate | None:
        there = self._by_digest[call, digest]
        unused = range(self._passed[call, digest], len(there))
        at = self._passed[call, digest] = next((at for at in unused if not there[at].used), len(there))
        return there[at] if at < len(there) else None

    def _new_parts(self, recorded: Json, now: Json) -> list[tuple[str, object, object]]:
        """The parts that differ after masks, and haven't been reported."""
        found = []
        for part, old, new in split_parts(recorded, now):
            if old != new:
                pair = self._digest_part(old), self._digest_part(new)
                if pair[0] != pair[1] and pair not in self._reported:
                    found.append((part, old, new))
        return found

    def _digest(self, call: str, request: Json, known: MessageDigests) -> Digests:
        """The digests by which a request is found; only a question with answers of the model has a place."""
        if call == "THINK":
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # one that was refused may have any form
                return digest_question(request, known)
        return Digests(write_canonical(request), self._digest_part(request), "")

    def _digest_task(self, call: str, request: Json, digests: Digests) -> str:
        """Of a first question with tools, without what comes before its last message but for the roles."""
        messages = request.get("messages")
        is_first = self.goes_on and call == Op.THINK.name and not digests.place
        if not is_first or not request.get("tools") or not isinstance(messages, list) or not messages:
            return ""
        roles, task = [one.get("role") if isinstance(one, dict) else None for one in messages[:-1]], messages[-1]
        if isinstance(task, dict) and isinstance(task.get("text"), str):
            task = {**task, "text": strip_contexts(task["text"])}
        return self._digest_part({**request, "system": None, "messages": [*roles, task]})

    def _digest_part(self, part: object) -> str:
        return digest_masked(write_canonical(self.masks.apply(part)))

    def _explain(self, call: str, request: Json, digests: Digests) -> Miss:
        candidates = self._by_call.get(call, [])
        asked, recorded = self._asked[call, digests.masked], self._by_digest.get((call, digests.masked), [])
        if recorded:
            return Miss(f"asked {asked} times, recorded {len(recorded)}", recorded[-1].call)
        if not candidates:
            return Miss(f"the recording has no {call}")
        same = self._by_digest.get((call, digests.place), []) if digests.place else []
        if left := sum(not one.used for one in same):
            why = f"{left} recorded questions stand at this place of the conversation, and none is equal"
        else:
            why = "all recorded questions at this place are used" if same else "no recorded call is equal"
        unused = [one for one in candidates if not one.used] or candidates
        nearest = find_nearest(request, digests, unused) if call == "THINK" else _find_alike(request, unused)
        assert nearest is not None, "there are candidates"
        found = [
            difference
            for part, old, new in split_parts(nearest.question, request)
            if old != new and self._digest_part(old) != self._digest_part(new)
            for difference in self._list_differences(part, old, new, Covered())
        ]
        return Miss(why, nearest.call, found[:MAX_DIFFERENCES])


def _use(candidate: _Candidate, how: How, masks: Sequence[str] = (), drift: Sequence[Difference] = ()) -> Match:
    candidate.used = True
    return Match(candidate.call, how, masks, drift)


def strip_contexts(text: str) -> str:
    """A task's message without the elements of XML in which a coding agent tells of the files."""
    for name in CONTEXTS:
        first, *parts = text.split(f"<{name}>")
        for part in parts:
            inside, end, after = part.partition(f"</{name}>")
            first += after if end else inside
        text = first
    return text


def read_compared(call: str, request: Json) -> Json:
    """The request as it is compared: what it lacks is the default, as in one that the kernel has read."""
    if call in Op.__members__ and call != Op.THINK.name and (kind := request_types().get(Op[call])) is not None:
        with suppress(ValueError):  # the body of one that was refused may be anything
            request = json.loads(codec.encode(codec.decode(kind, request)))
    return {key: value for key, value in request.items() if key not in ASIDE and value is not None}


def split_parts(recorded: Json, now: Json) -> Iterator[tuple[str, Any, Any]]:
    """The parts of two requests side by side: its keys, and each message."""
    for key in dict.fromkeys([*recorded, *now]):
        mine, other = recorded.get(key), now.get(key)
        if key == "messages" and isinstance(mine, list) and isinstance(other, list):
            for number in range(max(len(mine), len(other))):
                pair = [each[number] if number < len(each) else None for each in (mine, other)]
                role = next((each.get("role", "") for each in pair if isinstance(each, dict)), "")
                yield f"message {number + 1} ({role})", pair[0], pair[1]
        else:
            yield key, mine, other


def list_masks(recorded: Json, now: Json, masks: Masks) -> Sequence[str]:
    """The names of the masks that cover what differs; of the user's the patterns."""
    found = dict.fromkeys(masks.list_used(recorded, now))
    recorded, now = masks.apply(recorded), masks.apply(now)
    for _, old, new in split_parts(recorded, now):
        if old != new:
            pairs = zip(*(find_masked(write_canonical(each)) for each in (old, new)), strict=False)
            found |= {str(one.lastgroup): None for one, other in pairs if one.group() != other.group()}
    return list(found)


def name_kind(part: str) -> Kind:
    """What a changed part of a request is: all that a program's own text decides is its code."""
    if part == "model":
        return "model"
    if part in ("system", "prompt", "input") or part.endswith(("(user)", "(system)")):
        return "prompt"
    if part.endswith("(tool)"):
        return "tool output"
    return "code" if part.endswith("(assistant)") or part in _OF_QUESTIONS else "call"


_OF_QUESTIONS = frozenset({"tools", "tool_choice", "temperature", "thinking_level", "stop", "response_schema"})


def list_differences(
    part: str, recorded: object, now: object, kind: Kind | None = None, covered: Covered | None = None
) -> list[Difference]:
    """The words that differ between two values of a part, of this kind or of that which the part has.

    Where they are times on both sides, their kind is ``time``. ``covered`` is that of :func:`compare_words`.
    """
    kind, texts = kind or name_kind(part), list[str]()
    for value in (recorded, now):
        is_text = isinstance(value, dict) and value.keys() <= {"role", "text", "answers"}
        text = value.get("text", "") if is_text and isinstance(value, dict) else value
        if not isinstance(text, str):
            text = read_escapes(json.dumps(text, indent=1, sort_keys=True, ensure_ascii=False))
        texts.append(text)
    pairs = compare_words(texts[0], texts[1], covered)
    found = [Difference("time" if are_times(*pair) else kind, part, *pair) for pair in pairs]
    if not found and recorded != now:
        return [Difference(kind, part, *quote(write_canonical(recorded), write_canonical(now)))]
    return found


def _find_alike(request: Json, candidates: Sequence[_Candidate]) -> _Candidate:
    """The candidate with most keys in common; of several the first."""
    return max(candidates, key=lambda one: sum(one.question.get(key) == value for key, value in request.items()))
