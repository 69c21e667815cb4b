"""Kernel startup and shutdown: constructs all services in order, builds the call table and runs the agent tree."""

import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import trio
from attrs import frozen

from agentos import __version__
from agentos.agents.event_lines import add_to_output, log_event
from agentos.agents.life import LifeDeps, home
from agentos.agents.registry import Registry
from agentos.agents.supervision import SpawnLimits, Supervision, why
from agentos.config.load import Config
from agentos.database import DatabaseError, open_database
from agentos.llm import budgets
from agentos.llm.budgets import Budgets
from agentos.llm.line import Line
from agentos.llm.settings import Account, LLMSettings, Share
from agentos.private_files import check_file, check_parents, describe
from agentos.sandbox.errors import SandboxError
from agentos.sandbox.plan import CODE, WORKSPACE
from agentos.sandbox.spawner import Spawner
from agentos.services.events import Events, KernelStarted, KernelStopping, Subscriber
from agentos.services.mailboxes import Mailboxes
from agentos.syscalls import reserved, table
from agentos.syscalls.spawn import Spawning
from supervisors import GaveUp, StartFailed

from .access.callers import Callers
from .agents.jail import openai_endpoint
from .agents.jail.jail import Jails
from .agents.leftover_processes import Run, Sweeper
from .agents.workspaces.workspace import Workspaces
from .host_setup import (
    BootError,
    connections_to_be_had,
    harden,
    is_root,
    lay_out_sdk,
    own_cgroup,
    remains,
    sole_kernel,
)
from .kernel.listener import ConnectionLimit, Listener, ListenError, listen
from .llm.api_keys import read_variables
from .llm.ask import ProviderClient
from .llm.providers.choose import NoProvider, ProviderChoice, choose_provider, connect
from .permissions.patterns.base import Names
from .sandbox import interpreter_prefixes
from .sandbox.cgroups.discover import Cgroups
from .sandbox.host_ids import OuterIdError, OuterIds
from .sandbox.report import levels, probe
from .sandbox.report.levels import Finding
from .services.audit.log import Audit, open_audit

log = logging.getLogger("agentos.kernel")

REAP_AGAIN = 0.05  # seconds between two batches of zombies
SWITCH = 0.0005  # seconds after which a computing thread yields the GIL; Python's default is ten times that
HURRY = 3.0  # seconds left for the shutdown after the second signal


@frozen
class Settings:
    """The options of ``agentos run``: ``socket`` and ``state_dir`` are final, ``show`` is called with every event.

    Once ``state_dir`` is held, it is a path through its file descriptor (:mod:`agentos.private_files`).
    """

    config: Config
    socket: str
    state_dir: Path
    show: Subscriber


def run(settings: Settings) -> str | None:
    """Run a kernel until a signal stops it (None) or its root supervisor gives up (the reason).

    Raises :class:`BootError` if the kernel can't start.
    """
    harden()
    sys.setswitchinterval(SWITCH)
    with contextlib.ExitStack() as undo:
        try:
            # First: the zygote must not inherit anything that is opened or read from here on.
            spawner = Spawner.start(settings.config.kernel.zygote_timeout)
            undo.callback(spawner.close)
            interpreter_prefixes.check(probe.own_interpreter())
            check_parents(Path(settings.socket))
            settings = attrs.evolve(settings, state_dir=undo.enter_context(sole_kernel(settings.state_dir)))
            check_file(settings.state_dir / "stubs.json")  # read later, when the kernel runs
            this = Run.begin(settings.state_dir)
            undo.callback(this.end)
            groups = undo.enter_context(own_cgroup())
            spawner.bequeath(remains(this, groups))
            uids = settings.config.kernel.uids
            outer = OuterIds(settings.state_dir / "outer-ids.json", uids.first, uids.count) if is_root() else None
        except OSError as error:
            raise BootError(describe(error, settings.state_dir)) from None
        except (SandboxError, OuterIdError) as error:
            raise BootError(str(error)) from None
        try:
            return trio.run(live, settings, partial(Kernel, settings, this, spawner, groups, outer))
        except (ListenError, DatabaseError) as error:
            raise BootError(str(error)) from None


