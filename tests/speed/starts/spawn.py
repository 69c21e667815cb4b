"""From asking for a sandbox to the program's first byte, and what an idle agent costs, beside bubblewrap.

On the library, without a kernel. Rounds are interleaved and on one CPU, so that drift of the machine cancels in their
quotients.
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
from statistics import mean

import trio
from attrs import frozen

import agentos_sdk
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import Interpreter, Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from agentos_sdk.values import HostIds
from tests.speed.place import Place
from tests.speed.proc import memory
from tests.speed.processes import MeasurementError
from tests.speed.results import Result, Row

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
ROUNDS = 5  # of the rate
ROWS = (
    Row("sandbox, fast: spawn to first byte", " ms", most=5, most_ratio=1.4, floor="bwrap + true"),
    Row("sandbox, exec'ed python -I -S: spawn to first byte", " ms", most_ratio=1.3, floor="bwrap + python"),
    Row(f"idle agent, fast: one of {AGENTS}, with its PID 1", " MiB", most=5),
    Row(f"idle agent, exec'ed with the SDK: one of {AGENTS}, with its PID 1", " MiB", most=6),
    Row("sandbox, fast: spawned and ended, all CPUs", "/s", least=100, more=True),
)
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
        await bench.spawner.builder.build(steps)  # as the kernel does after each agent
        await trio.sleep(REST)
        return await _spawn(bench, steps)

    return once


async def _spawn(bench: Bench, steps: tuple[Step, ...]) -> float:
    """Milliseconds."""
    begun = time.perf_counter()
    sandbox = await bench.spawner.spawn(steps)
    await first_byte(sandbox)
    took = (time.perf_counter() - begun) * 1000
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
        return (time.perf_counter() - begun) * 1000

    return once


async def _interleaved(ways: Mapping[str, Callable[[], Awaitable[float]]], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name, once in ways.items():
            took = await once()
            if number >= 2:  # the first ones read files that the others find in memory
                taken[name].append(took)
    return taken


def times(bench: Bench) -> Iterator[Result]:
    """Spawn to the first byte, against bubblewrap from its start to the end of a program that does nothing."""
    python = (sys.executable, "-I", "-S", "/agent/first.py")
    ways = {
        "fast": _spawned(bench, bench.plan("/agent/first.py", script="first.py", fast=True)),
        "true": _beside(bwrap_argv("/bin/true")),
        "exec": _spawned(bench, bench.plan(*python, script="first.py", fast=False)),
        "python": _beside(bwrap_argv(os.path.realpath(sys.executable), "-I", "-S", "-c", "pass")),
    }
    taken = trio.run(_interleaved, ways, bench.rounds)
    yield Result.of(ROWS[0], taken["fast"], taken["true"])
    yield Result.of(ROWS[1], taken["exec"], taken["python"])


def rate(bench: Bench) -> Iterator[Result]:
    """How many a second on all CPUs, each up to its first byte and its end; some end while others begin. Nothing is
    made ready."""
    steps = bench.plan("/agent/first.py", script="first.py", fast=True)

    async def some(each: int) -> None:
        for _ in range(each):
            await _spawn(bench, steps)

    async def many() -> list[float]:
        rates, each = [], max(1, bench.rounds // ROUNDS)
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(some, each)
            rates.append(AT_ONCE * each / (time.perf_counter() - begun))
        return rates

    yield Result.of(ROWS[4], trio.run(many))


def size(bench: Bench) -> Iterator[Result]:
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
    yield _weight(ROWS[2], fast)
    yield _weight(ROWS[3], exec_)


async def _weigh(bench: Bench, steps: tuple[Step, ...]) -> tuple[list[float], list[float]]:
    """MiB of the programs and of their PID 1s."""
    sandboxes: list[Sandbox] = []
    try:
        for _ in range(AGENTS):
            sandboxes.append(await bench.spawner.spawn(steps))
            await first_byte(sandboxes[-1])
        programs = [memory(sandbox.program).pss / MIB for sandbox in sandboxes]
        return programs, [memory(sandbox.pid).pss / MIB for sandbox in sandboxes]
    finally:
        for sandbox in sandboxes:
            await over(sandbox)


def _weight(row: Row, found: tuple[list[float], list[float]]) -> Result:
    program, shim = map(mean, found)
    both = [sum(pair) for pair in zip(*found, strict=True)]
    return Result.of(row, both, note=f"{program:.2f} + {shim:.2f}")


def sandbox(place: Place) -> Iterator[Result]:
    """Times and sizes on one CPU, where they can be compared; how many a second, on all that there are."""
    rounds = 20 if place.quick else 40
    with a_bench(rounds, {place.cpu}) as bench:
        yield from times(bench)
        yield from size(bench)
    with a_bench(rounds, os.sched_getaffinity(0)) as bench:
        yield from rate(bench)
