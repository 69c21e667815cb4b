"""From asking for a sandbox to the program's first byte, and what an idle agent costs, beside bubblewrap.

On the library, without a kernel; runs alone, too: ``python -m tests.speed.measure_spawn [--quick]``. Rounds are
interleaved and on one CPU, so that drift of the machine cancels in their quotients.
"""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from statistics import mean, median

import trio
from attrs import frozen

import agentos_sdk
from agentos.sandbox.plan import HostIds, plan_sandbox
from agentos.sandbox.policy import Interpreter, Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.spawner import Spawner
from agentos.sandbox.steps import Step
from tests.speed.place import Place
from tests.speed.proc import memory
from tests.speed.processes import MeasurementError
from tests.speed.results import Row, as_text, machine, ratio

PYTHON = Interpreter(sys.executable, sys.prefix, sys.base_prefix)
FIRST_BYTE = "import os; os.write(1, b'+')\n"
CONNECTED = """\
from agentos_sdk.blocking import AgentOSClient
import os
client = AgentOSClient(os.environ['AGENTOS_SOCKET'])
client.connect()
os.write(1, b'+')
client._socket.recv(1)
"""
BWRAP = ("bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
MIB = 1 << 20
REST = 0.01  # seconds before each, for what the one before it has left to the host's kernel to tidy up
AT_ONCE = 4  # spawned, where it is asked how many there can be
AGENTS = 10  # at a time, when they are weighed
_OUTER = HostIds(1610612736 + 65000, 1610612736 + 65000)


@frozen
class Bench:
    """A spawner, and what there is to spawn: a script that writes a byte, and one that connects and waits."""

    spawner: Spawner
    directory: Path
    rounds: int

    def plan(self, *argv: str, script: str, fast: bool, kernel: str | None = None) -> tuple[Step, ...]:
        policy = Policy(
            interpreter=PYTHON,
            sdk=str(Path(agentos_sdk.__file__).parent),
            script=str(self.directory / script),
            socket=kernel,
        )
        program = Program(argv, fast=fast)
        return plan_sandbox(policy, program, probe.read_host(), _OUTER if os.geteuid() == 0 else None)


def bwrap_argv(*argv: str) -> list[str]:
    """The nearest that bubblewrap comes to a sandbox of ours: all namespaces, the system's files read-only."""
    shown = [part for path in ("/usr", PYTHON.base_prefix) for part in ("--ro-bind", path, path)]
    links = [path for path in ("/bin", "/lib", "/lib64") if os.path.islink(path)]
    return [*BWRAP, *shown, *(part for path in links for part in ("--symlink", os.readlink(path), path)), *argv]


@contextlib.contextmanager
def a_bench(rounds: int, cpus: Collection[int]) -> Iterator[Bench]:
    """On these CPUs, as long as it lasts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    spawner = Spawner.start()
    try:
        with tempfile.TemporaryDirectory(prefix="speed-", dir="/tmp") as directory:
            os.chmod(directory, 0o755)
            Path(directory, "first.py").write_text(FIRST_BYTE)
            Path(directory, "idle.py").write_text(CONNECTED)
            yield Bench(spawner, Path(directory), rounds)
    finally:
        spawner.close()
        os.sched_setaffinity(0, before)


async def first_byte(sandbox: Sandbox) -> None:
    await trio.lowlevel.wait_readable(sandbox.stdout)
    if os.read(sandbox.stdout, 1) != b"+":
        os.set_blocking(sandbox.stderr, True)
        raise MeasurementError(f"the program said nothing: {os.read(sandbox.stderr, 4096).decode()}")


async def over(sandbox: Sandbox) -> None:
    await sandbox.kill()
    os.close(sandbox.stdout)
    os.close(sandbox.stderr)


def _spawned(bench: Bench, steps: tuple[Step, ...]) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        await bench.spawner.prepare_spare()  # as the kernel does after each agent
        await trio.sleep(REST)
        return await _spawn(bench, steps)

    return once


async def _spawn(bench: Bench, steps: tuple[Step, ...]) -> float:
    begun = time.perf_counter()
    sandbox = await bench.spawner.spawn(steps)
    await first_byte(sandbox)
    took = time.perf_counter() - begun
    await over(sandbox)
    return took


def _beside(argv: list[str]) -> Callable[[], Awaitable[float]]:
    path = shutil.which(argv[0])
    if path is None:
        raise MeasurementError(f"there is no {argv[0]} to compare with: install the package bubblewrap")

    async def once() -> float:
        await trio.sleep(REST)
        begun = time.perf_counter()
        pid = os.posix_spawn(path, argv, {"PATH": "/usr/bin:/bin"})  # noqa: ASYNC221 - as below
        _, status = os.waitpid(pid, 0)  # noqa: ASYNC222 - nothing else runs here
        if status != 0:
            raise MeasurementError(f"{' '.join(argv)}: status {os.waitstatus_to_exitcode(status)}")
        return time.perf_counter() - begun

    return once


async def _interleaved(ways: Mapping[str, Callable[[], Awaitable[float]]], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name, once in ways.items():
            took = await once()
            if number >= 2:  # the first ones read files that the others find in memory
                taken[name].append(took)
    return taken


def times(bench: Bench) -> list[Row]:
    """Spawn to the first byte, against bubblewrap from its start to the end of a program that does nothing."""
    python = (sys.executable, "-I", "-S", "/agent/first.py")
    ways = {
        "fast": _spawned(bench, bench.plan("/agent/first.py", script="first.py", fast=True)),
        "true": _beside(bwrap_argv("/bin/true")),
        "exec": _spawned(bench, bench.plan(*python, script="first.py", fast=False)),
        "python": _beside(bwrap_argv(os.path.realpath(sys.executable), "-I", "-S", "-c", "pass")),
    }
    taken = trio.run(_interleaved, ways, bench.rounds)
    return [
        _row("sandbox, fast: spawn to first byte (bwrap + true)", taken["fast"], taken["true"], 1.4, 0.005),
        _row("  exec'ed python -I -S (bwrap + the same)", taken["exec"], taken["python"], 1.3, None),
    ]


def _row(what: str, ours: list[float], theirs: list[float], most: float, seconds: float | None) -> Row:
    beside = ratio(ours, theirs)
    p50 = median(ours)
    return Row(
        what,
        f"{p50 * 1000:.2f} ms",
        f"{median(theirs) * 1000:.2f} ms",
        str(beside),
        f"<= {most:g} x" + (f", <= {seconds * 1000:g} ms" if seconds else ""),
        beside.middle <= most and (seconds is None or p50 <= seconds),
        {"p50_ms": p50 * 1000, "beside_ms": median(theirs) * 1000, "ratio": beside.middle},
    )


def rate(bench: Bench) -> list[Row]:
    """How many a second on all CPUs, each up to its first byte and its end; some end while others begin. Nothing is
    made ready."""
    steps = bench.plan("/agent/first.py", script="first.py", fast=True)
    each = bench.rounds

    async def some() -> None:
        for _ in range(each):
            await _spawn(bench, steps)

    async def many() -> float:
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(some)
        return AT_ONCE * each / (time.perf_counter() - begun)

    per_s = trio.run(many)
    return [
        Row(
            f"  fast: spawned and ended, {len(os.sched_getaffinity(0))} CPUs",
            f"{per_s:.0f}/s",
            target=">= 100/s",
            met=per_s >= 100,
            numbers={"per_s": per_s},
        )
    ]


def size(bench: Bench) -> list[Row]:
    """The memory of one of ten agents that have connected and wait, and of its PID 1; shared pages by their share."""
    path = str(bench.directory / "kernel.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o666)
        listener.listen()
        python = (
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys; sys.path[:0] = ['/sdk']; exec(open('/agent/idle.py').read())",
        )
        fast = trio.run(_weigh, bench, bench.plan("/agent/idle.py", script="idle.py", fast=True, kernel=path))
        exec_ = trio.run(_weigh, bench, bench.plan(*python, script="idle.py", fast=False, kernel=path))
    return [
        _weight(f"idle agent, fast: one of {AGENTS}, with its PID 1", fast, 5),
        _weight("  exec'ed with the SDK", exec_, 7),
    ]


async def _weigh(bench: Bench, steps: tuple[Step, ...]) -> tuple[float, float]:
    sandboxes: list[Sandbox] = []
    try:
        for _ in range(AGENTS):
            sandboxes.append(await bench.spawner.spawn(steps))
            await first_byte(sandboxes[-1])
        programs = [memory(sandbox.program).pss for sandbox in sandboxes]
        shims = [memory(sandbox.pid).pss for sandbox in sandboxes]
        return mean(programs), mean(shims)
    finally:
        for sandbox in sandboxes:
            await over(sandbox)


def _weight(what: str, found: tuple[float, float], most: int) -> Row:
    program, shim = (size / MIB for size in found)
    both = program + shim
    return Row(
        what,
        f"{both:.2f} MiB ({program:.2f} + {shim:.2f})",
        target=f"<= {most} MiB",
        met=both <= most,
        numbers={"program_mib": program, "pid1_mib": shim},
    )


def spawn(place: Place) -> list[Row]:
    """All of it, as rows of the whole measurement."""
    return rows(20 if place.quick else 100, place.cpu)


def rows(rounds: int, cpu: int) -> list[Row]:
    """Times and sizes on one CPU, where they can be compared; how many a second, on all that there are."""
    everywhere = os.sched_getaffinity(0)
    with a_bench(rounds, {cpu}) as bench:
        compared = [*times(bench), *size(bench)]
    with a_bench(rounds, everywhere) as bench:
        return [*compared, *rate(bench)]


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    about = machine()
    try:
        found = rows(20 if quick else 100, max(os.sched_getaffinity(0)))
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 1
    print(as_text(about, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
