"""EXEC: runs commands until they end, in an agent's jail, on the host, or in a temporary jail."""

import contextlib
import errno
import itertools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator

import trio
from attrs import define, field
from msgspec import Struct

from agentos.agents.jail import errors
from agentos.agents.jail.errors import PROGRAM_STEPS, JailError
from agentos.agents.jail.factory import Jails
from agentos.agents.jail.jail import Jail, KernelAddress
from agentos.agents.jail.one_shot import OneShot
from agentos.agents.life.lifecycle import State
from agentos.agents.registry import Agent
from agentos.sandbox.cgroups import lifetime
from agentos.sandbox.cgroups.discover import Group
from agentos.sandbox.cgroups.values import CgroupEntry, CgroupError
from agentos.sandbox.cgroups.values import Limits as GroupLimits
from agentos.sandbox.errors import SandboxError, StepFailed
from agentos.sandbox.plan import plan_program, plan_unjailed
from agentos.sandbox.policy import BadPolicy, Limits, Program
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.status import Status
from agentos.sandbox.watch import processes
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.errors import BadRequest, Busy, CallError, QuotaExceeded, Timeout, Unavailable

from .fair_reader import Pipe
from .output_streams import Stream

SHELL = "/bin/bash"
# Commands at once. In a jail they count per kind of caller: operator and agents don't block each other.
MAX_PER_CALLER = 8
MAX_PER_FAMILY = 16  # one agent and all its descendants
MAX_PER_KIND = 64  # per kind of caller, in total
ENTER_TIMEOUT = 10.0  # seconds to enter a jail; programs inside may be able to stop the entering process
MAX_THREADS = 40  # that make and remove control groups; to remove one may take seconds
HANG_UP_SECONDS = 1.0  # from the end of its terminal until a program is killed
READ_SIZE = 64 << 10
PF_EXITING = 0x4  # process flag in /proc/PID/stat


class CommandRequest(Struct, frozen=True):
    """A command to run and its timeout. ``kind`` and ``caller`` are the kind and the id of the caller.

    ``type_into``, of a program with a terminal, gets our end of it and runs until it is cancelled.
    """

    program: Program
    timeout: float  # seconds
    kind: str
    caller: int
    stdout: Stream
    stderr: Stream
    type_into: Callable[[int], Awaitable[None]] | None = None


class CommandResult(Struct, frozen=True):
    """The result of a command."""

    status: Status
    timed_out: bool


class BesideAgent(Struct, frozen=True):
    """In an agent's jail, or unconfined if the agent has none; the command ends with the agent."""

    agent: Agent
    jail: Jail

    @classmethod
    def of(cls, agent: Agent) -> "BesideAgent":
        """Raises ``BadRequest`` if the agent doesn't run."""
        if agent.state is State.PAUSED:
            raise BadRequest(f"{agent.name} is paused: resume it first, since nothing in its jail moves")
        if agent.life.jail is None:
            raise BadRequest(f"{agent.name} is {agent.state}: expected an agent that is running")
        return cls(agent, agent.life.jail)


class OnHost(Struct, frozen=True):
    """On the host, as the kernel's own user."""


class OwnJail(Struct, frozen=True):
    """In a jail that is created for the command and removed afterwards."""


Limit = tuple[Hashable, int, str]
"""How many commands may run at once: the key under which they count, the maximum, and a text for the error."""


class Slots:
    """Places for running commands, numbered from 1 under each key."""

    def __init__(self) -> None:
        self._taken: set[tuple[Hashable, int]] = set()

    @contextlib.contextmanager
    def take(self, *limits: Limit) -> Iterator[int]:
        """Take a place under each limit; yields the number of the last. Raises ``Busy``."""
        places, number = [], 0
        for key, most, where in limits:
            number = next((n for n in range(1, most + 1) if (key, n) not in self._taken), 0)
            if not number:
                raise Busy(f"{most} commands run {where} already: there is room when one of them has ended")
            places.append((key, number))
        self._taken.update(places)
        try:
            yield number
        finally:
            self._taken.difference_update(places)


