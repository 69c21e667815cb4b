"""Agents in overlays of a repository of 50,000 files: their starts, and what a change of 2,300 of them costs.

The floor of what reads or writes changes is a bare program that does so to the same files, on the same CPU and disk.
"""

import filecmp
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentos_sdk.opcodes import Op
from tests.speed.caller import Caller
from tests.speed.layers import repository
from tests.speed.layers.repository import FILES, git, make_repository, take_back
from tests.speed.place import Place
from tests.speed.processes import MeasurementError, Server, pinned
from tests.speed.results import Result, Row
from tests.speed.starts.jails import BARE, in_turn, spawned

OVERWRITTEN, ADDED, REMOVED = 1_600, 400, 300
CHANGED = OVERWRITTEN + ADDED + REMOVED
SIZE = 19_500  # bytes of each that is written
FORKS = 4
BIG = 100  # MB
STARTS = (Row(f"SPAWN in an overlay of {FILES:,} files: to its first call, more than in tmp", " ms", most=3),)
LOOKS = (
    Row(f"git status of {FILES:,} files, the first one in an overlay", " ms", most_ratio=3, floor="host"),
    Row(f"os.walk of {FILES:,} files in an overlay", " ms", most_ratio=1.5, floor="host"),
    Row(f"first write to a file of {BIG} MB in an overlay", " ms", floor="cp"),
)
CHANGES = (
    Row(f"{CHANGED:,} changes in an overlay: made", " ms", floor="host"),
    Row(f"{CHANGED:,} changes in an overlay: DIFF", " ms", floor="reading both"),
    Row(f"{CHANGED:,} changes in an overlay: SNAPSHOT of the running agent", " ms", floor="cp -a, sync"),
    Row(f"{CHANGED:,} changes in an overlay: FORK of {FORKS}, to the last first call", " ms", floor=f"{FORKS} SPAWNs"),
    Row(f"{CHANGED:,} changes in an overlay: SNAPSHOT of the ended agent", " ms", floor="sha256"),
    Row(f"{CHANGED:,} changes in an overlay: APPLY", " ms", floor="cp -a, sync"),
    Row(f"{CHANGED:,} changes in an overlay: UNDO", " ms", floor="cp -a, sync"),
)
ROWS = (*STARTS, *LOOKS, *CHANGES)

PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-c")
LOOK = """\
import os, subprocess, time
def took(act):
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1000
def status():
    if subprocess.check_output(["git", "status", "--porcelain"]): raise SystemExit("git found changes")
print(took(status), took(lambda: list(os.walk("."))), flush=True)
"""
GROW = """\
import time
begun = time.perf_counter()
with open("big", "r+b") as file: file.write(b"x")
print((time.perf_counter() - begun) * 1000, flush=True)
"""
CHANGE = f"""\
import os, time
begun = time.perf_counter()
def path_of(number): return f"dir-{{number % {repository.DIRECTORIES}}}/file-{{number // {repository.DIRECTORIES}}}"
def write(path, number):
    with open(path, "wb") as file: file.write(str(number).ljust({SIZE}).encode())
for number in range({OVERWRITTEN}): write(path_of(number), number)
for number in range({OVERWRITTEN}, {OVERWRITTEN + REMOVED}): os.unlink(path_of(number))
for number in range({ADDED}): write(f"dir-{{number}}/added", number)
print((time.perf_counter() - begun) * 1000, flush=True)
"""
PAUSE = "import signal\nsignal.pause()\n"
WAITING = f"{BARE}\n{PAUSE}"
# The first life of an agent; the forks of it, which find its changes, tell when they were answered first.
CHANGES_OR_WAITS = f"""\
import os, signal
if not os.path.exists("dir-0/added"):
    exec({CHANGE!r})
    signal.pause()
{WAITING}"""


def overlays(place: Place) -> Iterator[Result]:
    """On one CPU, the host's programs too. A copy of the repository takes what the floors write."""
    top, copy = place.directory / "repository", place.directory / "copy"
    with pinned(place.cpu), place.serve(timeout=30) as kernel, Caller(kernel.socket, timeout=60) as caller:
        make_repository(top)
        copied = timed(lambda: run("cp", "-a", str(top), str(copy)))
        yield starts(caller, top, copied, 10 if place.quick else 30)
        yield from looks(caller, top, copy, 2 if place.quick else 5)
        yield grows(caller, place.directory / "of-one", 2 if place.quick else 5)
        rounds = [change(caller, kernel, top, copy, number) for number in range(2 if place.quick else 4)]
        for row, pairs in zip(CHANGES, zip(*rounds, strict=True), strict=True):
            yield Result.of(row, [took for took, _ in pairs], [floor for _, floor in pairs])


def timed(act: Callable[[], object]) -> float:
    """Milliseconds."""
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1000


def run(*argv: str, cwd: Path | None = None) -> str:
    ended = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise MeasurementError(f"{argv[0]}: {ended.stderr[-500:]}")
    return ended.stdout


def in_overlay(name: str, top: Path, code: str) -> dict[str, Any]:
    """What SPAWN is asked for; its next life is none."""
    command = {"command": [*PYTHON, code], "restart": "temporary"}
    return {"name": name, **command, "workspace": str(top), "workspace_mode": "overlay"}


def said(caller: Caller, name: str) -> list[float]:
    """The numbers of the first line that an agent prints."""
    deadline = time.monotonic() + 60
    while not (lines := caller.lines(name)):
        if time.monotonic() > deadline:
            raise MeasurementError(f"{name} has printed nothing")
        time.sleep(0.01)
    try:
        return [float(word) for word in lines[0].split()]
    except ValueError:
        raise MeasurementError(f"{name} failed: {lines}") from None


