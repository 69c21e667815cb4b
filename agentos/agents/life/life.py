"""One life of an agent: its socket, its program in a sandbox, its output and its children, in one nursery."""

import contextlib
import os
import pwd
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from typing import Protocol

import trio
from attrs import define, evolve, frozen

from agentos.agents.jail import filtered_network, layout, openai_endpoint
from agentos.agents.jail.errors import JailError
from agentos.agents.jail.factory import Jails
from agentos.agents.jail.filtered_network import FilteredNetwork, ServeNetwork
from agentos.agents.jail.isolation_report import lacking
from agentos.agents.jail.jail import Jail, KernelAddress, Unhealthy
from agentos.agents.jail.openai_endpoint import Endpoint, Serve, endpoint
from agentos.agents.jail.usage import complete_usage
from agentos.agents.registry import HASH_SEED, Agent, Registry, StartError, describe_end
from agentos.agents.spec import AgentSpec
from agentos.agents.tree.container import cancel_when
from agentos.agents.workspaces.view import View, view_from_jail
from agentos.kernel.background import Background
from agentos.kernel.caller import Caller
from agentos.kernel.wire.listener import ConnectionLimit, Listener, ListenError, Peer, listen
from agentos.kernel.wire.poller import Poller
from agentos.sandbox.files.root_files import SOCKET
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.status import Status
from agentos.sandbox.steps import SocketAddress
from agentos.services.events import AgentReady, AgentStopping
from agentos_sdk.errors import CallError, Unavailable
from agentos_sdk.values import End
from supervisors import Ended, Ignore

from .health import HealthChecks
from .leftover_processes import ID_VARIABLE, LIFE_VARIABLE, RUN_VARIABLE, Run, Sweeper, name_life
from .lifecycle import AT_START, State, Step
from .output import Pump
from .present import Life

MIN_UPTIME = 0.2  # seconds a program must stay alive after exec to count as started
READY_TIMEOUT = 30.0  # seconds for an agent with ready="hello" to send HELLO
NO_HELLO = f'it didn\'t say HELLO within {READY_TIMEOUT:g} s, and ready = "hello" waits for that'
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Resumed(Protocol):
    """Recorded answers for the calls of a life that goes on after a crash. ``over`` is set when one has no answer."""

    @property
    def over(self) -> trio.Event: ...

    def begin(self) -> None:
        """Have the agent's calls answered. The new life is recorded already."""

    def leave(self) -> str:
        """Report that the life has left the recorded one, which is why it ends; returns the reason."""

    def end(self) -> None:
        """Answer no call any more."""


@frozen
class LifeDeps:
    """The kernel's services that every life uses.

    ``host_view`` names the host's files. ``serve`` answers OpenAI-compatible requests; None disables them.
    ``serve_network`` serves the filtered network of a jail. ``find_ports`` are the TCP ports that the rules of a caller
    name. ``resume`` finds what a life goes on with, if the one before has crashed.
    """

    registry: Registry
    jails: Jails
    connection_limit: ConnectionLimit
    poller: Poller
    run: Run
    sweeper: Sweeper
    host_view: View
    health: HealthChecks
    background: Background
    serve: Serve | None
    serve_network: ServeNetwork
    find_ports: Callable[[Caller], Collection[int]]
    resume: Callable[[Agent], Awaitable[Resumed | None]]


