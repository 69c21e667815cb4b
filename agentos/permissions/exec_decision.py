"""Whether a command may run: each simple command in it has to pass, and each redirection.

The filter explains and asks. It reads what is written, and a program does what it likes: the wall is the jail.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from agentos.kernel.ports import Decision, Effect, Right
from agentos.shell import dangerous
from agentos.shell.reading import Command, Opaque, Redirect

from .exec_request import Wanted
from .rule import Kind, Rule, decision_by, shortened
from .rule_index import Shelf

Shelves: TypeAlias = Mapping[Kind, Mapping[Effect, Shelf]]

HARMLESS: Final = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty")
ONLY_SIMPLE: Final = 'only simple commands can be allowed by patterns: grant commands = ["*"] or rewrite'


def danger(wanted: Wanted) -> Decision | None:
    """The default denial that it falls under, if any."""
    reading = wanted.reading
    if isinstance(reading, Opaque) and not reading.whole:
        return _denied(reading.construct)
    found = dangerous.danger_of_reading(reading)
    for command in reading.commands:
        found = found or dangerous.danger(command, at_home=wanted.jailed)
    for redirect in reading.redirects:
        found = found or (dangerous.danger_of_target(redirect.target) if redirect.writes else None)
    return _denied(found) if found is not None else None


def _denied(what: str) -> Decision:
    return Decision("deny", f"{what} (default denials)", f"EXEC: refused by the default denials: {what}")


def judge(wanted: Wanted, rules: Shelves, right: Right, name: str) -> Decision:
    """What a set of rules says of it; ``name`` is the set's."""
    return _Judge(wanted, rules, right, name).decision()


@frozen
class _Judge:
    wanted: Wanted
    rules: Shelves
    right: Right
    name: str

    def decision(self) -> Decision:
        """A denial of any part holds for all of it; so does a question, if every part is granted or asked about."""
        commands, places = self.rules["commands"], self.wanted.places()
        if (denied := self._about_any_part("deny", places)) is not None:
            return decision_by(denied, self.right)
        asked = self._about_any_part("ask", places)
        everything = commands["ask"].universal or commands["allow"].universal
        if everything is not None:
            return decision_by(asked or everything, self.right)
        decision = self._part_by_part(places)
        return decision_by(asked, self.right) if asked is not None and decision.effect != "deny" else decision

    def _about_any_part(self, effect: Effect, places: Sequence[tuple[Redirect, str | None]]) -> Rule | None:
        found = self._any(effect, self.wanted.reading.commands)
        for redirect, path in places:
            found = found or self._of_path(redirect, effect, path)
        if found is None and isinstance(self.wanted.reading, Opaque):
            found = self.rules["commands"][effect].universal
        return found

    def _part_by_part(self, places: Sequence[tuple[Redirect, str | None]]) -> Decision:
        reading, commands = self.wanted.reading, self.rules["commands"]
        if isinstance(reading, Opaque):
            return self._refused(reading.text, f": it uses {reading.construct}; {ONLY_SIMPLE}")
        for variable in self.wanted.variables:
            return self._refused(
                f"env.{variable}", "; it may change what a command does, so only a grant of * covers it"
            )
        by: Rule | None = None
        for command in reading.commands:
            by = commands["allow"].first(command) or commands["ask"].granting(command)
            if by is None:
                return self._refused(command.source)
        for redirect, path in places:
            if path not in HARMLESS and (by := self._granting(redirect, path)) is None:
                return self._refused(redirect.source)
        return decision_by(by, self.right) if by is not None else Decision("allow", "it runs nothing", "")

    def _any(self, effect: Effect, commands: Sequence[Command]) -> Rule | None:
        found = map(self.rules["commands"][effect].first, commands)
        return next((rule for rule in found if rule is not None), None)

    def _of_path(self, redirect: Redirect, effect: Effect, path: str | None) -> Rule | None:
        return self.rules["write" if redirect.writes else "read"][effect].first(path) if path is not None else None

    def _granting(self, redirect: Redirect, path: str | None) -> Rule | None:
        shelves = self.rules["write" if redirect.writes else "read"]
        return (shelves["allow"].first(path) or shelves["ask"].granting(path)) if path is not None else None

    def _refused(self, what: str, why: str = "") -> Decision:
        text = f"EXEC: no rule of {self.name} allows {shortened(what)}{why}"
        return Decision("deny", f"no rule ({self.name})", text)
