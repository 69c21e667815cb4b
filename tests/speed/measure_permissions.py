"""What judging costs: a decision by 100 rules, and a command through a whole kernel.

Decisions are made in this process, by sets whose rules are all of the kind that is asked about: with fewer of a kind
there is less to look at. The rule that allows is the last one, behind 20 denials and 10 questions.
"""

import fnmatch
import json
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
from agentos.permissions import set_files
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import Kind, PermissionSet
from agentos.sandbox.plan import HostIds, plan_entry, plan_sandbox
from agentos.sandbox.policy import Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.spawner import Spawner
from agentos.shell.reader import parse_text
from tests.speed.caller import Caller
from tests.speed.measure_jails import SPAWN
from tests.speed.place import Place
from tests.speed.processes import MeasurementError, pinned
from tests.speed.results import Ratio, Row, ratio
from tests.support.rights import Notebook

EXEC = 0x04
DENIED, ASKED, ALLOWED = 20, 10, 70  # rules of a set
RULES = DENIED + ASKED + ALLOWED
NAMES = Names("/home/op", "/home/op/project", "/workspace", "/agent")
COMMAND = "allow-69 log --oneline -5 | allow-69 -3 > /dev/null"
MOST_US = 50.0  # of a decision, at the median
MANY = 500  # decisions in a round

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
        agents = AgentTree(is_descendant=lambda *_: False, name_of="allow-69-{}".format, parent_of=lambda _: None)
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
    """What is measured, by name."""
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
        "exec": Judged.by("commands", "{} *").of(Right("exec", wanted)),
        "parse": lambda _: parse_text(COMMAND),
        "send": Judged.by("send", "{}-*").of(*(Right("send", agent=n) for n in range(10, 110))),
    }


def decisions(place: Place) -> list[Row]:
    with pinned(place.cpu):
        taken = _in_turn(ways(), 10 if place.quick else 40)
    beside = ratio(*([median(each) for each in taken[name]] for name in ("allowed", "fnmatch")))
    return [
        _decision(f"READ, decided by {RULES} rules: allowed by the last", taken["allowed"], taken["fnmatch"], beside),
        _decision("  denied, as no rule speaks of it", taken["refused"]),
        _decision("  three such sets within each other", taken["layers"]),
        _decision("SEND, to an agent by its name", taken["send"]),
        _decision("EXEC of two commands and a redirection", taken["exec"]),
        _decision("  to parse them, before", taken["parse"], promised=False),
    ]


def _in_turn(ways: Mapping[str, Once], rounds: int) -> dict[str, list[list[float]]]:
    """Microseconds, of each round in a list of its own."""
    taken: dict[str, list[list[float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, once in ways.items():
            found = [_timed(once, n) for n in range(MANY)]
            if number > 0:  # the first round compiles what the others find compiled
                taken[name].append(found)
    return taken


def _timed(once: Once, number: int) -> float:
    begun = time.perf_counter_ns()
    once(number)
    return (time.perf_counter_ns() - begun) / 1000


def _decision(
    what: str,
    taken: Sequence[Sequence[float]],
    plain: Sequence[Sequence[float]] | None = None,
    beside: Ratio | None = None,
    *,
    promised: bool = True,
) -> Row:
    each = sorted(us for found in taken for us in found)
    p50, p99 = median(each), each[len(each) * 99 // 100]
    return Row(
        what,
        f"{p50:.1f} µs (p99 {p99:.1f})",
        f"{RULES} fnmatch: {median(us for found in plain for us in found):.1f} µs" if plain is not None else "-",
        str(beside) if beside is not None else "-",
        f"<= {MOST_US:g} µs" if promised else "-",
        p50 <= MOST_US if promised else None,
        {"p50_us": p50, "p99_us": p99},
    )


# -- A command through a kernel ----------------------------------------------------------------------------------------


def commands(place: Place) -> list[Row]:
    """``true`` in an agent's jail: through the kernel, judged and written down, and by the spawner alone."""
    rounds = 20 if place.quick else 100
    with pinned(place.cpu):
        spawner = Spawner.start()
        try:
            with place.serve() as kernel, Caller(kernel.socket) as caller:
                said = {"name": "host", "command": ["sleep", "1000"], "restart": "temporary"}
                _ask(caller, SPAWN, said)
                through = partial(_ask, caller, EXEC, {"command": ["true"], "name": "host"})
                taken = trio.run(_both, spawner, through, rounds)
        finally:
            spawner.close()
    beside, p50 = ratio(*taken), median(taken[0])
    return [
        Row(
            "EXEC of true, in an agent's jail (the spawner alone)",
            f"{p50:.2f} ms",
            f"{median(taken[1]):.2f} ms",
            str(beside),
            numbers={"p50_ms": p50, "beside_ms": median(taken[1]), "ratio": beside.middle},
        )
    ]


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


def _ask(caller: Caller, opcode: int, fields: Mapping[str, object]) -> None:
    reply = json.loads(caller.call(opcode, json.dumps(fields).encode()))
    if not reply.get("success") or reply.get("exit_code", 0) != 0:
        raise MeasurementError(f"0x{opcode:02X} {fields}: {reply}")


def permissions(place: Place) -> list[Row]:
    """All of it."""
    return [*decisions(place), *commands(place)]
