"""What an export has of a recording: its manifest and its calls, changed in each text, or without texts."""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import attrs
from attrs import Factory, define, frozen
from msgspec import Struct
from msgspec.structs import replace

from agentos.recordings.format import EMPTY, LIFE, NAME, Differences, Json, Life, Manifest, encode_line
from agentos.recordings.reader import RecordedCall

from .redaction import MARK

Change = Callable[[bytes], bytes]
S = TypeVar("S", bound=Struct)
# Keys without which no reader finds its way. An agent's own keys of these names have no secret either.
OF_FORMAT = frozenset(
    {"messages", "role", "text", "calls", "answers", "id", "name", "arguments", "model", "system", "tools"}
    | {"success", "content", "code", "error", "base64", "encoding", "delta", "stream", "body", "usage", "tool_calls"}
)
MEASURED = frozenset({"success", "cost", "tokens", "usage", "queued_ms", "latency_ms", "duration_ms", "exit_code"})
USED = frozenset({"input", "output", "thinking", "cache_read", "cache_creation", "cache_creation_1h"})  # of `usage`
IN_CHUNKS = ("delta", "text", "body")  # the keys of chunks that are parts of one text
NO_START = "what it began with isn't in the file that it was given away in"
LEFT_OUT = {"files": "its files", "texts": "its texts and files"}


@frozen
class Contents:
    """``change`` is applied to all texts, also to those in base64; ``without`` has ``files`` or ``texts``, or both."""

    without: Collection[str]
    change: Change | None = None

    @property
    def has_files(self) -> bool:
        return not self.without


