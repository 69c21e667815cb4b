"""Holding an agent's program still, so that its files can be copied as they are at one instant."""

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable

import trio

from agentos.agents.jail.jail import Jail
from agentos.agents.registry import Agent
from agentos.sandbox.cgroups.discover import Group
from agentos.sandbox.cgroups.values import CgroupError
from agentos.sandbox.watch import processes
from agentos.threads import run_in_thread
from agentos_sdk.errors import Busy, Unavailable

from .lifecycle import State
from .present import Life

TIMEOUT = 5.0  # seconds in which all processes must have stopped; it takes milliseconds
POLL_INTERVAL = 0.002  # seconds: Linux tells of no such change
_STILL = (b"T", b"t", b"Z", b"X")  # of proc(5): stopped, traced, ended


@contextlib.asynccontextmanager
async def hold_still(agent: Agent | None) -> AsyncIterator[bool]:
    """Freeze all processes of an agent's jail, or stop them by a signal; yields whether there is a program.

    Waits while another task holds it still. No command can be started in it meanwhile, and the kernel's own writes to
    its files wait. Raises ``Busy`` while it starts or stops, and ``Unavailable`` if they can't be stopped, or if
    signals have stopped them and the agent was resumed or ended meanwhile.
    """
    if agent is None or (agent.life.jail is None and not agent.alive):
        yield False
        return
    life, jail = agent.life, agent.life.jail
    if jail is None or not isinstance(life, Life) or agent.state not in (State.RUNNING, State.PAUSED):
        raise Busy(f"{agent.name} is {agent.state}: try again when it runs or has ended")
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(life.still)  # the first of two copies to end would let it go on
        with trio.move_on_after(TIMEOUT) as waiting:
            await stack.enter_async_context(life.writes.hold())
        if waiting.cancelled_caught:
            raise Unavailable(f"{agent.name}: a WRITE of its goes on for {TIMEOUT:g} s, so its files aren't copied")
        if life.jail is not jail:
            raise Busy(f"{agent.name} has just ended: try again")
        async with _hold_program(agent, jail):
            yield True


@contextlib.asynccontextmanager
async def _hold_program(agent: Agent, jail: Jail) -> AsyncIterator[None]:
    sandbox, group = jail.sandbox, jail.group
    if group is not None and await _freeze(group):
        try:
            sandbox.frozen = True
            yield
        finally:
            _thaw(group)
            sandbox.frozen = agent.state is State.PAUSED
        return
    before = (agent.state, agent.lives)
    try:
        sandbox.freeze()
        await run_in_thread(_wait_until_still, agent.name, sandbox.list_roots())
        yield
        if before != (agent.state, agent.lives):
            raise Unavailable(f"{agent.name} was resumed, or has ended, while it was copied: try again")
    finally:
        if agent.state is not State.PAUSED:
            sandbox.thaw()


async def _freeze(group: Group) -> bool:
    with trio.CancelScope(shield=True):  # it must be thawed if it was frozen
        try:
            await run_in_thread(group.freeze)
        except CgroupError:  # no freezer, or some process can't be frozen: signals tell why
            await run_in_thread(_thaw, group)
            return False
    return True


def _thaw(group: Group) -> None:
    with contextlib.suppress(CgroupError):  # it has no freezer, or was removed with all that was in it
        group.thaw()


def _wait_until_still(name: str, roots: Iterable[int]) -> None:
    """Return when all processes below these PIDs 1 have stopped."""
    deadline, started = time.monotonic() + TIMEOUT, {root: processes.root_start_times(root) for root in roots}
    while moving := [pid for pid in _list_processes(started) if not _is_still(pid)]:
        if time.monotonic() > deadline:
            raise Unavailable(f"{name}: its process {moving[0]} can't be stopped, so its files aren't copied")
        time.sleep(POLL_INTERVAL)


def _list_processes(started: dict[int, dict[int, int]]) -> list[int]:
    """All processes but the PIDs 1, which write to no file."""
    found = processes.ProcessCache().list_by_group(started)
    return [one.pid for own in found.values() for one in own if one.pid not in started]


def _is_still(pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        return True
    states = [processes.read_small_file(f"/proc/{pid}/task/{thread}/stat") for thread in threads]
    return all(not state or state[state.rindex(b")") + 2 :].split()[0] in _STILL for state in states)
