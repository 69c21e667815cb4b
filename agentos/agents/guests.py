"""A command beside an agent, in its jail: from its way in to its end, with what it wrote. It ends with the agent."""

import contextlib
import errno
import itertools
import signal
from collections.abc import AsyncIterator, Sequence

import trio
from attrs import define, field, frozen

from agentos.sandbox import census
from agentos.sandbox.cgroup_values import CgroupError, Ways
from agentos.sandbox.cgroup_values import Limits as GroupLimits
from agentos.sandbox.cgroups import Group
from agentos.sandbox.errors import SandboxError, StepFailed
from agentos.sandbox.handle import Sandbox
from agentos.sandbox.plan import enter
from agentos.sandbox.policy import BadPolicy, Policy, Program
from agentos.sandbox.status import Status
from agentos_sdk.errors import BadRequest, Busy, CallError, QuotaExceeded, Timeout, Unavailable

from .jail import NO_PROGRAM, Jail, Jails, refusal, remove
from .lifecycle import State
from .pipes import Pipe
from .registry import Agent

MOST = 8  # in one jail at once, the operator's and those of agents each: neither can keep the other out
WAY_IN = 10.0  # seconds; whoever is inside may be able to stop the process on its way
KEPT = 1 << 20  # bytes of each stream
READ_SIZE = 64 << 10
RATE = 16 << 20  # bytes per second read of a stream that is the only one; who writes faster waits, not the kernel
PF_EXITING = 0x4  # of a process's flags

_numbers = itertools.count(1)  # names for control groups, each used once


@frozen
class Done:
    """How it ended, and what it wrote."""

    status: Status
    timed_out: bool
    stdout: "Stream"
    stderr: "Stream"


@define(eq=False)
class Stream:
    """What came out of a pipe: the beginning is kept, the rest is dropped."""

    kept: bytearray = field(factory=bytearray)
    truncated: bool = False

    def take(self, data: bytes) -> float:
        room = KEPT - len(self.kept)
        self.kept += data[:room]
        self.truncated |= len(data) > room
        return len(data) / RATE


async def run(jails: Jails, agent: Agent, program: Program, timeout: float, who: str) -> Done:
    """Run a program in an agent's jail; nothing of it is left on return. ``who`` asks for it: one's own are bounded."""
    jail = agent.jail
    if agent.state is State.PAUSED:
        raise BadRequest(f"{agent.name} is paused: resume it first, since nothing in its jail moves")
    if jail is None:
        raise BadRequest(f"{agent.name} is {agent.state}: expected an agent that is running")
    if jail.policy is None:
        raise Unavailable(f"{agent.name} was started without a jail: there is none to run a command in")
    if jail.guests[who] >= MOST:
        raise Busy(f"{MOST} commands run in the jail of {agent.name} already: there is room when one of them has ended")
    jail.guests[who] += 1
    try:
        async with _entered(jails, agent, jail, jail.policy, program) as guest:
            out, err = Stream(), Stream()
            pipes = [
                Pipe(fd, jails.turns, (agent.id, who), READ_SIZE, stream.take)
                for fd, stream in ((guest.stdout, out), (guest.stderr, err))
            ]
            status, timed_out = await _accompany(agent, jail, guest, pipes, timeout)
            return Done(status, timed_out, out, err)
    finally:
        jail.guests[who] -= 1
        jail.left.unpark_all()


@contextlib.asynccontextmanager
async def _entered(jails: Jails, agent: Agent, jail: Jail, policy: Policy, program: Program) -> AsyncIterator[Sandbox]:
    """The program, behind the agent's walls and within its limits; killed and waited for at the end."""
    async with contextlib.AsyncExitStack() as undo:
        try:
            steps = enter(policy, program, jail.host)
            group: Group | None = None
            if jail.group is not None:
                group = await trio.to_thread.run_sync(_nest, jail.group)
                undo.push_async_callback(remove, group)
            ways = group.ways() if group is not None else Ways()
            undo.callback(ways.close)
            with trio.fail_after(WAY_IN):
                guest = await jails.spawner.enter(jail.sandbox, steps, into=ways)
        except trio.TooSlowError:
            text = f"no way into the jail of {agent.name} within {WAY_IN:g} s: what runs there may stop who comes in"
            raise Timeout(text) from None
        except StepFailed as failure:
            raise _refused(agent, failure) from None
        except (SandboxError, CgroupError, BadPolicy) as error:
            raise Unavailable(f"{agent.name}: {error}") from None
        except OSError as error:
            raise Unavailable(f"{agent.name}: {error.filename or 'the command'}: {error.strerror}") from None
        undo.push_async_callback(guest.kill)
        jails.memory.join(agent.id, guest.pid)  # where its memory is watched
        yield guest


def _nest(group: Group) -> Group:
    """One of its own, by which nothing of it can be left; the limits are the agent's. Blocks."""
    return group.nest(f"exec-{next(_numbers)}", GroupLimits())


def _refused(agent: Agent, failure: StepFailed) -> CallError:
    """What a failed step means to whoever wanted the command."""
    if failure.errno == errno.EAGAIN:
        return QuotaExceeded(f"{agent.name} has used up its processes (max_pids): none is left for a command")
    if failure.step.startswith(NO_PROGRAM):
        refused = refusal(agent.spec, failure)
        return refused.error(str(refused))
    return Unavailable(f"no way into the jail of {agent.name}: {failure}")


async def _accompany(
    agent: Agent, jail: Jail, guest: Sandbox, pipes: Sequence[Pipe], timeout: float
) -> tuple[Status, bool]:
    """Read and wait: how it ended, and whether its time had run out."""
    try:
        async with trio.open_nursery() as reading:
            for pipe in pipes:
                reading.start_soon(pipe.run)
            with trio.move_on_after(timeout) as patience:
                await guest.wait()
            status = await guest.kill()
            reading.cancel_scope.cancel()
    finally:
        for pipe in pipes:
            pipe.finish()
    if status.signal == signal.SIGKILL and not patience.cancelled_caught and _is_ending(jail.sandbox):
        raise Unavailable(f"{agent.name} has ended, and the command in its jail with it")
    return status, patience.cancelled_caught


def _is_ending(sandbox: Sandbox) -> bool:
    """Whether its PID 1 is on its way out: that waits for all that is inside, which so ends before."""
    stat = census.read(f"/proc/{sandbox.pid}/stat") if sandbox.status is None else b""
    return not stat or bool(int(stat[stat.rindex(b")") + 2 :].split()[6]) & PF_EXITING)
