"""Handler of GET_CONTENTS: the questions to the model and their answers, for the operator alone."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.table import Syscall
from agentos.llm.line import Line
from agentos.services.audit.redaction import redact
from agentos.threads import run_in_thread
from agentos_sdk import codec
from agentos_sdk.calls import contents as calls
from agentos_sdk.errors import PermissionDenied
from agentos_sdk.opcodes import Op

MAX_PAGE_BYTES = 256 << 10  # bytes of questions in one reply, which takes a thread 0.2 s to redact
FAILURE: Mapping[str, object] = {"questions": [], "count": 0}
# Fields with text that callers and models choose.
TEXTS = frozenset(("system", "text", "answer", "error", "arguments"))


def syscalls(line: Line) -> tuple[Syscall, ...]:
    @asynccontextmanager
    async def prepare(caller: Caller, request: calls.GetContents) -> AsyncIterator[Prepared]:
        async def act(call: Call) -> bytes:
            chosen = (request.agent_id, request.name, request.since_id, request.limit)
            found, more = line.contents.read(*chosen, MAX_PAGE_BYTES)
            return await run_in_thread(build_reply, found, more)

        about = request.name if request.name is not None else "" if request.agent_id is None else f"{request.agent_id}"
        is_operator = caller.kind == "operator"
        error = None if is_operator else PermissionDenied("only the operator may read questions and answers")
        yield Prepared((Right("get_contents"),), act, about=about, error=error)

    return (Syscall(Op.GET_CONTENTS, calls.GetContents, prepare=prepare, failure=FAILURE, audit="outcome"),)


def build_reply(found: Sequence[bytes], more: bool) -> bytes:
    """The encoded reply, with recognizable secrets redacted. Slow: for a thread."""
    questions = [redact_texts(codec.parse(each)) for each in found]
    return codec.encode({"success": True, "questions": questions, "count": len(questions), "more": more})


def redact_texts(value: Any, is_text: bool = False) -> Any:
    """A JSON value with recognizable secrets redacted in the fields of :data:`TEXTS`, and in all that is in them."""
    if isinstance(value, str):
        return redact(value) if is_text else value
    if isinstance(value, list):
        return [redact_texts(each, is_text) for each in value]
    if isinstance(value, dict):
        return {name: redact_texts(each, is_text or name in TEXTS) for name, each in value.items()}
    return value
