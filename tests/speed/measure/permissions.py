"""What judging costs: a decision by 100 rules, and a command through a whole kernel.

Decisions are made in this process, by sets whose rules are all of the kind that is asked about: with fewer of a kind
there is less to look at. The rule that allows is the last one, behind 20 denials and 10 questions.
"""

import fnmatch
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from statistics import median

import trio
from attrs import frozen

from agentos.kernel.caller import Caller as Holder
from agentos.kernel.ports import Right
from agentos.kernel.table import Table
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import Kind, PermissionSet
from agentos.permissions.sets import files as set_files
from agentos.sandbox.plan import plan_entry, plan_sandbox
from agentos.sandbox.policy import Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from agentos.shell.reader import parse_text
from agentos_sdk.values import HostIds
from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.processes import MeasurementError, pinned
from tests.speed.results import Result, Row
from tests.speed.starts.jails import SPAWN
from tests.support.rights import Notebook

EXEC = 0x04
DENIED, ASKED, ALLOWED = 20, 10, 70  # rules of a set
RULES = DENIED + ASKED + ALLOWED
NAMES = Names("/home/op", "/home/op/project", "/workspace", "/agent")
COMMAND = "allow-69 log --oneline -5 | allow-69 -3 > /dev/null"
MANY = 500  # decisions in a round
DECISIONS = (
    Row(f"READ, decided by {RULES} rules: allowed by the last", " µs", most=50, floor=f"{RULES} fnmatch"),
    Row(f"READ, decided by {RULES} rules: denied, as none matches", " µs", most=50),
    Row(f"READ, decided by three sets of {RULES} rules within each other", " µs", most=50),
    Row(f"SEND, decided by {RULES} rules: to an agent by its name", " µs", most=50),
    Row(f"EXEC, decided by {RULES} rules: two commands and a redirection", " µs", most=50),
    Row("EXEC: to parse two commands and a redirection", " µs"),
)
COMMANDS = (Row("EXEC of true in an agent's jail", " ms", most=10, floor="the spawner alone"),)

Once = Callable[[int], object]


# -- Decisions ---------------------------------------------------------------------------------------------------------


def a_set(kind: Kind, name: str, pattern: str) -> PermissionSet:
    """A hundred rules; ``pattern`` has ``{}`` where they differ."""
    counts = {"deny": DENIED, "ask": ASKED, "allow": ALLOWED}
    rules = {effect: {kind: [pattern.format(f"{effect}-{n}") for n in range(n)]} for effect, n in counts.items()}
    return set_files.read_set(rules, name, {}, NAMES)


@frozen
class Judged:
    """Somebody who holds one such set, or three within each other."""

    holder: Holder

    @classmethod
    def by(cls, kind: Kind, pattern: str, layers: int = 1) -> "Judged":
        agents = AgentTree(lambda *_: False, "allow-69-{}".format, lambda *_: False, lambda *_: False)
        authorizer = PermissionAuthorizer(agents)
        for number in range(1, layers + 1):
            authorizer.add_caller(number, a_set(kind, f"set {number}", pattern), NAMES, number - 1 or None)
        return cls(Holder(layers, "agent", "asks", Table(()), authorizer, Notebook()))

    def of(self, *rights: Right, effect: str = "allow") -> Once:
        """A decision about one right after the other, which come out as they have to."""
        found = {self.holder.authorizer.decide(self.holder, right).effect for right in rights}
        if found != {effect}:
            raise MeasurementError(f"{rights[0]} came out as {found}, and {effect} was expected")
        decide, holder, count = self.holder.authorizer.decide, self.holder, len(rights)
        return lambda number: decide(holder, rights[number % count])


def ways() -> dict[str, Once]:
    """What is measured, by name; the first is the floor, the others are ``DECISIONS`` in order."""
    one, three = (Judged.by("read", "/data/{}/**", layers) for layers in (1, 3))
    allowed = [Right("read", f"/data/allow-69/notes/day-{n}.md") for n in range(100)]
    refused = [Right("read", f"/srv/else/notes/day-{n}.md") for n in range(100)]
    wanted = ExecRequest(parse_text(COMMAND), "/workspace", jailed=True)
    compiled = [re.compile(fnmatch.translate(f"/data/allow-{n}/*")).match for n in range(RULES)]
    return {
        "fnmatch": lambda number: [match(str(allowed[number % 100].object)) for match in compiled],
        "allowed": one.of(*allowed),
        "refused": one.of(*refused, effect="deny"),
        "layers": three.of(*allowed),
        "send": Judged.by("send", "{}-*").of(*(Right("send", agent=n) for n in range(10, 110))),
        "exec": Judged.by("commands", "{} *").of(Right("exec", wanted)),
        "parse": lambda _: parse_text(COMMAND),
    }


def decisions(place: Place) -> list[Result]:
    with pinned(place.cpu):
        taken = _in_turn(ways(), 10 if place.quick else 40)
    beside, read, *others = taken.values()
    return [
        Result.of(DECISIONS[0], read, beside),
        *(Result.of(row, us) for row, us in zip(DECISIONS[1:], others, strict=True)),
    ]


def _in_turn(ways: Mapping[str, Once], rounds: int) -> dict[str, list[float]]:
    """Microseconds: the median of each round."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, once in ways.items():
            found = median(_timed(once, n) for n in range(MANY))
            if number > 0:  # the first round compiles what the others find compiled
                taken[name].append(found)
    return taken


def _timed(once: Once, number: int) -> float:
    begun = time.perf_counter_ns()
    once(number)
    return (time.perf_counter_ns() - begun) / 1000


# -- A command through a kernel ----------------------------------------------------------------------------------------


def commands(place: Place) -> list[Result]:
    """``true`` in an agent's jail: through the kernel, judged and written down, and by the spawner alone."""
    rounds = 20 if place.quick else 50
    with pinned(place.cpu):
        spawner = Spawner.start()
        try:
            with place.serve() as kernel, Caller(kernel.socket) as caller:
                said = {"name": "host", "command": ["sleep", "1000"], "restart": "temporary"}
                caller.ask(SPAWN, said)
                through = partial(caller.ask, EXEC, {"command": ["true"], "name": "host"})
                taken = trio.run(_both, spawner, through, rounds)
        finally:
            spawner.close()
    return [Result.of(COMMANDS[0], *taken)]


async def _both(spawner: Spawner, through: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds, in turn."""
    host, policy = probe.read_host(), Policy()
    outer = HostIds(1610612736 + 65000, 1610612736 + 65000) if os.geteuid() == 0 else None
    around = await spawner.spawn(plan_sandbox(policy, Program(("sleep", "1000")), host, outer))
    steps = plan_entry(policy, Program(("true",)), host)
    try:
        return await _alternate([_called(through), partial(_entered, spawner, around, steps)], rounds)
    finally:
        await _over(around)


async def _alternate(ways: Sequence[Callable[[], Awaitable[None]]], rounds: int) -> tuple[list[float], list[float]]:
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for once, found in zip(ways, taken, strict=True):
            await trio.sleep(0.01)
            begun = time.perf_counter()
            await once()
            if number >= 2:
                found.append((time.perf_counter() - begun) * 1000)
    return taken


def _called(through: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    async def once() -> None:
        through()  # nothing else runs here

    return once


async def _entered(spawner: Spawner, around: Sandbox, steps: Sequence[object]) -> None:
    guest = await spawner.enter(around, steps)  # type: ignore[arg-type]
    await guest.wait()
    await _over(guest)


async def _over(sandbox: Sandbox) -> None:
    await sandbox.kill()
    os.close(sandbox.stdout)
    os.close(sandbox.stderr)
