"""Whether a command may run: each simple command in it has to pass, and each redirection.

The filter explains and asks. It reads what is written, and a program does what it likes: the wall is the jail.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from agentos.kernel.ports import Decision, Effect, Right
from agentos.shell import dangerous
from agentos.shell.reading import Opaque, Redirect

from .exec_request import ExecRequest
from .rule import Kind, Rule, decision_by, shorten
from .rule_index import RuleIndex

RuleIndexes: TypeAlias = Mapping[Kind, Mapping[Effect, RuleIndex]]

HARMLESS_FILES: Final = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty")
REWRITE_HINT: Final = 'only simple commands can be allowed by patterns: grant commands = ["*"] or rewrite'


def deny_dangerous(request: ExecRequest) -> Decision | None:
    """The default denial that it falls under, if any."""
    reading = request.reading
    if isinstance(reading, Opaque) and not reading.complete:
        return _default_denial(reading.construct)
    found = dangerous.find_combined_danger(reading)
    for command in reading.commands:
        found = found or dangerous.find_danger(command, in_jail=request.jailed)
    for redirect in reading.redirects:
        found = found or (dangerous.find_target_danger(redirect.target) if redirect.writes else None)
    return _default_denial(found) if found is not None else None


def _default_denial(what: str) -> Decision:
    return Decision("deny", f"{what} (default denials)", f"EXEC: refused by the default denials: {what}")


class ExecDecision(Struct, frozen=True):
    """What a set of rules says of a command; ``name`` is the set's."""

    request: ExecRequest
    rules: RuleIndexes
    right: Right
    name: str

    def decision(self) -> Decision:
        """A denial of any part holds for all of it; so does a question, if every part is granted or asked about."""
        commands, paths = self.rules["commands"], self.request.redirect_paths()
        if (denied := self._match_any_part("deny", paths)) is not None:
            return decision_by(denied, self.right)
        asked = self._match_any_part("ask", paths)
        everything = commands["ask"].universal or commands["allow"].universal
        if everything is not None:
            return decision_by(asked or everything, self.right)
        decision = self._decide_each_part(paths)
        return decision_by(asked, self.right) if asked is not None and decision.effect != "deny" else decision

    def _match_any_part(self, effect: Effect, paths: Sequence[tuple[Redirect, str | None]]) -> Rule | None:
        matches = map(self.rules["commands"][effect].find, self.request.reading.commands)
        found = next((rule for rule in matches if rule is not None), None)
        for redirect, path in paths:
            found = found or self._match_path(redirect, effect, path)
        if found is None and isinstance(self.request.reading, Opaque):
            found = self.rules["commands"][effect].universal
        return found

    def _decide_each_part(self, paths: Sequence[tuple[Redirect, str | None]]) -> Decision:
        reading, commands = self.request.reading, self.rules["commands"]
        if isinstance(reading, Opaque):
            return self._deny(reading.text, f": it uses {reading.construct}; {REWRITE_HINT}")
        for variable in self.request.variables:
            return self._deny(f"env.{variable}", "; it may change what a command does, so only a grant of * covers it")
        by: Rule | None = None
        for command in reading.commands:
            by = commands["allow"].find(command) or commands["ask"].find(command, as_grant=True)
            if by is None:
                return self._deny(command.source)
        for redirect, path in paths:
            if path not in HARMLESS_FILES and (by := self._find_grant(redirect, path)) is None:
                return self._deny(redirect.source)
        return decision_by(by, self.right) if by is not None else Decision("allow", "it runs nothing", "")

    def _match_path(self, redirect: Redirect, effect: Effect, path: str | None) -> Rule | None:
        return self.rules["write" if redirect.writes else "read"][effect].find(path) if path is not None else None

    def _find_grant(self, redirect: Redirect, path: str | None) -> Rule | None:
        indexes = self.rules["write" if redirect.writes else "read"]
        return (indexes["allow"].find(path) or indexes["ask"].find(path, as_grant=True)) if path is not None else None

    def _deny(self, what: str, why: str = "") -> Decision:
        text = f"EXEC: no rule of {self.name} allows {shorten(what)}{why}"
        return Decision("deny", f"no rule ({self.name})", text)
