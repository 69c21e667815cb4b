"""Handler of GET_CONTENTS: the questions to the model and their answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.llm.line import Line
from agentos.services.audit.redaction import is_secret_name, redact
from agentos.services.audit.redaction_values import REDACTED
from agentos.threads import run_in_thread
from agentos_sdk.calls.operator import contents as calls
from agentos_sdk.encoding import codec
from agentos_sdk.opcodes import Op

MAX_PAGE_BYTES = 256 << 10  # bytes of questions in one reply, which takes a thread 0.2 s to redact
FAILURE: Mapping[str, object] = {"questions": [], "count": 0}
TEXTS = frozenset(("system", "text", "answer", "error"))  # fields with text that callers and models choose


def syscalls(line: Line) -> tuple[Syscall, ...]:
    async def prepare(caller: Caller, request: calls.GetContents) -> Prepared:
        async def act(call: Call) -> bytes:
            chosen = (request.agent_id, request.name, request.since_id, request.limit)
            found, more = line.contents.read(*chosen, MAX_PAGE_BYTES)
            return await run_in_thread(build_reply, found, more)

        about = request.name if request.name is not None else "" if request.agent_id is None else f"{request.agent_id}"
        return Prepared((Right("get_contents"),), act, about=about)

    return (Syscall(Op.GET_CONTENTS, calls.GetContents, prepare=prepare, failure=FAILURE, audit="outcome"),)


def build_reply(found: Sequence[bytes], more: bool) -> bytes:
    """The encoded reply, with recognizable secrets redacted. Slow: for a thread."""
    questions = [redact_texts(codec.parse(each)) for each in found]
    return codec.encode({"success": True, "questions": questions, "count": len(questions), "more": more})


def redact_texts(value: Any) -> Any:
    """A JSON value with recognizable secrets redacted in the fields of :data:`TEXTS` and in tool calls."""
    if isinstance(value, list):
        return [redact_texts(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: redact_texts(each) for name, each in value.items()}
    for name in TEXTS & found.keys():
        found[name] = redact_value(found[name])
    if "tool_calls" in found:
        found["tool_calls"] = redact_value(found["tool_calls"])
    return found


def redact_value(value: Any, is_secret: bool = False) -> Any:
    """A JSON value with recognizable secrets redacted in all its texts, names too.

    A name such as ``password`` makes a secret of each text and number in its value: then ``is_secret``.
    """
    if isinstance(value, dict):
        return {redact(name): redact_value(each, is_secret or is_secret_name(name)) for name, each in value.items()}
    if isinstance(value, list):
        return [redact_value(each, is_secret) for each in value]
    if value is None or isinstance(value, bool) or value == "":
        return value
    if is_secret:
        return REDACTED
    return redact(value) if isinstance(value, str) else value