@define(eq=False)
class Rewriter:
    """Rewrites one recording. The names of lives stay names.

    ``only``: the first numbers of the calls that it takes, others may have come since; all without it. ``numbers`` are
    those of the calls that it has rewritten.
    """

    contents: Contents
    only: Collection[int] | None = None
    numbers: set[int] = Factory(set)
    _lives: dict[str, str] = Factory(dict)
    change_text: Callable[[str], str] = Factory(
        lambda self: lru_cache(maxsize=4096)(self._change_anew),  # a question repeats those before it
        takes_self=True,
    )

    def rewrite_manifest(self, manifest: Manifest) -> Manifest:
        """The manifest: it names no snapshot, and what was left out."""
        without = self.contents.without
        found = replace(manifest, automatic=False, mark="", lives=[*map(self._leave_out, manifest.lives)], lacks=[])
        if "texts" in without:
            agents = {name: replace(facts, command=None, python=None) for name, facts in manifest.agents.items()}
            found = replace(found, agents=agents, masks=[], reason=found.reason and "it ended by itself")
        if self.contents.change is not None:
            masks = [mask for mask in found.masks if self.change_text(mask) == mask]  # with a mark it may be none
            found = replace(found, masks=masks)
            lives = [replace(self._change_struct(life), life=self._name(life.life)) for life in found.lives]
            named = _as_name(self.change_text(found.name))
            found = replace(
                self._change_struct(found), lives=lives, name=named if NAME.fullmatch(named) else "redacted"
            )
        lacks = ["texts", "files"] if "texts" in without else [*without]
        return replace(found, lacks=[*lacks, *(["what was redacted"] if self.contents.change is not None else [])])

    def _leave_out(self, life: Life) -> Life:
        if self.contents.has_files:
            return replace(life) if life.start in (None, EMPTY) else replace(life, start=None, no_files=NO_START)
        what = "texts" if "texts" in self.contents.without else "files"
        why = f"{LEFT_OUT[what]} were left out when it was given away"
        found = replace(life, start=None, no_files=why, lost=why, file_bytes=0)
        if what == "texts":
            plain = life.exit is not None and re.fullmatch(r"exit status [0-9]{1,3}", life.exit)
            found = replace(found, exit=life.exit if plain else None, forked=None, resumed=None)
            found.replayable, found.reason = False, why
        return found

    def _change_struct(self, one: S) -> S:
        names = [name for name in one.__struct_fields__ if not isinstance(getattr(one, name), (int, float))]
        return replace(one, **{name: self._change_field(getattr(one, name)) for name in names})

    def _change_field(self, value: Any) -> Any:
        if isinstance(value, Struct):
            return self._change_struct(value)
        if isinstance(value, dict):
            return {self.change_text(key): self._change_field(one) for key, one in value.items()}
        return [*map(self._change_field, value)] if isinstance(value, list) else self._change_value(value)

    def _name(self, life: str) -> str:
        """The name of a life, which stays one of its own."""
        if self.contents.change is None:
            return life
        if (known := self._lives.get(life)) is None:
            known, number = _as_name(self.change_text(life)), 0
            while not LIFE.fullmatch(known) or known in self._lives.values():
                number += 1
                known = f"redacted/{number}"
            self._lives[life] = known
        return known

    def rewrite_lines(self, calls: Iterable[RecordedCall]) -> Iterator[bytes]:
        """The lines of the calls; a question is what follows an earlier one of its life."""
        differences = dict[str, Differences]()
        for call in calls:
            if self.only is not None and call.begin not in self.only:
                continue
            self.numbers.add(call.begin)
            found = self._rewrite(call)
            request = found.request
            if found.call == "THINK" and "messages" in request:
                request = differences.setdefault(found.life, Differences()).shorten(found.begin, request)
            yield encode_line(_write_call(found, request)) + b"\n"

    def _rewrite(self, call: RecordedCall) -> RecordedCall:
        if not self.contents.has_files:
            call = attrs.evolve(call, files=0)
        if "texts" in self.contents.without:
            call = leave_out_texts(call)
        if self.contents.change is None:
            return call
        reply = call.reply and {key: value for key, value in call.reply.items() if key != "logprobs"}  # text in pieces
        return attrs.evolve(
            call,
            life=self._name(call.life),
            request=self._change_value(call.request),
            reply=self._change_value(reply),
            chunks=tuple(map(self._change_value, join_chunks(call.chunks))),
            outcome=self._change_value(call.outcome),
        )

    def _change_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.change_text(value)
        if isinstance(value, dict):
            return self._change_object(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value if self.change_text(str(value)) == str(value) else 0
        return [*map(self._change_value, value)] if isinstance(value, list) else value

    def _change_object(self, value: Json) -> Json:
        in_base64 = find_base64(value)
        return {
            key if key in OF_FORMAT else self.change_text(key): self._change_base64(one)
            if key == in_base64
            else self._change_value(one)
            for key, one in value.items()
        }

    def _change_base64(self, value: str) -> str:
        data = b64decode(value)
        changed = self.change_bytes(data)
        # The letters themselves may be what is listed, as a key that is random bytes is written so.
        return self.change_text(value if changed == data else b64encode(changed).decode())

    def _change_anew(self, text: str) -> str:
        return self.change_bytes(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")

    def change_bytes(self, data: bytes) -> bytes:
        """Such as the content of a file."""
        return data if self.contents.change is None else self.contents.change(data)


def _as_name(text: str) -> str:
    """A text with marks as a part of a name."""
    return MARK.sub(r"redacted-\1", text)


def _write_call(call: RecordedCall, request: Json) -> Json:
    line: Json = {
        "n": [call.begin, call.end],
        "life": call.life,
        "call": call.call,
        "at": call.at,
        "ms": call.milliseconds,
        "request": request,
        "reply": call.reply,
    }
    beside = {"chunks": call.chunks, "outcome": call.outcome, "files": call.files}
    return line | {key: value for key, value in beside.items() if value}


def find_base64(value: Mapping[str, Any]) -> str | None:
    """The key whose value is bytes in base64."""
    keys = ("content", "body") if value.get("encoding") == "base64" else ("base64",)
    found = next((key for key in keys if isinstance(value.get(key), str)), None)
    try:
        return found if found is not None and b64decode(value[found], validate=True) else None
    except ValueError:
        return None


def join_chunks(chunks: Iterable[Json]) -> list[Json]:
    """Chunks with the parts of one text in the first of them: what is listed may stand in two of them."""
    found, first = list[Json](), dict[tuple[str, object], tuple[Json, list[bytes]]]()
    for chunk in chunks:
        key = next((key for key in IN_CHUNKS if isinstance(chunk.get(key), str)), None)
        if key is None or not chunk.keys() <= {key, "stream", "encoding"}:
            found.append(chunk)
            continue
        part = b64decode(chunk[key]) if find_base64(chunk) == key else chunk[key].encode(errors="surrogatepass")
        of = key, str(chunk.get("stream"))
        if of not in first:
            found.append(chunk := {**chunk})
            first[of] = chunk, []
        first[of][1].append(part)
    for (key, _), (chunk, parts) in first.items():
        chunk.pop("encoding", None)
        whole = b"".join(parts)
        try:
            chunk[key] = whole.decode(errors="surrogatepass")
        except UnicodeDecodeError:
            chunk |= {key: b64encode(whole).decode(), "encoding": "base64"}
    return found


def leave_out_texts(call: RecordedCall) -> RecordedCall:
    """The call with what is measured, and with the lengths of questions and answers."""
    reply, request = call.reply, Json()
    if call.call == "THINK" and isinstance(messages := call.request.get("messages"), list):
        request["messages"] = [*map(_measure_message, messages)]
    if reply is not None:
        found = {key: kept for key in MEASURED & reply.keys() if (kept := _keep_number(reply[key])) is not None}
        found |= {key: reply[key] for key in ("code", "model") if _is_word(reply.get(key))}
        if isinstance(content := reply.get("content"), str) and call.call == "THINK":
            found["content"] = _measure(content)
        reply = found
    outcome = call.outcome if call.outcome == "cancelled" else None
    return attrs.evolve(call, request=request, reply=reply, chunks=(), outcome=outcome)


def _measure_message(message: Any) -> Json:
    found = message if isinstance(message, dict) else {}
    role, text = found.get("role"), found.get("text")
    return {
        "role": role if role in ("user", "assistant", "system", "tool") else "",
        "text": _measure(text if isinstance(text, str) else ""),
    }


def _measure(text: str) -> str:
    return f"⟦{len(text)} characters⟧"


def _keep_number(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: value[key] for key in USED & value.keys() if isinstance(value[key], (int, float))}
    return value if isinstance(value, (int, float)) else None


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,99}", value) is not None