@frozen
class LifeRunner:
    """The start function that a supervisor runs for each life of an agent."""

    agent: Agent
    deps: LifeDeps

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[Agent]) -> None:
        """Run one life, from opening the socket to the end of the program and of all agents that it spawned."""
        agent, registry = self.agent, self.deps.registry
        resumed = await self.deps.resume(agent) if agent.spec.on_crash == "resume" else None
        if AT_START[agent.wanted] is Step.DECLINE:  # a member of a group that is restarted around it
            raise Ignore
        life = registry.begin_life(agent)
        sockets = Sockets(f"{self.deps.run.directory}/{agent.id}.sock")
        status: Status | None = None
        try:
            async with trio.open_nursery() as nursery:
                life.nursery, life.spawns = nursery, True
                if agent.wish.requested:
                    agent.wish.request_start(False)
                else:
                    agent.restarts += agent.lives > 0
                agent.lives += 1
                life.since = trio.current_time()
                if resumed is not None:
                    resumed.begin()
                async with self._jail(life, sockets) as jail:
                    assert sockets.listener is not None, "it was opened for the jail"
                    sockets.serve(
                        Listener(
                            sockets.listener, self.deps.connection_limit, self.deps.poller, self._admit, is_agents=True
                        ),
                        nursery,
                    )
                    if sockets.http is not None:
                        assert sockets.http_listener is not None, "it was opened with the endpoint"
                        assert self.deps.serve is not None, "an endpoint is only opened if `serve` is given"
                        nursery.start_soon(self.deps.serve, sockets.http_listener, agent.caller, sockets.http.key)
                    if sockets.network is not None:
                        nursery.start_soon(self.deps.serve_network, sockets.network, agent.caller)
                    status = await self._run_program(life, jail, stop, task_status, resumed)
                nursery.cancel_scope.cancel()
        finally:
            life.close()
            sockets.close()
            if resumed is not None:
                resumed.end()
            self.deps.background.drop(agent.id)
            if not agent.spec.jailed:  # a jail leaves no processes behind
                self.deps.sweeper.add(agent.id, agent.lives)
        if stop.is_set():
            raise Ended("shutdown", status)
        if status != Status(0, None):
            raise Ended("crash", status)

    @contextlib.asynccontextmanager
    async def _jail(self, life: Life, sockets: "Sockets") -> AsyncIterator[Jail]:
        agent = self.agent
        ports = self.deps.find_ports(agent.caller) if agent.spec.network == "filtered" else ()

        def connect() -> KernelAddress:
            sockets.open(agent.spec, with_http=self.deps.serve is not None)
            inside = sockets.list_inside(agent.spec, ports)
            return KernelAddress(sockets.path, inside, environment(agent, self.deps.run, sockets.path, sockets.http))

        try:
            async with self.deps.jails.open(agent, connect) as jail:
                sockets.take_inside(agent, jail.sandbox, self.deps.jails.spawner)
                life.program, life.jail = jail.sandbox, jail
                life.layers, life.lacking = jail.layers, lacking(jail.layers)
                if agent.spec.jailed:
                    life.view = view_from_jail(self.deps.host_view, agent.spec, jail)
                replayed = agent.caller.replayed if agent.spec.has_own_network else None
                try:
                    with replayed.count_unsent(jail.sandbox.pid) if replayed else contextlib.nullcontext():
                        yield jail
                finally:
                    life.jail, life.view = None, None
                    life.used = complete_usage(jail)
        except ListenError as error:
            raise self._not_started(End(None, None, str(error))) from None
        except JailError as error:
            text = layout.replace_host_paths(
                str(error), agent.spec, agent.parent.spec if agent.parent is not None else None
            )
            raise self._not_started(End(None, None, text), error.error) from None

    async def _run_program(
        self,
        life: Life,
        jail: Jail,
        stop: trio.Event,
        task_status: trio.TaskStatus[Agent],
        resumed: Resumed | None,
    ) -> Status:
        """Run a started program until it ends; it has ended on return in every case."""
        agent, program, nursery = self.agent, jail.sandbox, life.nursery
        assert nursery is not None, "it is that around this"
        if resumed is not None:
            nursery.start_soon(end_diverged, resumed, jail)
        streams = {"stdout": program.stdout, "stderr": program.stderr}
        if agent.converse is not None:
            nursery.start_soon(agent.converse, agent, wrap_socket(streams.pop("stdout")))
        jails = self.deps.jails
        pumps = [Pump(fd, name, agent.output, jails.turns, jails.output_rate) for name, fd in streams.items()]
        for pump in pumps:
            pump.start(self.deps.poller, nursery)
        ready, problem = False, None
        try:
            problem = await self._wait_until_ready(life, program)
            called = agent.caller.greeted.is_set() if agent.spec.ready == "hello" else life.connected
            ready = problem is None and (program.status is None or called)  # it may have called and ended
            if ready:
                self.deps.registry.change(agent, AgentReady(agent.id, agent.name, agent.pid))
                agent.settle()
                task_status.started(agent)
                async with self.deps.health.watch(agent, jail):
                    await self._wait_for_end(life, program, stop, nursery)
        finally:
            status = await jail.end()  # noqa: ASYNC102 - it shields itself, and SIGKILL is soon over
            agent.end = describe_end(status, stop.is_set() or agent.wish.dismissed, jail.why(status))
            for pump in pumps:
                await pump.end()  # noqa: ASYNC102 - it shields itself
        if ready:
            return status
        if status == Status(0, None) and agent.declared and agent.spec.restart != "permanent":
            raise Ignore  # a short job that is done counts as success: a failed start would never be retried
        if problem is not None:
            raise self._not_started(End(status.code, status.signal, problem))
        raise self._not_started(agent.end, early=True)

    async def _wait_until_ready(self, life: Life, program: Sandbox) -> str | None:
        """Wait until the program ends, becomes ready, has lived long enough, or its agent is dismissed.

        Returns why it doesn't count as ready, or None.
        """
        agent = self.agent
        hello = agent.spec.ready == "hello"
        with trio.move_on_after(READY_TIMEOUT if hello else MIN_UPTIME) as life.start_scope:
            if hello and not agent.wish.dismissed:
                await wait_first(program.wait, agent.caller.greeted.wait)
            elif not life.connected and not agent.wish.dismissed:
                await program.wait()
        late, life.start_scope = life.start_scope.cancelled_caught and not agent.wish.dismissed, None
        return NO_HELLO if hello and late else None

    async def _wait_for_end(self, life: Life, program: Sandbox, stop: trio.Event, nursery: trio.Nursery) -> None:
        """Wait until the program has ended, or until its shutdown time after ``stop`` is over.

        The agents that it spawned end first.
        """
        agent = self.agent
        with trio.CancelScope() as running:
            nursery.start_soon(cancel_when, stop, running)
            await program.wait()
        life.spawns = False
        if life.children is not None:
            life.children.stop()
            await life.children.wait()
        if program.status is not None:
            return
        paused = agent.state is State.PAUSED
        self.deps.registry.change(agent, AgentStopping(agent.id, agent.name))
        if agent.shutdown_time == 0:
            return
        program.signal(signal.SIGTERM)
        program.signal(signal.SIGCONT)  # a stopped process receives it only then
        if paused:
            program.thaw()
        with trio.move_on_after(agent.shutdown_time) as life.stop_scope:
            await program.wait()
        life.stop_scope = None

    async def _admit(self, peer: Peer) -> Caller:
        self.agent.connect()
        return self.agent.caller

    def _not_started(self, end: End, error: type[CallError] = Unavailable, early: bool = False) -> StartError:
        """``early``: the program ended before it was ready; only the error that the spawner gets says so."""
        agent = self.agent
        agent.end = end
        reported = evolve(end, reason=f"{end.reason} before it was ready") if early else end
        if not early or end.exit_code != 0:
            agent.output.add("kernel", f"did not start: {reported.reason}")
        stderr = [line.text for line in agent.output.last(10, "stderr")]
        if not agent.declared:  # a declared one settles when its supervisor has reported the failure
            agent.settle(StartError(reported, stderr, error))  # not the raised one, which references all its frames
        return StartError(reported, stderr, error)