async def live(settings: Settings, kernel: Callable[[Line, Audit], "Kernel"]) -> str | None:
    """Run a kernel with its database, its audit log and the queue for the model."""
    llm = settings.config.llm
    model = await trio.to_thread.run_sync(choice_of_model, llm)
    provider = model.provider if isinstance(model, ProviderChoice) else "none"
    asking = ProviderClient(partial(connect, model, llm), llm.retry, llm.timeouts, name=provider)
    async with (
        open_database(settings.state_dir / "agentos.db", {"quotas": budgets.TABLES}) as database,
        open_audit(settings.state_dir / "audit", __version__) as audit,
    ):
        accounts = await Budgets.load(llm.prices, database, llm.max_tokens, time.time())
        name = model.model if isinstance(model, ProviderChoice) else ""
        wanted = isinstance(model, ProviderChoice) or llm != LLMSettings()
        told = told_of(model) if wanted else None
        return await kernel(Line(llm, asking, accounts, name), audit).serve(told)


def told_of(model: ProviderChoice | NoProvider) -> str:
    if isinstance(model, ProviderChoice):
        return f"model {model.model} by {model.provider}"
    return f"no model can be asked: {model.why}"


def choice_of_model(settings: LLMSettings) -> ProviderChoice | NoProvider:
    """Choose the provider and the model; reads files. Agents' environments are independent of these variables."""
    variables = read_variables(os.environ, Path.cwd())
    for warning in variables.warnings:
        log.warning("%s", warning)
    choice = choose_provider(settings, variables)
    if isinstance(choice, ProviderChoice) and choice.provider == "offline":
        import agentos.llm.providers.offline  # noqa: F401 - now: later no file descriptor may be left to import it with
    return choice


