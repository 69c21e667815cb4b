"""MCP servers: one instance for each agent that uses a server, or one for all, as a supervised agent in a jail.

An instance is started when it is first used, restarted when it dies, and ended when the agent that uses it is over. Its
rights are those of its table in the configuration, never those of that agent.
"""

import contextlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import trio
from attrs import define, field
from msgspec.structs import replace

from agentos.agents.jail.jail import Unhealthy
from agentos.agents.life.lifecycle import State
from agentos.agents.registry import Agent, StartError
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.llm.line import Line
from agentos.services.events import AgentOver
from agentos.services.http.secrets import read_source
from agentos.threads import run_in_thread
from agentos_sdk.clients.suggestions import suggest_name
from agentos_sdk.errors import Busy, CallError, NotFound, PermissionDenied, Timeout, Unavailable

from .connection.requests import Requests
from .connection.sdk import load_sdk
from .pins import Pins, Split
from .result import CallResult
from .session import Session, Transport
from .settings import ServerSettings
from .tool import Tool

log = logging.getLogger("agentos.mcp")

MAX_INSTANCES: Final = 64
MAX_OF_FAMILY: Final = 16  # instances of an agent with all its descendants, or of a guest
IDLE_SECONDS: Final = 300.0  # without a call, after which an instance that belongs to no agent is ended
CHECK_SECONDS: Final = 10.0  # that a server has for an answer after a call of a tool took too long
RETRY_SECONDS: Final = 10.0  # from the end of an instance that was given up until the next one may begin
GRACE: Final = 2.0  # seconds that a server has to end
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
BAD_NAME: Final = "its name can't be used: a tool's name has 1 to 128 letters, digits, _, -, . and /"

Key = tuple[str, int | str]  # the server, and whose instance it is
SHARED: Final = ""

OpenRemote = Callable[[ServerSettings], Transport]
"""The transport to a server at a URL."""


@define(eq=False)
class Instance:
    """``family`` is that of the caller that it was started for. ``running`` is the task of a remote one."""

    key: Key
    session: Session
    family: str
    agent: Agent | None = None
    running: trio.CancelScope = field(factory=trio.CancelScope)
    over_at: float = math.inf  # trio's clock: when it was given up


