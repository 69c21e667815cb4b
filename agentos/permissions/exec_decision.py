"""Whether a command may run: each simple command in it has to pass, and each redirection.

The filter explains and asks. It reads what is written, and a program does what it likes: the wall is the jail.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from agentos.kernel.ports import Decision, Effect, Right

from . import dangers
from .exec_request import Wanted
from .rule import Kind, Rule, decision_by, shortened
from .rule_index import Shelf
from .script import Redirect, Simple

Shelves: TypeAlias = Mapping[Kind, Mapping[Effect, Shelf]]

HARMLESS: Final = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty")


def danger(wanted: Wanted) -> Decision | None:
    """The default denial that it falls under, if any."""
    script = wanted.script
    found = dangers.danger_of_script(script)
    for simple in script.commands:
        found = found or dangers.danger(simple, at_home=wanted.jailed)
    for redirect in script.redirects:
        found = found or (dangers.danger_of_target(redirect.target) if redirect.writes else None)
    if found is None:
        return None
    return Decision("deny", f"{found} (default denials)", f"EXEC: refused by the default denials: {found}")


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
        everything = commands["allow"].universal or commands["ask"].universal
        if everything is not None:  # what can't be seen beforehand is none the worse
            return decision_by(asked or everything, self.right)
        decision = self._part_by_part(places)
        return decision_by(asked, self.right) if asked is not None and decision.effect != "deny" else decision

    def _about_any_part(self, effect: Effect, places: Sequence[tuple[Redirect, str | None]]) -> Rule | None:
        found = self._any(effect, self.wanted.script.commands)
        for redirect, path in places:
            found = found or self._of_path(redirect, effect, path)
        return found

    def _part_by_part(self, places: Sequence[tuple[Redirect, str | None]]) -> Decision:
        script, commands = self.wanted.script, self.rules["commands"]
        for construct in script.opaque:
            return self._refused(construct, "; nobody can see beforehand what it runs, so only a grant of * covers it")
        for variable in self.wanted.variables:
            return self._refused(f"env.{variable}", "; it changes what a command is, so only a grant of * covers it")
        by: Rule | None = None
        for simple in script.commands:
            by = commands["allow"].first(simple) or commands["ask"].granting(simple)
            if by is None:
                return self._refused(simple.source)
        for redirect, path in places:
            if path not in HARMLESS and (by := self._granting(redirect, path)) is None:
                return self._refused(redirect.source)
        return decision_by(by, self.right) if by is not None else Decision("allow", "it runs nothing", "")

    def _any(self, effect: Effect, commands: Sequence[Simple]) -> Rule | None:
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
