"""The kernel: constructs all services in order, builds the call table and runs the agent tree."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio
from attrs import frozen

from agentos.agents.commands.noticed_events import describe_notice, describe_request
from agentos.agents.commands.notices import Notices
from agentos.agents.commands.run import CommandRunner
from agentos.agents.jail.factory import Jails
from agentos.agents.jail.jail import list_lineages
from agentos.agents.jail.measured import MeasuredAgents
from agentos.agents.life.health import HealthChecks
from agentos.agents.life.leftover_processes import RUN_VARIABLE, Sweeper
from agentos.agents.life.life import PATH, LifeDeps, home
from agentos.agents.life.output_rate import OutputRate
from agentos.agents.registry import Agent
from agentos.agents.tree.declared_tree import CallerPorts
from agentos.agents.tree.kept_stops import KeptStops
from agentos.agents.tree.supervision import SpawnLimits, Supervision
from agentos.agents.waking.last_runs import LastRuns
from agentos.agents.waking.timers import Timers
from agentos.agents.waking.waker import Waker
from agentos.agents.workspaces.view import View
from agentos.agents.workspaces.workspace import Workspaces
from agentos.boot.last_run import MAX_NAMES, Doing, RunRecorder
from agentos.config.load import Config
from agentos.config.reload import Reload
from agentos.http.users import find_user_but
from agentos.images.store import Images
from agentos.kernel.wire.listener import ConnectionLimit
from agentos.kernel.wire.poller import Poller
from agentos.llm.open_model import SharedModel
from agentos.llm.settings import LLMSettings
from agentos.recordings.recorder.commands import CommandFiles
from agentos.recordings.recorder.recorder import Recorder
from agentos.recordings.recorder.starts import StartTrees
from agentos.recordings.replay.replays import Replays
from agentos.recordings.replay.resume import Resumer
from agentos.sandbox.report import probe
from agentos.services.archives.imports import Imports
from agentos.services.audit.traffic import Traffic
from agentos.services.events import AgentExited, AgentOver, Subscriber
from agentos.services.mail.copies import MailCopies
from agentos.services.metrics.kernel_figures import LoopCounts
from agentos.services.metrics.sampler import AgentSources, Sampler
from agentos.services.snapshots.kept import Kept
from agentos.services.snapshots.snapshots import Snapshots
from agentos.syscalls import Services, table
from agentos.syscalls.model.think import build_reply

from .access import Access
from .host import Host, affordable_connections, is_root
from .mcp import McpSetup
from .network import HttpFiles, Network
from .programs import Program
from .storage import bound_storage
from .telemetry import Telemetry

log = logging.getLogger("agentos.kernel")


@frozen
class Settings:
    """The options of ``agentos run``: ``socket`` and ``state_dir`` are final, ``show`` is called with every event.

    ``watch``: reload the configuration file when it is saved, and restart an agent when its script is saved.
    """

    config: Config
    socket: str
    state_dir: Path
    show: Subscriber
    watch: bool = False
    programs: Sequence[Program] = ()  # run in the kernel's process while it serves
    accept_lost_state: bool = False  # begin with a database that is missing, older or another one
    llm: LLMSettings | None = None  # instead of the configuration's
    record: Sequence[str] = ()  # agents that are recorded, also without `record`


class Kernel:
    """All services of one kernel, constructed in dependency order."""

    def __init__(
        self,
        settings: Settings,
        host: Host,
        model: SharedModel,
        access: Access,
        stops: KeptStops,
        runs: LastRuns,
        mcp: McpSetup,
        recorder: RunRecorder,
        recordings: Recorder,
        files: HttpFiles,
    ) -> None:
        kernel = settings.config.kernel
        self.settings, self.host, self.model = settings, host, model
        self.events, self.callers, self.line = access.events, access.callers, model.line
        self.state = access.state.state
        self.event_log = access.event_log
        self.lives, self.life_entries, self.traffic = access.lives, access.life_entries, Traffic(access.audit)
        self.connection_limit = ConnectionLimit(min(kernel.max_connections, affordable_connections()))
        self.poller, self.started = Poller(), trio.Event()
        # Kills what ended agents left; jails: a sandbox with its resources for each life of an agent.
        self.sweeper = Sweeper(host.run)
        self.jails = self._construct_jails(access)
        self.snapshots = Snapshots(self.jails.workspaces.overlays, Kept(self.state, MailCopies(self.callers.mail)))
        self.replays = Replays()
        self.imports = Imports(host.state_dir, self.state)
        self.network = Network(settings.config, self.callers, self.connection_limit, files)
        runner = CommandRunner(self.jails)
        self.notices = self._construct_notices(access, runner)
        self.sampler = self._construct_sampler(access)
        self.storage = bound_storage(settings.config.storage, host, access)
        for notices in self.notices:
            if notices.command:
                self.events.subscribe(notices.take_event)
        self.events.subscribe(self.network.client.end_life, AgentExited)
        self.events.subscribe(self.sampler.take_event)
        self.events.subscribe(self.traffic.end_life, AgentExited)
        uids = kernel.uids
        self.find_user = find_user_but(range(uids.first, uids.first + uids.count))
        self.telemetry = self._construct_telemetry()
        self.telemetry.open()
        self.recordings = recordings
        connect_recorder(recordings, access)
        self.starts = StartTrees(recordings, self.snapshots)
        self.jails.keep_start, recordings.pruned = self.starts.keep, self.starts.release
        host_view = View(str(settings.config.directory), home())
        self.supervision = self._construct_tree(access, stops, host_view, runner)
        self.servers, self.pins = mcp.open_servers(self.supervision, self.network.client), mcp.pins
        self.timers = Timers(self.callers.registry, runs, self.supervision.wake, self.supervision.begun)
        self.waker = self._construct_waker(access)
        self.events.subscribe(self.servers.forget_agent, AgentOver)
        self.events.subscribe(self.waker.take_event)
        self.reload = Reload(settings.config, self.supervision, self.callers, self.servers)
        # The table of each caller is made from this one, so it comes before the first agent.
        self.callers.serve(table(self._list_services(access)))
        self.supervision.build(settings.config.root)
        self.recorder = recorder
        recorder.look = self.look

    def _construct_jails(self, access: Access) -> Jails:
        settings, host = self.settings, self.host
        workspaces = Workspaces(
            host.state_dir,
            is_root(),
            [Path(host.run.directory), Path(settings.socket)],
            str(settings.config.file) if settings.config.file is not None else None,
        )
        workspaces.overlays.list_known = partial(list_lineages, settings.config.root, self.callers.registry)
        return Jails(
            spawner=host.spawner,
            host=probe.read_host(),
            cgroups=host.cgroups,
            outer_ids=host.outer_ids,
            blocks=host.blocks,
            workspaces=workspaces,
            images=Images(host.state_dir),
            sdk=host.sdk,
            sdk_alone=host.sdk_alone,
            waived=settings.config.kernel.waive,
            output_rate=OutputRate(access.logs.fill),
        )

    def _construct_telemetry(self) -> Telemetry:
        return Telemetry(
            config=self.settings.config,
            sampler=self.sampler,
            callers=self.callers,
            egress=self.network.egress,
            connection_limit=self.connection_limit,
            events=self.events,
            find_user=self.find_user,
        )

    def _construct_waker(self, access: Access) -> Waker:
        return Waker(
            self.callers.registry,
            self.callers.mail,
            access.event_log,
            self.callers.authorizer,
            self.supervision.wake,
            self.supervision.start_stop.end_idle,
            self.supervision.begun,
            self.timers.take_event,
        )

    def look(self) -> Doing:
        """What would be lost if the kernel were killed now."""
        registry = self.supervision.deps.registry
        running = [agent.name for agent in registry if agent.pid is not None]
        return Doing(
            tuple(running[:MAX_NAMES]),
            len(running),
            self.callers.mail.count_unkept(),
            sum(agent.caller.allowance.calls for agent in registry if agent.alive),
            len(self.callers.approvals.pending()),
        )

    def _construct_sampler(self, access: Access) -> Sampler:
        measured = MeasuredAgents(self.callers.registry, self.jails.disk)
        sources = AgentSources(
            list_agents=measured.list_agents,
            find_agent=measured.find_agent,
            read_usage=access.lives.reader.read_running,
            read_working_set=measured.read_working_set,
            read_disk=measured.read_disk,
        )
        return Sampler(sources, self.count_loop, self.events.publish, str(self.host.state_dir))

    def _construct_notices(self, access: Access, runner: CommandRunner) -> Sequence[Notices]:
        """The commands of ``[approvals] notify`` and ``[notify]``; the first, if there is one, has the requests."""
        config = self.settings.config
        environment = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": home(), RUN_VARIABLE: self.host.run.id}
        make = partial(Notices, directory=str(config.directory), environment=environment, runner=runner)
        requests, approvals = config.approvals.notify, self.callers.approvals
        describe = describe_notice(approvals, self.callers.registry, requests=not requests)
        return (
            make("approvals.notify", requests, listed="requests", describe=describe_request(approvals)),
            make("notify.command", config.notify.command, listed="notices", describe=describe),
        )

    def _construct_tree(self, access: Access, stops: KeptStops, host_view: View, runner: CommandRunner) -> Supervision:
        """The agent tree, not running yet."""
        kernel = self.settings.config.kernel
        return Supervision(
            registry=self.callers.registry,
            ports=CallerPorts(
                make=self.callers.of_agent,
                declare=self.callers.declare,
                limit=self.callers.limit,
                forget=self.forget_agent,
                queue_path=self.callers.queue_path,
                keep_mail=self.callers.mail.keep,
            ),
            deps=LifeDeps(
                registry=self.callers.registry,
                jails=self.jails,
                connection_limit=self.connection_limit,
                poller=self.poller,
                run=self.host.run,
                sweeper=self.sweeper,
                host_view=host_view,
                health=HealthChecks(self.callers.registry, runner),
                background=self.callers.background,
                serve=self.network.openai_endpoint(),
                serve_network=self.network.serve_filtered,
                find_ports=self.callers.authorizer.named_ports,
                resume=Resumer(self.recordings, self.callers).prepare,
            ),
            limits=SpawnLimits(kernel.max_children, kernel.spawn_rate),
            kernel_account=self.model.account,
            default_budget=self.settings.config.llm.default_budget,
            kept_stops=stops,
            stop_timeout=kernel.stop_timeout,
        )

    def _list_services(self, access: Access) -> Services:
        """What the system calls use."""
        config = self.settings.config
        return Services(
            supervision=self.supervision,
            callers=self.callers,
            state=access.state,
            events=access.event_log,
            traffic=self.traffic,
            sampler=self.sampler,
            audit=access.audit,
            lives=access.lives,
            logs=access.logs,
            storage=self.storage,
            http=self.network.client,
            mcp=self.servers,
            snapshots=self.snapshots,
            recordings=self.recordings,
            replays=self.replays,
            imports=self.imports,
            reload=self.reload.request,
            max_payload=config.kernel.max_payload,
            config_file=str(config.file) if config.file is not None else None,
        )

    def forget_agent(self, agent: Agent) -> None:
        """Clean up after a declared agent that a reload has removed; it may have been stopped before."""
        self.callers.forget(agent)
        self.state.end_session(agent.id)

    def count_loop(self) -> LoopCounts:
        """The kernel's connections, and what waits in its queues."""
        limit = self.connection_limit
        waiting = {
            "model": self.line.depth,
            "mailboxes": sum(len(mailbox.messages) for mailbox in self.callers.mail),
            "approvals": len(self.callers.approvals.pending()),
            "audit": self.traffic.audit.waiting,
        }
        return LoopCounts(limit.connections, limit.capacity, waiting)


def connect_recorder(recorder: Recorder, access: Access) -> None:
    """Connect the recorder of calls with what it records: callers, lives of agents, and the secrets of the kernel.

    Call it when the observer of all calls is known, before a caller gets its table.
    """
    callers = access.callers

    def list_secrets() -> list[tuple[str, str]]:
        return [*callers.secrets.list_named(), *(("model key", key) for key in callers.line.contents.keys)]

    recorder.registry, recorder.below = access.callers.registry, callers.tables.observer
    recorder.maker.build_reply, recorder.maker.list_secrets = build_reply, list_secrets
    recorder.choose_tables = callers.choose_tables
    callers.tables.recorder, callers.tables.is_recorded = recorder, recorder.wants
    callers.tables.watch = CommandFiles(recorder).watch
    access.events.subscribe(recorder.take_event)
