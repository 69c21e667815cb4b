"""Health of running agents: a watchdog for their calls, and a command that checks them. An unhealthy agent is killed.

A life that is killed so is a failure like a crash: the supervisor decides what follows.
"""

import contextlib
import time
from collections.abc import AsyncIterator
from random import Random

import trio
from attrs import define, field

from agentos.agents.commands.output_streams import Tail
from agentos.agents.commands.run import BesideAgent, CommandRequest, CommandRunner
from agentos.agents.jail.jail import Jail, Unhealthy
from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import HealthCheck
from agentos.sandbox.files.root_files import WORKSPACE
from agentos.sandbox.policy import Program
from agentos.sandbox.status import Status
from agentos.services.events import AgentUnhealthy
from agentos_sdk.errors import CallError, Unavailable

from .lifecycle import State

LOOKS = 10  # of a watchdog in its time
MIN_LOOK_INTERVAL, MAX_LOOK_INTERVAL = 0.1, 5.0  # seconds
MAX_CHECKS = 8  # health commands at once, of all agents
MAX_LINES, MAX_REASON_CHARS = 3, 300  # of a failed check's output, in the reason


@define(eq=False)
class HealthChecks:
    """Watches the agents of one kernel that have a watchdog or a health command."""

    registry: Registry
    commands: CommandRunner
    _random: Random = field(factory=Random)
    _slots: trio.Semaphore = field(factory=lambda: trio.Semaphore(MAX_CHECKS))

    @contextlib.asynccontextmanager
    async def watch(self, agent: Agent, jail: Jail) -> AsyncIterator[None]:
        """Watch a running agent during the block."""
        watchdog, health = agent.spec.watchdog, agent.spec.health
        if watchdog is None and health is None:
            yield
            return
        async with trio.open_nursery() as checks:
            if watchdog is not None:
                checks.start_soon(self._watch_calls, agent, jail, watchdog)
            if health is not None:
                checks.start_soon(self._check_often, agent, jail, health)
            yield
            checks.cancel_scope.cancel()

    async def _watch_calls(self, agent: Agent, jail: Jail, limit: float) -> None:
        """Kill an agent that makes no call for ``limit`` seconds while none of its calls waits in the kernel.

        The time is counted look by look. A look that comes late isn't counted: this process, or the machine, was held
        up, and calls of the agent may not have been read. After the last counted look there is one more, for the same
        reason. Calls that are answered cost nothing here but the time that their connection notes.
        """
        activity, health = agent.caller.activity, agent.life.health
        interval = min(max(limit / LOOKS, MIN_LOOK_INTERVAL), MAX_LOOK_INTERVAL)
        last = activity.at
        while True:
            due = trio.current_time() + interval
            await trio.sleep_until(due)
            if activity.at != last or activity.waiting or agent.state is not State.RUNNING:
                last, health.idle = activity.at, 0.0
            elif trio.current_time() - due > interval:
                continue
            elif health.idle >= limit:
                self._end(agent, jail, f"watchdog: no call for {limit:g} s")
            else:
                health.idle += interval

    async def _check_often(self, agent: Agent, jail: Jail, check: HealthCheck) -> None:
        """Run the health command again and again; kill the agent after too many failures in a row."""
        health = agent.life.health
        # Drawn, so that agents that start together aren't checked together.
        await trio.sleep(check.interval * self._random.uniform(0.5, 1))
        while True:
            async with self._slots:
                if agent.state is State.RUNNING:
                    await self._check(agent, jail, check)
            if health.failures >= check.failures:
                self._end(agent, jail, f"health check failed ({health.failures} in a row): {health.problem}")
            await trio.sleep(check.interval * self._random.uniform(0.9, 1.1))

    async def _check(self, agent: Agent, jail: Jail, check: HealthCheck) -> None:
        """Run the health command once and record the result, unless the agent was paused or stopped meanwhile."""
        health, pauses, out, err = agent.life.health, agent.pauses, Tail(), Tail()
        directory = agent.spec.cwd or (WORKSPACE if agent.spec.jailed else "/")
        program = Program(tuple(check.command), jail.parts.environment, directory)
        request = CommandRequest(program, check.timeout, "health", agent.id, out, err)
        problem: str | None = None
        is_counted = True
        try:
            done = await self.commands.run(BesideAgent(agent, jail), request)
            if done.timed_out:
                problem = f"no end within {check.timeout:g} s"
            elif done.status != Status(0, None):
                problem = str(done.status)
        except Unavailable as error:  # this process lacks something: that says nothing about the agent
            problem, is_counted = f"can't be run: {error}", False
        except CallError as error:
            problem = str(error)
        if agent.state is not State.RUNNING or agent.pauses != pauses:
            return
        lines = last_lines(out, err) if problem is not None else ""
        health.checked_at, health.problem = time.time(), f"{problem}: {lines}" if lines else problem
        if is_counted:
            health.failures = 0 if problem is None else health.failures + 1

    def _end(self, agent: Agent, jail: Jail, reason: str) -> None:
        """Report an agent as unhealthy and kill it, unless it is ending already."""
        if agent.state is State.RUNNING and jail.sandbox.status is None and jail.over is None:
            self.registry.change(agent, AgentUnhealthy(agent.id, agent.name, reason))
            jail.exceeded(Unhealthy(reason))


def last_lines(*streams: Tail) -> str:
    """The last lines of a check's output, in one line of bounded length."""
    text = "\n".join(bytes(stream.kept).decode(errors="replace") for stream in streams)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-MAX_LINES:])[-MAX_REASON_CHARS:]
