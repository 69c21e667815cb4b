"""System calls: the list of all calls this kernel serves."""

from msgspec import Struct

from agentos.access.callers import Callers
from agentos.agents.life.counter import LifeCounter
from agentos.agents.state_spaces import StateSpaces
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.caller import Caller
from agentos.kernel.syscall import Syscall
from agentos.mcp.servers import Servers
from agentos.recordings.recorder.recorder import Recorder
from agentos.recordings.replay.replays import Replays
from agentos.services.archives.imports import Imports
from agentos.services.audit.log import Audit
from agentos.services.audit.traffic import Traffic
from agentos.services.event_log.ring import EventLog
from agentos.services.http.client import Client
from agentos.services.logs.log import Logs
from agentos.services.metrics.sampler import Sampler
from agentos.services.snapshots.snapshots import Snapshots
from agentos.services.storage.bound import StorageBound
from agentos_sdk.opcodes import Op

from . import background, clock, events, http, messages, state
from .agents import agents, inspect, logs, start_stop
from .agents.spawn import Spawning
from .files import exec, files
from .model import contents, think, tools, usage
from .operator import (
    approvals,
    archives,
    audit,
    fork,
    images,
    kernel,
    metrics,
    overlays,
    permissions,
    recordings,
    reload,
    replay,
    snapshots,
)


class Services(Struct, frozen=True):
    """What the handlers of system calls use.

    ``reload`` reads the configuration file again. ``max_payload`` is the largest body in bytes. ``config_file`` is the
    path of the configuration file, None without one.
    """

    supervision: Supervision
    callers: Callers
    state: StateSpaces
    events: EventLog
    traffic: Traffic
    sampler: Sampler
    audit: Audit
    lives: LifeCounter
    logs: Logs
    storage: StorageBound
    http: Client
    mcp: Servers
    snapshots: Snapshots
    recordings: Recorder
    replays: Replays
    imports: Imports
    reload: reload.Request
    max_payload: int
    config_file: str | None = None


def table(services: Services) -> tuple[Syscall, ...]:
    """All system calls except HELLO, CANCEL and EXIT, which the connection answers itself."""
    s, supervision, callers, most = services, services.supervision, services.callers, services.max_payload
    registry, line, authorizer, deps = callers.registry, callers.line, callers.authorizer, supervision.deps
    spawning = Spawning(supervision, callers)
    paces = overlays.Paces()
    calls = (
        Syscall(Op.NOOP, None, handler=echo, limit=most),
        *clock.Clock().syscalls(),
        *think.Thinking(line, callers.queue_path, callers.background, most).syscalls(),
        *files.Files(files.PathResolver(registry, deps.host_view), most).syscalls(),
        *exec.Commands(deps, callers.background).syscalls(),
        *http.Requests(s.http, callers, most).syscalls(),
        *tools.Tools(s.mcp, authorizer).syscalls(),
        *agents.AgentCalls(spawning, callers, s.lives.reader).syscalls(),
        *logs.syscalls(registry, s.logs),
        *start_stop.StartStopCalls(registry, supervision).syscalls(),
        *reload.syscalls(s.reload),
        *inspect.syscalls(registry, line, s.http.egress),
        *messages.Messages(callers.mail, registry, s.traffic, s.state.account).syscalls(),
        *state.StateCalls(s.state, authorizer.granted_prefixes).syscalls(),
        *events.EventCalls(s.events, registry, authorizer).syscalls(),
        *metrics.MetricsCalls(callers, s.sampler).syscalls(),
        *kernel.KernelCalls(supervision, callers, s.audit, s.storage, s.config_file).syscalls(),
        *usage.syscalls(registry, line, s.lives),
        *audit.syscalls(s.audit),
        *contents.syscalls(line),
        *replay.ReplayCalls(s.replays, s.recordings, supervision, callers, s.snapshots, most).syscalls(),
        *approvals.ApprovalCalls(callers.approvals).syscalls(),
        *overlays.OverlayCalls(registry, s.snapshots.overlays, paces).syscalls(),
        *snapshots.SnapshotCalls(registry, s.snapshots, supervision, paces).syscalls(),
        *fork.Forking(spawning, s.snapshots, paces).syscalls(),
        *recordings.RecordingCalls(s.recordings, registry, most // 4).syscalls(),
        *images.ImageCalls(deps.jails.images, registry).syscalls(),
        *archives.Archives(spawning, s.snapshots, callers.mail, s.imports).syscalls(),
        *background.syscalls(callers.background),
    )
    return (*calls, *permissions.Permissions(callers, {call.op: call for call in calls}).syscalls())


def echo(caller: Caller, body: bytes) -> bytes:
    caller.counts.noops += 1
    return body
