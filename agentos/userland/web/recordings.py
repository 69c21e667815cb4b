"""Recordings for pages: the list, a life as the entries of a waterfall, and the contents of one call.

Recordings may be of others: what a page gets is bounded, and large ones are left to the command line.
"""

from collections import deque
from pathlib import Path
from typing import Annotated, Any

import msgspec
from attrs import define, field

from agentos.recordings.format import NAME, SUFFIX, Life, Manifest, encode_line
from agentos.recordings.kept import Kept, scan
from agentos.recordings.reader import BadRecording, RecordedCall, Recording, read_recording
from agentos.threads import Limiter, run_in_thread
from agentos.userland.recordings.calls import describe_call, describe_contents, describe_end
from agentos.userland.recordings.questions import CantAsk, build_question
from agentos_sdk.errors import BadRequest, NotFound, PermissionDenied, TooLarge

from .links import Role

LISTS: tuple[Role, ...] = ("operator", "viewer", "viewer-with-contents")
CONTENTS: tuple[Role, ...] = ("operator", "viewer-with-contents")

MAX_LISTED = 300  # lives, the last ones
MAX_AGENTS = 100  # of a recording; the page forks no larger tree, as it shows the rights of each
MAX_BYTES = 64 << 20  # of the files of a recording that a page opens
MAX_CALLS = 200  # of a life, the last ones
MAX_LINE = 200  # characters of a call's object, or of a reason
MAX_TEXT = 8 << 10  # characters of one text
MAX_MESSAGES = 30  # of a question, the last ones

Json = dict[str, Any]
Name = Annotated[str, msgspec.Meta(max_length=120)]


class PageRecordings(msgspec.Struct, tag="recordings", forbid_unknown_fields=True):
    """List recordings; with ``name``, the calls of a life, or of its last one; with ``call``, that one's contents."""

    id: int
    name: Name | None = None
    life: Name | None = None
    call: int | None = None


class PageAskAgain(msgspec.Struct, tag="ask_again", forbid_unknown_fields=True):
    """Ask the question of a recorded ``call`` anew, of ``model``; the reply is that of THINK."""

    id: int
    name: Name
    call: int
    model: Name


@define(eq=False)
class Recordings:
    """The recordings in a directory. Files are read in a thread, for one page at a time."""

    place: Path
    _turn: Limiter = field(factory=lambda: Limiter(1))

    async def answer(self, role: Role, asked: PageRecordings) -> bytes:
        """The reply as JSON. Raises :class:`CallError`."""
        if role not in (LISTS if asked.name is None else CONTENTS):
            raise PermissionDenied(f"the link of {role.replace('-', ' ')} doesn't show this of recordings")
        return await run_in_thread(self._read, asked, limiter=self._turn)

    async def build(self, role: Role, asked: PageAskAgain) -> bytes:
        """The body of THINK. Raises :class:`CallError`."""
        if role != "operator":
            raise PermissionDenied(f"the link of {role.replace('-', ' ')} asks no model")
        return await run_in_thread(self._read, asked, limiter=self._turn)

    def _read(self, asked: PageRecordings | PageAskAgain) -> bytes:
        try:
            if isinstance(asked, PageAskAgain):
                call = find_call(self._open(asked.name), asked.call)
                if call.call != "THINK":
                    raise BadRequest(f"call: {asked.call} is no question, but {call.call:.80}")
                return encode_line(build_question(call.request)[0] | {"model": asked.model})
            return encode_line(self._find(asked))
        except CantAsk as error:
            raise BadRequest(f"call: {error}") from None
        except BadRecording as error:
            raise BadRequest(f"{error}"[: 2 * MAX_LINE]) from None
        except OSError as error:
            raise NotFound(f"the recordings can't be read: {error.strerror}") from None

    def _find(self, asked: PageRecordings) -> Json:
        if asked.name is None:
            return list_lives(scan(self.place) if self.place.exists() else [])
        recording = self._open(asked.name)
        if asked.call is None:
            return show_life(recording, asked.life)
        return show_call(recording, asked.call)

    def _open(self, name: str) -> Recording:
        path = self.place / f"{name}{SUFFIX}"
        if not NAME.fullmatch(name) or ".." in name or not path.exists():
            raise NotFound(f"name: there is no recording {name!r:.130}")
        found = read_recording(path)
        if (size := found.measure()) > MAX_BYTES:
            raise TooLarge(
                f"{name} has {size} bytes, and a page reads {MAX_BYTES >> 20} MiB: run `agentos recordings show {name}`"
            )
        return found