class Kernel:
    """All services of one kernel, constructed in dependency order."""

    def __init__(
        self,
        settings: Settings,
        this: Run,
        spawner: Spawner,
        groups: Cgroups,
        outer: OuterIds | None,
        line: Line,
        audit: Audit,
    ) -> None:
        kernel = settings.config.kernel
        kernel_account = Account("kernel", Share(budget=settings.config.llm.budget))
        self.settings = settings
        self.this = this
        self.mail = Mailboxes()
        self.events = Events()
        self.registry = Registry(self.events.publish)
        names = Names(home(), str(settings.config.directory))
        self.callers = Callers(
            registry=self.registry,
            mail=self.mail,
            line=line,
            audit=audit,
            known=settings.config.permissions,
            names=names,
            jailed=attrs.evolve(names, workspace=WORKSPACE, code=CODE),
            kernel_account=kernel_account,
            priced=bool(settings.config.llm.prices),
            kernels=[os.path.realpath(place) for place in (settings.state_dir, this.directory)],
        )
        self.events.subscribers = (
            log_event,
            partial(add_to_output, self.registry),
            self.mail.send_escalation,
            self.callers.forget_agent,
            settings.show,
        )
        self.connection_limit = ConnectionLimit(min(kernel.max_connections, connections_to_be_had()))
        self.spawner = spawner
        self.line = line
        self.sweeper = Sweeper(this)
        sdk_alone, package = lay_out_sdk(this)
        self.jails = Jails(
            spawner=spawner,
            host=probe.host(),
            cgroups=groups,
            outer_ids=outer,
            workspaces=Workspaces(settings.state_dir, is_root(), [Path(this.directory), Path(settings.socket)]),
            sdk=package,
            sdk_alone=sdk_alone,
            waived=kernel.waive,
            port=openai_endpoint.PORT if settings.config.llm.openai_endpoint else None,
        )
        self.supervision = Supervision(
            registry=self.registry,
            make_caller=self.callers.of_agent,
            deps=LifeDeps(self.registry, self.jails, self.connection_limit, this, self.sweeper, self.openai_endpoint()),
            limits=SpawnLimits(kernel.max_children, kernel.spawn_rate),
            kernel_account=kernel_account,
            queue_path=self.callers.queue_path,
        )
        directory = str(settings.config.directory)
        spawning = Spawning(self.registry, self.supervision, self.callers, self.mail.is_taken, directory)
        calls = table(
            self.registry,
            self.supervision,
            spawning,
            self.callers,
            self.mail,
            line,
            kernel_account,
            audit,
            directory,
            kernel.max_payload,
        )
        self.callers.serve(calls, reserved(kernel.max_payload))
        self.root = self.supervision.build(settings.config.root)
        self.stopping = False

    def openai_endpoint(self) -> openai_endpoint.Serve | None:
        """The server for OpenAI-compatible requests; ``None`` if the configuration doesn't enable it."""
        if not self.settings.config.llm.openai_endpoint:
            return None
        from .gateways.openai.chat_completions import Completions  # hypercorn: 0.1 s and 20 MiB, loaded only if needed

        models = [self.line.model] if self.line.model else []
        max_payload = self.settings.config.kernel.max_payload
        return Completions(models, self.line.provider, self.connection_limit, max_payload).serve

    async def serve(self, model: str | None) -> str | None:
        """Listen, run the tree and shut down. Returns why the root gave up, or None if it was asked to end."""
        isolation = await self.examine()
        with listen(self.settings.socket) as listener:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(
                        Listener(listener, self.connection_limit, self.callers.admit, self.callers.dismiss).serve
                    )
                    nursery.start_soon(self.reap)
                    nursery.start_soon(self.sweeper.serve)
                    nursery.start_soon(self.jails.serve)
                    nursery.start_soon(self.line.serve)
                    await self.keep(KernelStarted(isolation, model))
                    nursery.cancel_scope.cancel()
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.settings.socket)
        assert self.root.exit is not None
        return why(self.root.exit)

    async def examine(self) -> str:
        """Probe which isolation layers work on this host; returns a sentence on what agents get."""
        found = await probe.probe(self.spawner, self.jails.host)
        self.jails.host = probe.usable(self.jails.host, found)
        root = self.jails.cgroups.root
        limits = {
            name: Finding(
                True, mechanism=f"cgroup v{root.version}" if root is not None and name in root.controllers else ""
            )
            for name in ("memory", "pids", "cpu")
        }
        return levels.verdict({**found, **limits}, os.geteuid())

    async def keep(self, started: KernelStarted) -> None:
        """Run the tree until it ends. The first stop signal ends it in order, a second one kills what is left."""
        with trio.open_signal_receiver(*stop_signals()) as signals:
            async with trio.open_nursery() as nursery:

                async def obey() -> None:
                    async for _ in signals:
                        if self.stopping:
                            log.warning("killing what still runs")
                            self.supervision.hurry()
                            nursery.cancel_scope.deadline = trio.current_time() + HURRY
                        else:
                            log.info("stopping, agents first; once more to hurry")
                            self.stopping = True
                            self.events.publish(KernelStopping())
                            self.root.stop()

                nursery.start_soon(obey)
                try:
                    async with trio.open_nursery() as tree:
                        await tree.start(self.root.run)
                        await self.supervision.wait_settled()
                        if self.root.exit is None and not self.stopping:
                            self.announce(started, nursery)
                except* (GaveUp, StartFailed):
                    pass  # reported by the root's exit
                nursery.cancel_scope.cancel()

    def announce(self, started: KernelStarted, nursery: trio.Nursery) -> None:
        """Publish ``started``; what clients need not wait for is loaded afterwards, in the background."""
        gc.collect()
        gc.freeze()  # later full collections skip all objects that exist now: 60 ms each
        self.events.publish(started)
        if self.line.model:
            nursery.start_soon(self.line.prepare)

    async def reap(self) -> None:
        """Reap processes that agents orphaned; as zombies they would use up the pids."""
        with trio.open_signal_receiver(signal.SIGCHLD) as signals:
            async for _ in signals:
                done = False
                while not done:
                    done = await self.spawner.reap_strangers()
                    await trio.sleep(REAP_AGAIN)  # many of them are reaped in batches


def stop_signals() -> list[signal.Signals]:
    """SIGINT, SIGTERM, and SIGHUP (the terminal was closed) unless it is ignored, as under nohup."""
    wanted = [signal.SIGINT, signal.SIGTERM]
    return wanted if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [*wanted, signal.SIGHUP]
