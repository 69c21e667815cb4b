"""Requests and replies of a fake kernel, checked against the types of the calls (``agentos_sdk.calls``)."""

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs

from agentos_sdk.calls.request import request_types
from agentos_sdk.clients.suggestions import suggest_name
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import wire_name
from agentos_sdk.errors import BadRequest, CallError
from agentos_sdk.opcodes import Op

RAW = frozenset({Op.NOOP, Op.EXIT})  # calls whose bodies aren't JSON
# What a failed reply has besides success, error and code, so that clients find a field of the call's reply there.
FAILURES: Mapping[int, Mapping[str, object]] = {
    Op.THINK: {"content": "", "tokens": 0},
    Op.READ: {"content": "", "size": 0},
    Op.WRITE: {"bytes_written": 0},
    Op.EXEC: {"stdout": "", "stderr": "", "exit_code": -1},
    Op.KILL: {"killed": False},
    Op.PAUSE: {"paused": False},
    Op.RESUME: {"resumed": False},
    Op.USAGE: {"usage": []},
    Op.RECV: {"messages": [], "count": 0},
    Op.ACK: {"acked": 0},
    Op.MAIL: {"messages": [], "count": 0},
    Op.KEYS: {"keys": [], "count": 0},
    Op.POLL_EVENTS: {"events": [], "count": 0, "missed": 0},
    Op.GET_AUDIT_LOG: {"entries": [], "count": 0},
    Op.GET_CONTENTS: {"questions": [], "count": 0},
    Op.ASYNC_POLL: {"results": [], "count": 0},
}


def find_op(call: Op | str) -> Op:
    """The call of a name such as ``"THINK"`` or ``"think"``; raises ``ValueError`` if there is none."""
    if isinstance(call, Op):
        return call
    try:
        return Op[call.upper()]
    except KeyError:
        raise ValueError(f"there is no call {call!r}{suggest_name(call.upper(), Op.__members__)}") from None


def read_request(op: Op, body: bytes) -> dict[str, Any]:
    """The fields of a request as they were sent; raises ``BadRequest`` as the kernel does, which names the field."""
    if op == Op.THINK and not body.lstrip().startswith(b"{"):
        return {"prompt": body.decode(errors="replace")}
    if op in RAW:
        return {"body": body.decode(errors="replace")}
    try:
        fields = codec.parse(body or b"{}")
        if (kind := request_types().get(op)) is not None:
            codec.decode(kind, fields)
    except codec.Invalid as error:
        raise BadRequest(str(error)) from None
    if not isinstance(fields, dict):
        raise BadRequest("expected a JSON object")
    return fields


def encode_reply(op: Op, given: object) -> bytes:
    """The body of a programmed reply, with all fields that the call's reply has; ``ValueError`` if it can't be one.

    A field that has no default and isn't given is empty: ``""``, 0, false, an empty array or object.
    """
    if op in RAW:
        return given if isinstance(given, bytes) else str(given).encode()
    kind = request_types().get(op)
    if kind is None:
        return codec.encode(given)
    if attrs.has(kind.reply) and isinstance(given, Mapping):
        given = {**_empty_fields(kind.reply), **given}
    try:
        return codec.encode(codec.decode(kind.reply, given))
    except codec.Invalid as error:
        raise ValueError(f"this is no reply to {op.name}: {error}") from None


def encode_failure(op: int, error: CallError) -> bytes:
    """The body of a failed reply."""
    return codec.encode(
        {"success": False, "error": str(error), "code": error.code, **FAILURES.get(op, {}), **error.details}
    )


def _empty_fields(kind: type) -> dict[str, object]:
    """The required fields of a class, empty."""
    required = [field for field in attrs.fields(kind) if field.default is attrs.NOTHING]
    return {wire_name(field.name): _empty(field.type) for field in required}


def _empty(hint: Any) -> object:
    """The empty value of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _empty(inner[0])
    if origin is Literal:
        return inner[0]
    if origin in (Union, UnionType):
        return None if NoneType in inner else _empty(inner[0])
    if supertype := getattr(hint, "__supertype__", None):  # of a NewType
        return _empty(supertype)
    if attrs.has(hint):
        return _empty_fields(hint)
    base = origin or hint
    if base in (str, int, float, bool):
        return base()
    if isinstance(base, type) and issubclass(base, Mapping):
        return {}
    if isinstance(base, type) and issubclass(base, Sequence):
        return []
    return None


def default_chunks(op: Op, reply: object) -> Sequence[Mapping[str, Any]]:
    """The chunks of a streamed reply for which none were programmed: of THINK its whole content."""
    content = reply.get("content") if isinstance(reply, Mapping) else None
    return [{"delta": content}] if op == Op.THINK and content else []