@define(eq=False)
class CommandRunner:
    """Runs commands for one kernel. On return all processes of a command have ended, even after cancellation."""

    jails: Jails
    _slots: Slots = field(factory=Slots)
    _threads: Limiter = field(factory=lambda: Limiter(MAX_THREADS))
    _count: Iterator[int] = field(factory=lambda: itertools.count(1))

    async def run(self, where: BesideAgent | OnHost | OwnJail, request: CommandRequest) -> CommandResult:
        """Run a command until it ends. Raises a ``CallError`` if it can't be run, or is ended with its agent."""
        turn: Hashable = request.caller
        limits: list[Limit] = [(turn, MAX_PER_CALLER, "for you")]
        if isinstance(where, BesideAgent):
            turn = (where.agent.id, request.kind)
            limits = [(turn, MAX_PER_CALLER, f"in the jail of {where.agent.name}")]
            limits += [(("family", where.agent.top.id, request.kind), MAX_PER_FAMILY, "beside it and its relatives")]
        with self._slots.take(
            *limits, (request.kind, MAX_PER_KIND, f"for callers of the kind {request.kind}")
        ) as number:
            async with contextlib.AsyncExitStack() as undo:
                around = None
                match where:
                    case BesideAgent(agent, jail):
                        undo.enter_context(jail.hold_for_command())
                        command = await undo.enter_async_context(self._enter(agent, jail, request.program))
                        around = jail.sandbox
                    case OnHost():
                        with _start_errors("the host", jailed=False):
                            entry = await self._create_cgroup(undo, self.jails.cgroups.root)
                            command = await self._start_unconfined(undo, request.program, None, entry)
                    case OwnJail():
                        owner = OneShot(request.program, number, next(self._count))
                        try:
                            command = (await undo.enter_async_context(self.jails.open(owner, KernelAddress))).sandbox
                        except JailError as error:
                            raise _explain_no_shell(str(error)) or error.error(str(error)) from None
                done = await self._read_until_end(command, request, turn, around)
                killed = done.status.signal == signal.SIGKILL and not done.timed_out
                if isinstance(where, BesideAgent) and killed and _is_ending(where.jail.sandbox):
                    place = "in its jail" if where.agent.spec.jailed else "beside it"
                    raise Unavailable(f"{where.agent.name} has ended, and the command {place} with it")
        return done

    @contextlib.asynccontextmanager
    async def _enter(self, agent: Agent, jail: Jail, program: Program) -> AsyncIterator[Sandbox]:
        """Start the program in the agent's sandbox and within its limits."""
        async with contextlib.AsyncExitStack() as undo:
            with _start_errors(agent.name, agent.spec.jailed, agent.spec.image):
                if jail.sandbox.status is not None:  # its cgroup is removed
                    raise SandboxError("the sandbox has ended")
                entry = await self._create_cgroup(undo, jail.group)
                if (policy := jail.parts.policy) is None:
                    command = await self._start_unconfined(undo, program, jail.limits, entry)
                    jail.sandbox.register_entered(command)
                else:
                    with trio.fail_after(ENTER_TIMEOUT):
                        steps = (*jail.way_in, plan_program(policy, program, jail.parts.host))
                        command = await self.jails.spawner.enter(jail.sandbox, steps, cgroup=entry)
                    self.jails.replace_waiting(steps)
                    undo.push_async_callback(command.kill)
                    self.jails.memory.join(agent.id, command.pid)  # the memory watcher counts it as part of the agent
            yield command

    async def _create_cgroup(self, undo: contextlib.AsyncExitStack, around: Group | None) -> CgroupEntry:
        """Create a nested cgroup to kill all of the command's processes. It has no limits of its own."""
        if around is None:
            return CgroupEntry()
        name = f"exec-{next(self._count)}"
        with trio.CancelScope(shield=True):
            group, entry = await run_in_thread(lifetime.create, around, name, GroupLimits(), limiter=self._threads)
            undo.push_async_callback(lifetime.remove, group, self._threads)
            undo.callback(entry.close)
        return entry

    async def _start_unconfined(
        self, undo: contextlib.AsyncExitStack, program: Program, limits: Limits | None, entry: CgroupEntry
    ) -> Sandbox:
        """Start the program without a sandbox, but with a keeper process that kills its descendants."""
        with trio.CancelScope(shield=True):  # from its first instruction on only the keeper can kill what it starts
            steps = plan_unjailed(program, self.jails.host, limits, keeper=True)
            command = await self.jails.spawner.spawn(steps, cgroup=entry)
            undo.push_async_callback(command.kill)
        return command

    async def _read_until_end(
        self, command: Sandbox, request: CommandRequest, owner: Hashable, around: Sandbox | None = None
    ) -> CommandResult:
        """Read the command's output until it ends, times out, or the program ``around`` it ends."""
        turns = self.jails.turns
        pipes = [
            Pipe(fd, turns, owner, READ_SIZE, stream.take, stream.wait_delivered)
            for fd, stream in ((command.stdout, request.stdout), (command.stderr, request.stderr))
        ]
        wrong: CallError | None = None

        async def type_in(type_into: Callable[[int], Awaitable[None]]) -> None:
            nonlocal wrong
            try:
                await type_into(command.stdout)
            except CallError as error:
                wrong = error
                patience.cancel()

        try:
            async with trio.open_nursery() as nursery:
                for pipe in pipes:
                    nursery.start_soon(pipe.run)
                if around is not None:
                    nursery.start_soon(_kill_after, around, command)
                patience = trio.CancelScope(deadline=trio.current_time() + request.timeout)
                if request.type_into is not None:
                    nursery.start_soon(type_in, request.type_into)
                try:
                    with patience:
                        await command.wait()
                except trio.Cancelled:
                    if request.type_into is not None:
                        await _hang_up(command)  # noqa: ASYNC102 - it shields itself
                    raise
                status = await command.kill()
                nursery.cancel_scope.cancel()
        finally:
            for pipe in pipes:
                pipe.finish()
        if wrong is not None:
            raise wrong
        return CommandResult(status, patience.cancelled_caught)


