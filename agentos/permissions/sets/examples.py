"""Examples in a permission set, such as ``READ /data/x``, and their expected decisions; checked on reading."""

import os.path

from agentos.kernel.ports import Decision, Effect, Right
from agentos.permissions.authorizer import apply_default_denials, compile_rules
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import PermissionSet
from agentos.permissions.rules import GROUP, OWN, PARENT, AgentRelation
from agentos.services.http.destination import Destination, parse_destination
from agentos.shell.reader import parse_text
from agentos_sdk.encoding.strict import quote
from agentos_sdk.opcodes import Op

OUTCOMES = {"allow": "is allowed", "ask": "needs a person's approval", "deny": "is denied"}


class BadExample(ValueError):
    """Not a valid example; the text says what one looks like."""


def check_example(text: str, expected: Effect, given: PermissionSet | None, names: Names) -> str | None:
    """Why an example is invalid or is decided other than expected; None if it is as expected.

    ``given`` is ``None`` if the set isn't known, which leaves what is decided open.
    """
    try:
        right, relation = parse_example(text, names)
    except BadExample as error:
        return str(error)
    if given is None:
        return None
    decision = decide_by_set(given, names, right, relation)
    if decision.effect == expected:
        return None
    why = decision.reason or (f"by the rule {decision.rule}" if decision.rule else "no rule speaks of it")
    return f"{quote(text)} {OUTCOMES[decision.effect]}: {why}"


def decide_by_set(given: PermissionSet, names: Names, right: Right, relation: AgentRelation | None = None) -> Decision:
    """The decision of a set on a right, after the default denials."""
    return apply_default_denials(right, names) or compile_rules(given, names).decide(right, relation)


def compile_set(given: PermissionSet, names: Names) -> None:
    """Compile the set when it is read, possibly in a thread, not at its first decision: a large one takes 0.1 s."""
    for text in SAMPLES.values():
        decide_by_set(given, names, *parse_example(text, names))


def parse_example(text: str, names: Names) -> tuple[Right, AgentRelation | None]:
    """Parse an example into a right, and the agent that it concerns, if any; raises :class:`BadExample`."""
    call, _, rest = text.partition(" ")
    action, rest = call.lower(), rest.strip()
    if call.upper() not in Op.__members__:
        raise BadExample(f"no call is named {quote(call)}: expected one and what it is done to, as in 'READ /data/x'")
    if action in SAMPLES and action != "think" and not rest:
        raise BadExample(f"{call}: expected an example such as {SAMPLES[action]!r}")
    if action in ("read", "write"):
        return Right(action, _path(rest, names)), None
    if action == "exec":
        return Right(action, _command(rest, names)), None
    if action == "http":
        return Right(action, _destination(rest)), None
    if action in ("think", "tools", "tool_call") or not rest:
        return Right(action, rest or None), None
    return Right(action, rest), AgentRelation(rest, own=rest == OWN, parent=rest == PARENT, group=rest == GROUP)


SAMPLES = {
    "read": "READ /data/x",
    "write": "WRITE /data/x",
    "exec": "EXEC git status",
    "http": "HTTP example.com",
    "think": "THINK gemini-2.0-flash",
    "tool_call": "TOOL_CALL github.search",
    "send": "SEND bob",
}


def _path(text: str, names: Names) -> str:
    start, slash, below = text.partition("/")
    known = {"~": names.home, "${workspace}": names.workspace, "${code}": names.code, "${config}": names.config}
    if start:
        directory = known.get(start)
        if directory is None:
            raise BadExample(f"{quote(text)}: expected an absolute path")
        text = directory + slash + below
    return "/" + os.path.normpath(text).lstrip("/")


def _command(text: str, names: Names) -> ExecRequest:
    return ExecRequest(parse_text(text), names.workspace or "/", jailed=names.workspace is not None)


def _destination(text: str) -> Destination:
    try:
        return parse_destination(text)
    except ValueError as error:
        raise BadExample(f"{quote(text)}: {error}") from None
