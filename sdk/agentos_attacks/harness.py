"""The outside of an attack: sets up canaries, runs attackers in sandboxes, watches them, and judges.

How an attacker is started is a parameter: a function that takes attackers and returns how each of them ended.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import evolve, field, frozen

from . import watch
from .canaries import Canaries, find_changes, plant_canaries
from .inside.checks import BY_NAME
from .verdicts import Verdict, judge

ATTACKER = Path(__file__).parent / "inside"  # mounted as /agent
PROGRAM = "probe.py"
MIB = 1 << 20
CHECK_SECONDS = 25.0  # seconds for one check
DEFAULT_LIMITS: Mapping[str, int] = {  # bytes, except cpu_quota: microseconds per 100 ms
    "memory": 512 * MIB,
    "max_pids": 64,
    "cpu_quota": 100_000,
    "open_files": 1024,
    "disk": 256 * MIB,
    "tmp": 64 * MIB,
    "inodes": 16384,
    "file_size": 256 * MIB,
}
TIGHT_LIMITS = {
    "max_pids": 40,
    "open_files": 200,
    "disk": 12 * MIB,
    "tmp": 6 * MIB,
    "inodes": 300,
    "file_size": 2 * MIB,
}
SEPARATE_CHECKS: Mapping[str, Mapping[str, int]] = {  # each in an agent of its own: may kill it, or is measured alone
    "proc.kill_everything": {},
    "dos.cpu_hog": {"cpu_quota": 20_000},
    **{
        f"dos.{name}": {"memory": 64 * MIB, "file_size": 64 * MIB}
        for name in (
            *("memory_bomb", "memory_of_many", "memory_in_files", "memory_in_hidden_files", "memory_in_flight"),
            *("memory_in_segments", "memory_in_mappings", "memory_in_pipes", "memory_in_page_tables"),
        )
    },
}
ACCEPTED_CHECKS = {"surface.memfd_exec": "the agent may run any Python anyway"}
STRICT_CHECKS = tuple(name for name in BY_NAME if name.startswith("strict."))  # promised only by that level
FATAL_CHECKS = ("proc.kill_everything", *(name for name in SEPARATE_CHECKS if name.startswith("dos.memory")))


@frozen
class Attacker:
    """One attacker in one sandbox: ``python probe.py TASK``, with these limits."""

    marker: str  # marks its command line
    checks: tuple[str, ...]
    task: str
    limits: Mapping[str, int]
    isolation: Literal["standard", "strict"] = "standard"


@frozen
class Exit:
    """The output of an attacker, how it ended, and whether it was killed."""

    output: str
    reason: str
    killed: bool = False
    start_error: str = field(default="")  # why the sandbox didn't start
    unavailable: str = ""  # why this host has no sandbox of the attacker's level


@frozen
class AttackResult:
    """How each attacker ended, and the checks that may succeed on this host, with the reason."""

    exits: Sequence[Exit]
    accepted: Mapping[str, str]


RunAttackers = Callable[[Sequence[Attacker], Canaries], AttackResult]


def attack(run: RunAttackers) -> list[Verdict]:
    """Run the attacks and judge them. Blocks."""
    with plant_canaries() as canaries:
        attackers = _build_attackers(canaries)
        markers = frozenset(attacker.marker for attacker in attackers)
        with watch.ProcessSampler(markers) as sampler:
            outcome = run(attackers, canaries)
        seen = {**find_changes(canaries), **_kill_survivors(markers), **_find_exceeded_limits(attackers, sampler)}
        results: dict[str, tuple[str, str]] = {}
        for attacker, ended in zip(attackers, outcome.exits, strict=True):
            results |= _read_results(attacker, ended)
        return judge(results, seen, outcome.accepted)


def _build_attackers(canaries: Canaries) -> list[Attacker]:
    dos = [name for name in BY_NAME if name.startswith("dos.") and name not in SEPARATE_CHECKS]
    walls = [name for name in BY_NAME if not name.startswith("dos.") and name not in (*SEPARATE_CHECKS, *STRICT_CHECKS)]
    groups = [
        (tuple(walls), {}),
        (tuple(dos), TIGHT_LIMITS),
        *(((name,), limits) for name, limits in SEPARATE_CHECKS.items()),
    ]
    attackers = [_build_attacker(canaries, number, names, limits) for number, (names, limits) in enumerate(groups)]
    return [*attackers, evolve(_build_attacker(canaries, len(attackers), STRICT_CHECKS, {}), isolation="strict")]


def _build_attacker(canaries: Canaries, number: int, names: tuple[str, ...], limits: Mapping[str, int]) -> Attacker:
    marker = f"attacker-{canaries.token}-{number}."
    limits = {**DEFAULT_LIMITS, **limits}
    targets: dict[str, Any] = {
        **canaries.targets,
        "limits": {**limits, "cpu": limits["cpu_quota"] / 100_000},
    }
    task = {"word": marker, "checks": names, "targets": targets, "seconds": CHECK_SECONDS}
    return Attacker(marker, names, json.dumps(task), limits)


def _read_results(attacker: Attacker, ended: Exit) -> dict[str, tuple[str, str]]:
    if ended.start_error:
        return dict.fromkeys(attacker.checks, ("unclear", ended.start_error))
    if ended.unavailable:
        return dict.fromkeys(attacker.checks, ("n/a", ended.unavailable))
    results = {}
    for line in ended.output.splitlines():
        if line.startswith("{"):
            one = json.loads(line)
            results[one["check"]] = (one["outcome"], one["detail"])
    for name in attacker.checks:
        if name not in results:
            died = ended.killed and name in FATAL_CHECKS
            results[name] = ("tried" if died else "unclear", f"the agent ended: {ended.reason}")
    return results


def _kill_survivors(markers: frozenset[str]) -> dict[str, str]:
    """Find attackers that are still alive after one second, the time that their end may take, and kill them."""
    for _look in range(20):
        left = watch.find_processes(markers)
        if not left:
            return {}
        time.sleep(0.05)
    pids = sorted(pid for group in left.values() for pid in group)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return {"proc.daemon_outlives_sandbox": f"still alive: {pids}"}


def _find_exceeded_limits(attackers: Sequence[Attacker], sampler: watch.ProcessSampler) -> dict[str, str]:
    found: dict[str, str] = {}
    for attacker in attackers:
        seen = sampler.seen.get(attacker.marker)
        if seen is None:
            continue
        if seen.processes > attacker.limits["max_pids"] + 1:
            found |= {name: f"{seen.processes} processes" for name in ("dos.fork_bomb",) if name in attacker.checks}
        # Twice: without a cgroup RLIMIT_DATA holds it until the watcher's next round.
        if "dos.memory_bomb" in attacker.checks and seen.memory > 2 * attacker.limits["memory"] + 8 * MIB:
            found["dos.memory_bomb"] = f"{seen.memory // MIB} MiB"
        if "dos.cpu_hog" in attacker.checks and seen.share > 2 * attacker.limits["cpu_quota"] / 100_000:
            found["dos.cpu_hog"] = f"{seen.share:.0%} of a CPU"
    return found