@define(eq=False)
class Servers:
    """All MCP servers of one kernel. :meth:`serve` has to run. ``find_owner`` is the operator, who spawns instances."""

    settings: Mapping[str, ServerSettings]
    supervision: Supervision
    find_owner: Callable[[], Caller]
    line: Line
    pins: Pins
    open_remote: OpenRemote | None = None
    _instances: dict[Key, Instance] = field(factory=dict)
    _nursery: trio.Nursery | None = None

    async def serve(self) -> None:
        """Run instances, and end idle ones, until cancelled."""
        warn(self.settings.values())
        async with trio.open_nursery() as self._nursery:
            while True:
                await trio.sleep(IDLE_SECONDS / 5)
                idle_since = trio.current_time() - IDLE_SECONDS
                for instance in [*self._instances.values()]:
                    session = instance.session
                    if isinstance(instance.key[1], str) and not session.calls and session.used_at < idle_since:
                        self._end(instance, "was ended: nothing used it")

    def forget_agent(self, event: AgentOver) -> None:
        """End the instances of an agent that is over, and forget those that are over; a subscriber."""
        for instance in [*self._instances.values()]:
            if instance.key[1] == event.agent_id:
                self._end(instance, "was ended with the agent that used it")
            elif instance.agent is not None and instance.agent.id == event.agent_id:
                end = instance.agent.end
                why = f"has ended: {end.reason if end is not None else 'it never began'}"
                if instance.agent.state is State.FAILED:
                    self._give_up(instance, why)
                else:  # it was killed by request
                    self._end(instance, why)

    def replace(self, settings: Mapping[str, ServerSettings]) -> Sequence[str]:
        """Use these settings from now on; instances of servers that differ are ended. Returns the servers' names."""
        changed = find_changed(self.settings, settings)
        warn(settings[name] for name in changed if name in settings)
        self.settings = settings
        for instance in [*self._instances.values()]:
            if instance.key[0] in changed:
                self._end(instance, "was ended: the configuration has changed")
        return changed

    # -- What callers do -------------------------------------------------------------------------------------------

    def get_settings(self, server: str) -> ServerSettings:
        """Raises ``NotFound``."""
        if server not in self.settings:
            known = suggest_name(server, self.settings)
            raise NotFound(f"there is no MCP server {server[:64]!r}{known}: `agentos mcp add` adds one")
        return self.settings[server]

    async def list_tools(self, caller: Caller, server: str) -> Split:
        """The tools of a server as they are now. Raises ``CallError``."""
        session = self._find_instance(caller, server).session
        return self._split(server, await session.list_tools(), session.refused)

    async def call_tool(
        self, call: Call, server: str, tool: str, arguments: Mapping[str, object], timeout: float | None
    ) -> CallResult:
        """Call a tool. Raises ``CallError``: ``NotFound`` without such a tool, ``PermissionDenied`` if it is withheld.

        ``timeout`` is in seconds; None: as configured.
        """
        instance = self._find_instance(call.caller, server)
        patience = timeout if timeout is not None else instance.session.settings.timeout
        with trio.move_on_after(patience):
            return await self._call_tool(instance.session, call, server, tool, arguments)
        if self._nursery is not None:
            self._nursery.start_soon(self._check_alive, instance)
        raise Timeout(f"{server}.{tool} hasn't answered within {patience:g} s")

    async def _call_tool(
        self, session: Session, call: Call, server: str, tool: str, arguments: Mapping[str, object]
    ) -> CallResult:
        split = self._split(server, await session.find_tools(), session.refused)
        if tool in split.withheld:
            raise PermissionDenied(f"{server}.{tool} is withheld: {split.withheld[tool]}")
        names = [one.name for one in split.pinned]
        if tool not in names:
            raise NotFound(f"the MCP server {server} has no tool {tool[:128]!r}{suggest_name(tool, names)}")
        return await session.call_tool(call, tool, arguments)

    async def _check_alive(self, instance: Instance) -> None:
        """End a server that answers nothing at all: it is started again, a program by its supervisor."""
        session, agent = instance.session, instance.agent
        if session.checking or not session.is_connected or (agent is not None and agent.state is not State.RUNNING):
            return
        session.checking, alive = True, False
        try:
            with trio.move_on_after(min(CHECK_SECONDS, session.settings.timeout)):
                with contextlib.suppress(CallError):
                    await session.list_tools()
                alive = True
        finally:
            session.checking = False
        if alive:
            return
        if agent is None:
            self._end(instance, "was ended: it answers nothing")
        elif agent.life.jail is not None:
            agent.life.jail.exceeded(Unhealthy("it answers nothing"))

    def _split(self, server: str, tools: Sequence[Tool], refused: Mapping[str, str]) -> Split:
        """The tools of a server, those that can't be used among the withheld."""
        unusable = {tool.name[:128]: BAD_NAME for tool in tools if not TOOL_NAME.fullmatch(tool.name)}
        unusable |= {name[:128]: why for name, why in refused.items()}
        split = self.pins.split(server, [tool for tool in tools if TOOL_NAME.fullmatch(tool.name)])
        return replace(split, withheld={**unusable, **split.withheld})

    # -- Instances -------------------------------------------------------------------------------------------------

    def _find_instance(self, caller: Caller, server: str) -> Instance:
        """The instance for this caller, which may be starting. Raises ``NotFound``, ``Busy``, ``Unavailable``."""
        settings = self.get_settings(server)
        owner = SHARED if settings.share == "all" else caller.id if caller.kind == "agent" else caller.shown_name
        key = (server, owner)
        instance = self._instances.get(key)
        if instance is not None and instance.session.problem is not None:
            left = instance.over_at + RETRY_SECONDS - trio.current_time()
            if left > 0:
                problem = f"the MCP server {server} {instance.session.problem}"
                raise Unavailable(f"{problem}; it may be started again in {math.ceil(left)} s")
            del self._instances[key]
            instance = None
        if instance is None:
            instance = self._begin(key, settings, caller)
        return instance

    def _begin(self, key: Key, settings: ServerSettings, caller: Caller) -> Instance:
        if self._nursery is None:
            raise Unavailable("the kernel is starting or stopping: no MCP server can be used")
        self._check_room(caller)
        session = Session(settings, Requests(settings.name, self.line, settings.sampling))
        instance = self._instances[key] = Instance(key, session, caller.family)
        if settings.url is not None:
            self._nursery.start_soon(self._run_remote, instance)
        else:
            self._nursery.start_soon(self._start, instance, f"mcp.{settings.name}.{caller.shown_name}")
        return instance

    def _check_room(self, caller: Caller) -> None:
        live = [one for one in self._instances.values() if one.session.problem is None]
        if len(live) >= MAX_INSTANCES:
            raise Busy(f"{MAX_INSTANCES} instances of MCP servers run already: try again later")
        if caller.family and sum(one.family == caller.family for one in live) >= MAX_OF_FAMILY:
            raise Busy(f"{MAX_OF_FAMILY} instances of MCP servers run for {caller.name} and its relatives already")

    async def _start(self, instance: Instance, name: str) -> None:
        """Start a server's program; raises nothing: callers that wait for the session get the error."""
        session = instance.session
        settings, spec = session.settings, session.settings.spec
        assert spec is not None, "a server has a URL or a program"
        if instance.key[1] == SHARED:
            name = f"mcp.{settings.name}"
        try:
            await run_in_thread(load_sdk)
            values = await run_in_thread(read_secrets, settings)
            session.secrets = list(values.values())
            spec = replace(spec, name=self._choose_name(name, instance), env={**spec.env, **values})
            if session.problem is None:
                instance.agent = await self.supervision.spawn(spec, self.find_owner(), None, session.converse)
        except StartError as error:
            self._give_up(instance, f"did not start: {error.end.reason}")
        except CallError as error:
            self._give_up(instance, f"did not start: {error}")
        if session.problem is not None and instance.agent is not None:  # it was ended meanwhile
            await self.supervision.kill(instance.agent, GRACE, "kernel")

    async def _run_remote(self, instance: Instance) -> None:
        session = instance.session
        if self.open_remote is None:
            self._give_up(instance, "can't be reached: this kernel has no way to servers at a URL")
            return
        try:
            await run_in_thread(load_sdk)
            with instance.running:
                self._give_up(instance, await session.run(self.open_remote(session.settings), lambda: None, None))
        except CallError as error:
            self._give_up(instance, str(error))

    def _choose_name(self, wanted: str, instance: Instance) -> str:
        """A free name for an instance's agent, which says to the operator which agent the instance serves."""
        name, registry = re.sub(r"[^A-Za-z0-9._-]", "-", wanted), self.supervision.registry
        if len(name) <= 64 and not registry.is_taken(name):
            return name
        owner = instance.key[1] if isinstance(instance.key[1], int) else 0
        tries = (f"{name[:48]}.{owner}.{number}" for number in range(1, MAX_INSTANCES + 2))
        return next(one for one in tries if not registry.is_taken(one))

    def _give_up(self, instance: Instance, problem: str) -> None:
        """It is over: calls fail with this, and for a while no other is started."""
        instance.over_at = trio.current_time()
        instance.session.end(problem)

    def _end(self, instance: Instance, problem: str) -> None:
        """End it; the next use starts another."""
        self._instances.pop(instance.key, None)
        instance.session.end(problem)
        instance.running.cancel()
        if instance.agent is not None and not instance.agent.over.is_set() and self._nursery is not None:
            self._nursery.start_soon(self.supervision.kill, instance.agent, GRACE, "kernel")


def warn(settings: Iterable[ServerSettings]) -> None:
    """Log what the operator should know of these servers."""
    for one in settings:
        if one.warning is not None:
            log.warning("%s", one.warning)


def find_changed(old: Mapping[str, ServerSettings], new: Mapping[str, ServerSettings]) -> Sequence[str]:
    """The names of servers that were added, removed or changed."""
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]


def read_secrets(settings: ServerSettings) -> Mapping[str, str]:
    """The values of the secret variables. Blocks. Raises ``Unavailable``."""
    values = {}
    for name, source in settings.secrets.items():
        try:
            values[name] = read_source(source, os.environ)
        except ValueError as error:
            raise Unavailable(f"env.{name}: {error}") from None
    return values