def printed(caller: Caller, name: str, top: Path, code: str) -> list[float]:
    """The numbers that code prints in an overlay."""
    caller.ask(Op.SPAWN, in_overlay(name, top, f"{code}\n{PAUSE}"))
    numbers = said(caller, name)
    caller.ask(Op.KILL, {"name": name, "grace": 0})
    return numbers


def starts(caller: Caller, top: Path, copied: float, rounds: int) -> Result:
    ways: Mapping[str, Callable[[str], float]] = {
        "overlay": lambda name: spawned(caller, in_overlay(name, top, BARE)),
        "tmp": lambda name: spawned(caller, {"name": name, "command": [*PYTHON, BARE]}),
    }
    taken = in_turn(ways, rounds)
    more = [overlay - tmp for overlay, tmp in zip(taken["overlay"], taken["tmp"], strict=True)]
    return Result.of(STARTS[0], more, note=f"cp -a of them {copied / 1000:.1f} s")


def looks(caller: Caller, top: Path, copy: Path, rounds: int) -> Iterator[Result]:
    """A new agent for each round looks first, at files that are in memory."""
    here, there = [], []
    git(copy, "status")  # whose index has the files of the repository
    for number in range(rounds):
        there.append([float(word) for word in run(*PYTHON, LOOK, cwd=copy).split()])
        here.append(printed(caller, f"look-{number}", top, LOOK))
    for row, overlay, host in zip(LOOKS, zip(*here, strict=True), zip(*there, strict=True), strict=False):
        yield Result.of(row, overlay, host)


def grows(caller: Caller, top: Path, rounds: int) -> Result:
    """A byte is written, and the whole file is copied up for it."""
    top.mkdir()
    (top / "big").write_bytes(bytes(range(250)) * (BIG * 4000))
    here, there = [], []
    for number in range(rounds):
        there.append(timed(lambda: run("cp", str(top / "big"), str(top / "copy"))))
        (top / "copy").unlink()
        here += printed(caller, f"grow-{number}", top, GROW)
    return Result.of(LOOKS[2], here, there)


def change(caller: Caller, kernel: Server, top: Path, copy: Path, number: int) -> Sequence[tuple[float, float]]:
    """Milliseconds and those of the floor, for each row of ``CHANGES``."""
    name = f"change-{number}"
    pairs: list[tuple[float, float]] = []
    host = float(run(*PYTHON, CHANGE, cwd=copy))
    take_back(copy)
    caller.ask(Op.SPAWN, in_overlay(name, top, CHANGES_OR_WAITS))
    pairs.append((said(caller, name)[0], host))
    [upper] = (kernel.socket.parent / "state" / "layers" / name).glob("l-*/tree")

    compared = timed(lambda: compare(upper, top))
    found: dict[str, Any] = {}
    pairs.append((timed(lambda: found.update(caller.ask(Op.DIFF, {"name": name}))), compared))
    if len(found["changes"]) + found["more"] != CHANGED:
        raise MeasurementError(f"DIFF has found {len(found['changes']) + found['more']} changes")

    written = timed(
        lambda: (run("cp", "-a", "--no-preserve=ownership", f"{upper}/.", str(copy)), run("sync", "-f", str(copy)))
    )
    take_back(copy)
    pairs.append((timed(lambda: caller.ask(Op.SNAPSHOT, {"name": name, "label": "running"})), written))
    pairs.append(forked(caller, name))
    caller.ask(Op.KILL, {"name": name, "grace": 0})
    digested = timed(lambda: digest(upper))
    pairs.append((timed(lambda: caller.ask(Op.SNAPSHOT, {"name": name, "label": "ended"})), digested))

    shown = caller.ask(Op.DIFF, {"name": name})["digest"]
    pairs.append((timed(lambda: caller.ask(Op.APPLY, {"name": name, "digest": shown})), written))
    if len(git(top, "status", "--porcelain").splitlines()) != CHANGED:
        raise MeasurementError("APPLY has applied other changes")
    pairs.append((timed(lambda: caller.ask(Op.UNDO, {"name": name})), written))
    if left := git(top, "status", "--porcelain"):
        raise MeasurementError(f"UNDO has left changes: {left[:200]}")
    return pairs


def compare(upper: Path, lower: Path) -> int:
    """How many files differ."""
    found = 0
    for place, _, names in os.walk(upper):
        for name in names:
            here = os.path.join(place, name)
            there = lower / os.path.relpath(here, upper)
            same = os.path.isfile(here) and there.exists() and filecmp.cmp(here, there, shallow=False)
            found += not same
    return found


def digest(tree: Path) -> str:
    found = hashlib.sha256()
    for place, _, names in os.walk(tree):
        for name in names:
            if os.path.isfile(path := os.path.join(place, name)):
                found.update(Path(path).read_bytes())
    return found.hexdigest()


def forked(caller: Caller, name: str) -> tuple[float, float]:
    """Until the last of the forks is answered, and as many agents that are spawned one after the other."""
    plain, forks = ([f"{name}-{kind}-{number}" for number in range(FORKS)] for kind in ("plain", "fork"))

    begun = time.monotonic_ns()
    for each in plain:
        caller.ask(Op.SPAWN, {"name": each, "command": [*PYTHON, WAITING], "restart": "temporary"})
    floor = max(said(caller, each)[0] - begun for each in plain) / 1e6

    begun = time.monotonic_ns()
    caller.ask(Op.FORK, {"name": name, "snapshot": "running", "count": FORKS, "names": forks})
    took = max(said(caller, each)[0] - begun for each in forks) / 1e6

    for each in (*plain, *forks):
        caller.ask(Op.KILL, {"name": each, "grace": 0})
    return took, floor
