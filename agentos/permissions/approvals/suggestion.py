"""Suggested rules: the smallest that allow what a caller did with a person's approval, as the audit log recorded it.

A suggestion grants exact objects, never patterns. What can't be said exactly is listed with the reason, such as a
command with a loop in it, for which there is no rule but ``*``.
"""

import os.path
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from attrs import define, field
from msgspec import Struct

from agentos.kernel.ports import Right
from agentos.permissions.exec_decision import HARMLESS_FILES
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.levels import BASE_RULES
from agentos.permissions.patterns.base import BadPattern, Names
from agentos.permissions.rule import KIND_OF_ACTION, Kind, PermissionSet, Rule
from agentos.permissions.rules import AgentRelation
from agentos.permissions.sets.examples import BadExample, decide_by_set, parse_example
from agentos.services.audit.chain import MAX_ABOUT_CHARS, Row
from agentos.services.audit.redaction_values import REDACTED
from agentos.services.http.destination import Destination
from agentos.shell.reading import Opaque

_ESCAPED: Final = re.compile(r"\\(?:[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")  # as the log escapes characters
_APPROVED: Final = re.compile(r"(?:approval|answer) [0-9]+: (.*)", re.DOTALL)  # the rule of a call that was approved
_WILD: Final = re.compile(r"([*?\[\\]|\$(?=\{))")

COUNTED: Final = "(others)"


class Use(Struct, frozen=True):
    """Calls that were approved and made: ``about`` is their object as the log has it, ``rule`` the one that asked."""

    call: str
    about: str
    rule: str = ""
    times: int = 1

    def __str__(self) -> str:
        return f"{self.call} {self.about}".rstrip()


def find_uses(rows: Iterable[Row]) -> Sequence[Use]:
    """What was approved and done, in the log's order; calls that only a count stands for have no object."""
    abouts: dict[int, str] = {}  # of intents, which have no remark behind the object
    uses: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        approved = _APPROVED.fullmatch(row.rule)
        if approved is None or row.decision != "allow":
            continue
        if row.phase == "intent":
            abouts[row.seq] = row.about
        elif row.outcome == "ok":
            about = abouts.pop(row.intent or 0, row.about)
            about = about.partition(" (")[0] if row.call in ("THINK", "HTTP") else about
            uses[row.call, about if row.repeated == 1 else COUNTED, approved[1]] += row.repeated
    return [Use(call, about, rule, times) for (call, about, rule), times in uses.items()]


class NoRule(ValueError):
    """No rule allows this use and nothing beside it; the text says why."""


@define
class Suggestion:
    """``grants`` are patterns by kind, each with the number of calls; ``left`` are uses that no rule fits, and why."""

    grants: dict[Kind, Counter[str]] = field(factory=dict)
    left: list[tuple[Use, str]] = field(factory=list)

    def as_set(self) -> dict[str, dict[Kind, list[str]]]:
        """The rules as a permission set is written; empty if there is none."""
        return {"allow": {kind: list(patterns) for kind, patterns in self.grants.items()}} if self.grants else {}


def suggest_rules(uses: Iterable[Use], names: Names) -> Suggestion:
    """Rules for all of these uses; a rule stands in the result only if the use that it comes from needs it."""
    suggestion = Suggestion()
    for use in uses:
        try:
            grants = dict.fromkeys(_grants_for(use, names))
        except NoRule as error:
            suggestion.left.append((use, str(error)))
            continue
        for kind, pattern in grants:
            suggestion.grants.setdefault(kind, Counter())[pattern] += use.times
    return suggestion


def _grants_for(use: Use, names: Names) -> Sequence[tuple[Kind, str]]:
    """The grants that together allow a use and name nothing else; raises :class:`NoRule`."""
    if use.about == COUNTED:
        raise NoRule("the log has only their number")
    if len(use.about) >= MAX_ABOUT_CHARS or REDACTED in use.about or _ESCAPED.search(use.about):
        raise NoRule("the log has its text cut, redacted or escaped")
    if use.call.lower() not in KIND_OF_ACTION or use.call == "TOOLS":  # it needs no right but that of the call
        return [("calls", use.call)]
    if use.about.startswith("beside "):
        raise NoRule("the command ran beside another agent")
    try:
        right, relation = _parse_use(use, names)
        grants = list(_grants_of_command(right.object)) if isinstance(right.object, ExecRequest) else [_grant_of(right)]
        rules = [Rule("allow", kind, pattern, "suggestion") for kind, pattern in grants]
        decision = decide_by_set(PermissionSet("suggestion", (*rules, *BASE_RULES)), names, right, relation)
    except (BadExample, BadPattern) as error:
        raise NoRule(str(error)) from None
    if decision.effect != "allow":
        raise NoRule(decision.reason)
    return grants


def _parse_use(use: Use, names: Names) -> tuple[Right, AgentRelation | None]:
    """The right that it needed. A path is taken as it stands, also with spaces at its end."""
    return (
        (Right(use.call.lower(), use.about), None) if use.call in ("READ", "WRITE") else parse_example(str(use), names)
    )


def _grant_of(right: Right) -> tuple[Kind, str]:
    """The pattern of exactly this object."""
    kind, what = KIND_OF_ACTION[right.action], str(right.object)
    if isinstance(right.object, Destination):
        return kind, _pattern_of(right.object)
    if what != what.strip() or "//" in what:
        raise NoRule("no pattern can be written for such a name")
    return kind, _WILD.sub(r"\\\1", what)


def _pattern_of(destination: Destination) -> str:
    """Of a tunnel its host and port: what is in it can't be told."""
    if destination.method is None:
        return destination.authority
    if (destination.path or "").endswith("/**"):
        raise NoRule("a pattern with this path would grant all below it")
    return f"{destination.method} {destination.authority}{destination.path}"


def _grants_of_command(request: ExecRequest) -> Iterator[tuple[Kind, str]]:
    """The patterns of each simple command in it, and of each file that it is redirected to."""
    if isinstance(request.reading, Opaque):
        raise NoRule(f'it uses {request.reading.construct}, and only commands = ["*"] grants that')
    for command in request.reading.commands:
        words = [word.text for word in command.words]
        if any(text is None or "*" in text or "?" in text for text in words):
            raise NoRule("a pattern can't name an argument that has a wildcard or is known only when it runs")
        yield "commands", shlex.join(text for text in words if text is not None)
    for redirect, path in request.redirect_paths():
        if path is None or not os.path.isabs(redirect.target.text or ""):
            raise NoRule("the log doesn't have the directory that a redirection is relative to")
        if path not in HARMLESS_FILES:
            yield _grant_of(Right("write" if redirect.writes else "read", path))
