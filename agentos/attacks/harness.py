"""The outside of an attack: sets up canaries, runs attackers in sandboxes, watches them, and judges.

How an attacker is started is a parameter: a function that takes shots and returns how each of them ended.
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
from .canaries import Canaries, disturbed, planted
from .inside.checks import BY_NAME
from .verdicts import Verdict, judge

ATTACKER = Path(__file__).parent / "inside"  # mounted as /agent
PROGRAM = "probe.py"
MIB = 1 << 20
PATIENCE = 25.0  # seconds for one check
DEFAULTS: Mapping[str, int] = {  # bytes, except cpu_quota: microseconds per 100 ms
    "memory": 512 * MIB,
    "max_pids": 64,
    "cpu_quota": 100_000,
    "open_files": 1024,
    "disk": 256 * MIB,
    "tmp": 64 * MIB,
    "inodes": 16384,
    "file_size": 256 * MIB,
}
TIGHT = {"max_pids": 40, "open_files": 200, "disk": 12 * MIB, "tmp": 6 * MIB, "inodes": 300, "file_size": 2 * MIB}
ALONE: Mapping[str, Mapping[str, int]] = {  # each in an agent of its own: may kill it, or is measured alone
    "proc.kill_everything": {},
    "dos.cpu_hog": {"cpu_quota": 20_000},
    **{
        f"dos.{name}": {"memory": 64 * MIB, "file_size": 64 * MIB}
        for name in (
            *("memory_bomb", "memory_of_many", "memory_in_files", "memory_in_hidden_files", "memory_in_flight"),
            "memory_in_segments",
        )
    },
}
ACCEPTED = {"surface.memfd_exec": "the agent may run any Python anyway"}
STRICT = tuple(name for name in BY_NAME if name.startswith("strict."))  # promised only by that level
ENDS_THE_AGENT = ("proc.kill_everything", *(name for name in ALONE if name.startswith("dos.memory")))


@frozen
class Shot:
    """One attacker in one sandbox: ``python probe.py ORDER``, with these limits."""

    word: str  # marks its command line
    checks: tuple[str, ...]
    order: str
    limits: Mapping[str, int]
    isolation: Literal["standard", "strict"] = "standard"


@frozen
class Ended:
    """The output of an attacker, how it ended, and whether it was killed."""

    out: str
    how: str
    killed: bool = False
    problem: str = field(default="")  # why the sandbox didn't start
    unavailable: str = ""  # why this host has no sandbox of the shot's level


@frozen
class Outcome:
    """How each of the shots ended, and the checks that are accepted to come through here, with the reason."""

    endings: Sequence[Ended]
    accepted: Mapping[str, str]


Run = Callable[[Sequence[Shot], Canaries], Outcome]


def attack(run: Run) -> list[Verdict]:
    """Run the attacks and judge them. Blocks."""
    with planted() as canaries:
        shots = _shots(canaries)
        words = frozenset(shot.word for shot in shots)
        with watch.Watch(words) as watching:
            outcome = run(shots, canaries)
        seen = {**disturbed(canaries), **_survivors(words), **_excesses(shots, watching)}
        said: dict[str, tuple[str, str]] = {}
        for shot, ended in zip(shots, outcome.endings, strict=True):
            said |= _said(shot, ended)
        return judge(said, seen, outcome.accepted)


def _shots(canaries: Canaries) -> list[Shot]:
    dos = [name for name in BY_NAME if name.startswith("dos.") and name not in ALONE]
    walls = [name for name in BY_NAME if not name.startswith("dos.") and name not in (*ALONE, *STRICT)]
    groups = [(tuple(walls), {}), (tuple(dos), TIGHT), *(((name,), limits) for name, limits in ALONE.items())]
    shots = [_shot(canaries, number, names, limits) for number, (names, limits) in enumerate(groups)]
    return [*shots, evolve(_shot(canaries, len(shots), STRICT, {}), isolation="strict")]


def _shot(canaries: Canaries, number: int, names: tuple[str, ...], limits: Mapping[str, int]) -> Shot:
    word = f"shot-{canaries.token}-{number}."
    told = {**DEFAULTS, **limits}
    targets: dict[str, Any] = {**canaries.targets, "limits": {**told, "cpu": told["cpu_quota"] / 100_000}}
    order = {"word": word, "checks": names, "targets": targets, "seconds": PATIENCE}
    return Shot(word, names, json.dumps(order), told)


def _said(shot: Shot, ended: Ended) -> dict[str, tuple[str, str]]:
    if ended.problem:
        return dict.fromkeys(shot.checks, ("unclear", ended.problem))
    if ended.unavailable:
        return dict.fromkeys(shot.checks, ("n/a", ended.unavailable))
    said = {}
    for line in ended.out.splitlines():
        if line.startswith("{"):
            one = json.loads(line)
            said[one["check"]] = (one["outcome"], one["detail"])
    for name in shot.checks:
        if name not in said:
            died = ended.killed and name in ENDS_THE_AGENT
            said[name] = ("tried" if died else "unclear", f"the agent ended: {ended.how}")
    return said


def _survivors(words: frozenset[str]) -> dict[str, str]:
    """Find attackers that are still alive after one second (dying takes a moment), and kill them."""
    for _look in range(20):
        left = watch.alive(words)
        if not left:
            return {}
        time.sleep(0.05)
    pids = sorted(pid for group in left.values() for pid in group)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return {"proc.daemon_outlives_sandbox": f"still alive: {pids}"}


def _excesses(shots: Sequence[Shot], watching: watch.Watch) -> dict[str, str]:
    found: dict[str, str] = {}
    for shot in shots:
        seen = watching.seen.get(shot.word)
        if seen is None:
            continue
        if seen.processes > shot.limits["max_pids"] + 1:
            found |= {name: f"{seen.processes} processes" for name in ("dos.fork_bomb",) if name in shot.checks}
        # Twice: without a cgroup RLIMIT_DATA holds it until the watcher's next round.
        if "dos.memory_bomb" in shot.checks and seen.memory > 2 * shot.limits["memory"] + 8 * MIB:
            found["dos.memory_bomb"] = f"{seen.memory // MIB} MiB"
        if "dos.cpu_hog" in shot.checks and seen.share > 2 * shot.limits["cpu_quota"] / 100_000:
            found["dos.cpu_hog"] = f"{seen.share:.0%} of a CPU"
    return found