def list_lives(found: list[Kept]) -> Json:
    """The recorded lives, the newest first."""
    rows, count = [], 0
    for kept in reversed(found):
        lives = kept.manifest.lives
        count += max(1, len(lives))
        for life in reversed(lives[-MAX_LISTED:]):
            rows.append(_describe_life(kept.manifest, life) | {"size": kept.size})
        if not lives:
            rows.append(_describe_life(kept.manifest, None) | {"size": kept.size})
        if len(rows) >= MAX_LISTED:
            break
    return {"success": True, "lives": rows[:MAX_LISTED], "more": count > MAX_LISTED or len(rows) > MAX_LISTED}


def _describe_life(manifest: Manifest, given: Life | None) -> Json:
    """``given`` is None for a recording that has no life yet."""
    life = given or Life("", "", manifest.began, ended=manifest.ended)
    obstacle = manifest.find_obstacle(life) if given else "it has no life"
    end = life.exit or (manifest.reason or "goes on, or ended with the kernel") if given else describe_end(manifest)
    return {
        "recording": manifest.name,
        "life": life.life,
        "agent": life.agent[:MAX_LINE],
        "began": life.began,
        "ended": life.ended,
        "end": end[:MAX_LINE],
        "failed": life.failed,
        "replayable": obstacle is None,
        "why": (obstacle or "")[:MAX_LINE],
        "resumed": life.resumed and life.resumed[:MAX_LINE],
        "forked": life.forked and life.forked[:MAX_LINE],
    }


def show_life(recording: Recording, wanted: str | None) -> Json:
    """The calls of a life as entries of the audit log."""
    manifest = recording.manifest
    lives = [life for life in manifest.lives if wanted in (None, life.life)]
    if not lives:
        raise NotFound(f"life: {manifest.name} has no life{f' {wanted!r:.120}' if wanted is not None else ''}")
    life, count = lives[-1], 0
    agents = sorted({one.agent[:MAX_LINE] for one in manifest.lives})
    last = deque[Json](maxlen=MAX_CALLS)
    for call in recording.calls(life.life):
        count += 1
        last.append(describe_entry(call))
    return {
        "success": True,
        **_describe_life(manifest, life),
        "no_files": (life.no_files or "")[:MAX_LINE],
        "lives": [one.life for one in manifest.lives[-MAX_LISTED:]],
        "agents": agents if len(agents) <= MAX_AGENTS else [],
        "entries": sorted(last, key=lambda entry: entry["id"]),
        "count": count,
    }


def describe_entry(call: RecordedCall) -> Json:
    """As an entry of the audit log, bounded; of a question the object has what the log's would have."""
    entry = describe_call(call)
    if call.call == "THINK":
        reply = call.reply or {}
        usage, queued = reply.get("usage"), reply.get("queued_ms")
        said = [str(reply.get("model") or call.request.get("model", ""))]
        if isinstance(usage, dict):
            said.append(f"in {usage.get('input', 0)}, out {usage.get('output', 0)}")
        if isinstance(queued, int | float):
            said.append(f"queued {queued / 1000:.3f} s")
        entry["about"] = ", ".join(said)
    return {key: value[:MAX_LINE] if isinstance(value, str) else value for key, value in entry.items()}


def show_call(recording: Recording, number: int) -> Json:
    """What a call asked and was answered."""
    call = find_call(recording, number)
    if call.call == "THINK":
        found = describe_contents(call)
        messages = found["messages"]
        found["messages"] = messages[-MAX_MESSAGES:]
        found["left_out"] = max(0, len(messages) - MAX_MESSAGES)
        found["tool_calls"] = _as_text(found["tool_calls"]) if found["tool_calls"] else ""
        found["cut"] = any(len(str(found[key])) > MAX_TEXT for key in ("answer", "tool_calls"))
        found["model"], found["used"] = str(call.request.get("model", ""))[:MAX_LINE], _describe_use(call)
    else:
        found = {"request": _as_text(call.request), "reply": _as_text(call.reply)}
    return {"success": True, "call": call.call, "life": call.life, "contents": bound(found)}


def _describe_use(call: RecordedCall) -> Json:
    """What the side by side of answers has, as in a reply of THINK."""
    reply = call.reply or {}
    return {key: bound(reply.get(key)) for key in ("usage", "cost", "latency_ms")}


def find_call(recording: Recording, number: int) -> RecordedCall:
    """The call with this begin. Raises :class:`NotFound`."""
    found = next((call for call in recording.calls() if call.begin == number), None)
    if found is None:
        raise NotFound(f"call: {recording.manifest.name} has no call {number}")
    return found


def _as_text(value: object) -> str:
    return "" if value is None else encode_line(value).decode()


def bound(value: Any) -> Any:
    """With the beginnings of its long texts."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}… and {len(value) - MAX_TEXT} more characters"
    if isinstance(value, dict):
        return {str(key)[:MAX_LINE]: bound(each) for key, each in value.items()}
    return [bound(each) for each in value] if isinstance(value, list) else value
