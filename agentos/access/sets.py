"""Permission sets of requests: reads them in a thread, within limits, and precomputes what their decisions need."""

from collections.abc import Mapping

import attrs
from attrs import define, field

from agentos.kernel.caller import Caller
from agentos.permissions.levels import default
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import PermissionSet
from agentos.permissions.sets import examples as set_examples
from agentos.permissions.sets import files as set_files
from agentos.services.http.secrets import Secrets
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.errors import BadRequest

MAX_SIZE_OF_OTHERS = set_files.SetSize(rules=200, characters=8 << 10)  # per set from an agent or a guest: 0.1 s


@define(eq=False)
class SetReader:
    """Reads the sets that callers send, one at a time.

    ``known`` are the configuration file's. ``names`` are the values of ``~`` and ``${...}`` in patterns for callers
    without a jail, ``jailed`` for callers with one.
    """

    known: Mapping[str, PermissionSet]
    names: Names
    jailed: Names
    secrets: Secrets
    priced: bool  # whether any model has a price
    reading: Limiter = field(factory=lambda: Limiter(1), init=False)

    def names_of(self, *, jailed: bool) -> Names:
        return self.jailed if jailed else self.names

    def compile_defaults(self) -> None:
        """Precompute what most decisions need, before the first caller waits for it."""
        for jailed in (True, False):
            set_examples.compile_set(default(jailed), self.names_of(jailed=jailed))

    async def read(self, wanted: object, field: str, call: str, caller: Caller) -> PermissionSet:
        """Parse the permission set of a request; raises ``BadRequest`` with all its mistakes."""
        source = f"{call} by {caller.name}"
        try:
            if isinstance(wanted, str):
                return set_files.read_set(wanted, source, self.known, self.jailed)
            most = set_files.MAX_SET_SIZE if caller.kind == "operator" else MAX_SIZE_OF_OTHERS
            async with caller.turn:
                found = await run_in_thread(self._parse, wanted, source, most, limiter=self.reading)
            set_files.check_secrets(found, self.secrets.settings)
        except set_files.BadSet as error:
            raise BadRequest(error.describe_mistakes(field)) from None
        if not self.priced and any(quota.what == "money" for quota in found.quotas):
            raise BadRequest(f"{field}.quotas: one of money needs the model's price, and there is no [llm.prices]")
        return found

    def _parse(self, wanted: object, source: str, most: set_files.SetSize) -> PermissionSet:
        """Parse and precompute a set for callers with and without a jail. A large one takes up to a second."""
        found = set_files.read_set(wanted, source, self.known, self.jailed, most)
        set_examples.compile_set(found, self.names)
        return found


def limit_set(given: PermissionSet, held: PermissionSet) -> PermissionSet:
    """A set that stands for both, where the grants of ``given`` are within those of ``held``: for forks, for example.

    What a person is asked about by ``held`` it asks about as well.
    """
    others = (rule for rule in held.rules if rule.effect != "allow" and rule not in given.rules)
    limits = dict(held.limits)
    for name, most in given.limits:
        limits[name] = min(most, limits.get(name, most))
    return attrs.evolve(given, rules=(*given.rules, *others), limits=tuple(limits.items()))