async def _hang_up(command: Sandbox) -> None:
    """Tell a program that its terminal is gone, and give it a moment to end by itself; shielded from cancellation."""
    command.signal(signal.SIGHUP)
    command.signal(signal.SIGCONT)
    with trio.move_on_after(HANG_UP_SECONDS, shield=True):
        await command.wait()


async def _kill_after(around: Sandbox, command: Sandbox) -> None:
    await around.wait()
    await command.kill()


def _is_ending(sandbox: Sandbox) -> bool:
    """Whether the sandbox's PID 1 is exiting: it waits for all processes inside, so these end earlier."""
    stat = processes.read_small_file(f"/proc/{sandbox.pid}/stat") if sandbox.status is None else b""
    return not stat or bool(int(stat[stat.rindex(b")") + 2 :].split()[6]) & PF_EXITING)


@contextlib.contextmanager
def _start_errors(where: str, jailed: bool, image: str | None = None) -> Iterator[None]:
    """Turn errors of a command's start into errors for the caller."""
    try:
        yield
    except trio.TooSlowError:
        cause = "a program inside may be stopping the process that enters"
        raise Timeout(f"no way into the jail of {where} within {ENTER_TIMEOUT:g} s: {cause}") from None
    except StepFailed as failure:
        raise _explain_step(failure, where, jailed, image) from None
    except (SandboxError, CgroupError, BadPolicy, OSError) as error:
        raise Unavailable(f"{where}: {errors.describe(error, 'the command')}") from None


def _explain_step(failure: StepFailed, where: str, jailed: bool, image: str | None) -> CallError:
    if failure.errno == errno.EAGAIN:
        full = errors.explain_full_group()
        if full.error is Unavailable:
            return Unavailable(f"{where}: {full}")
        return QuotaExceeded(f"{where} has used up its processes (max_pids): none is left for a command")
    if failure.step.startswith(PROGRAM_STEPS):
        error = errors.explain_program(failure, jailed, image)
        return _explain_no_shell(failure.text) or error.error(str(error))
    return Unavailable(f"no way into the jail of {where}: {failure}" if jailed else f"{where}: {failure}")


def _explain_no_shell(text: str) -> CallError | None:
    if not text.startswith(f"{SHELL}: No such file"):
        return None
    return Unavailable(f"a line for the shell is run by {SHELL}, and there is none: give a program and its arguments")