async def end_diverged(resumed: Resumed, jail: Jail) -> None:
    """End a program that asks something else than it was recorded to ask: the next life begins anew."""
    await resumed.over.wait()
    jail.exceeded(Unhealthy(resumed.leave()))


@define(eq=False)
class Sockets:
    """The sockets of one life: the kernel's at ``path``, and those of what else it has.

    Requests that programs send before anything is served wait in the backlog of ``http_listener`` and ``network``.
    """

    path: str
    listener: socket.socket | None = None
    served: Listener | None = None
    http: Endpoint | None = None
    http_listener: socket.socket | None = None
    network: FilteredNetwork | None = None

    def open(self, spec: AgentSpec, with_http: bool) -> None:
        """Raises :class:`~agentos.kernel.wire.listener.ListenError`. Blocks."""
        if with_http:
            self.http = endpoint(spec)
            self.http_listener = self.http.listener
        self.listener = listen(self.path)

    def list_inside(self, spec: AgentSpec, ports: Collection[int]) -> tuple[SocketAddress, ...]:
        """The sockets that the jail opens in its own network, if it has one."""
        http = (openai_endpoint.ADDRESS,) if self.http is not None and self.http_listener is None else ()
        return (*http, *(filtered_network.addresses(ports) if spec.network == "filtered" else ()))

    def take_inside(self, agent: Agent, jail: Sandbox, spawner: Spawner) -> None:
        """Take the sockets that the jail has opened, in the order of :meth:`list_inside`."""
        inside = list(jail.sockets)
        if self.http is not None and self.http_listener is None:
            self.http_listener = inside.pop(0)
        if agent.spec.network == "filtered":
            report = partial(agent.output.add, "kernel")
            self.network = FilteredNetwork.take(inside, partial(spawner.listen, jail), report)

    def serve(self, listener: Listener, connections: trio.Nursery) -> None:
        """Serve the kernel's socket."""
        self.served = listener
        listener.start(connections)

    def close(self) -> None:
        """Close what is open, and remove the kernel's socket."""
        if self.served is not None:
            self.served.stop()
        for one in (self.http_listener, self.network):
            if one is not None:
                one.close()
        if self.listener is not None:
            self.listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


async def wait_first(first: Callable[[], Awaitable[object]], *others: Callable[[], Awaitable[object]]) -> None:
    """Return when one of these has returned; the rest is cancelled. ``first`` needs no task of its own."""
    async with trio.open_nursery() as race:

        async def run(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            race.cancel_scope.cancel()

        for wait in others:
            race.start_soon(run, wait)
        await run(first)


def environment(agent: Agent, run: Run, path: str, http: Endpoint | None) -> dict[str, str]:
    """An agent's environment variables. None of the kernel's own are passed on, since they may hold secrets.

    A jail adds its own HOME and PATH.
    """
    told = agent.caller.replayed or agent
    outside = {} if agent.spec.jailed else {"PATH": PATH, "HOME": home(), "LANG": "C.UTF-8"}
    return {
        **outside,
        **(http.environment if http is not None else {}),
        **(filtered_network.ENVIRONMENT if agent.spec.network == "filtered" else {}),
        HASH_SEED: str(agent.hash_seed),
        **agent.spec.env,
        "AGENTOS_SOCKET": SOCKET if agent.spec.jailed else path,
        "AGENTOS_AGENT_NAME": told.name,
        ID_VARIABLE: str(told.id),
        RUN_VARIABLE: run.id,
        LIFE_VARIABLE: name_life(agent.id, agent.lives),
    }


def wrap_socket(fd: int) -> trio.SocketStream:
    """A stream over our end of a program's standard input and output; it takes the descriptor over."""
    return trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=fd)))


def home() -> str:
    """The operator's home directory; ``/`` for a uid without one, as in many containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"
