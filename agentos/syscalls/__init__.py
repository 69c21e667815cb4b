"""System calls: the list of all calls this kernel serves."""

from msgspec import Struct

from agentos.access.callers import Callers
from agentos.agents.life.counter import LifeCounter
from agentos.agents.registry import Registry
from agentos.agents.state_spaces import StateSpaces
from agentos.agents.tree.supervision import Supervision
from agentos.agents.workspaces.view import View
from agentos.images.store import Images
from agentos.kernel.background import Background
from agentos.kernel.caller import Caller
from agentos.kernel.syscall import Syscall
from agentos.llm.line import Line
from agentos.llm.settings import Account
from agentos.mcp.servers import Servers
from agentos.permissions.approvals.approvals import Approvals
from agentos.recordings.recorder.recorder import Recorder
from agentos.recordings.replay.replays import Replays
from agentos.services.archives.imports import Imports
from agentos.services.audit.log import Audit
from agentos.services.audit.traffic import Traffic
from agentos.services.event_log.ring import EventLog
from agentos.services.http.client import Client
from agentos.services.logs.log import Logs
from agentos.services.mail.mailboxes import Mailboxes
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

    ``reload`` reads the configuration file again. ``kernel_account`` is the share of the model for all callers
    together. ``host_view`` is the operator's view of the host's files. ``max_payload`` is the largest body in bytes.
    ``config_file`` is the path of the configuration file, None without one. ``upstream_proxy`` is HOST:PORT.
    """

    registry: Registry
    supervision: Supervision
    reload: reload.Request
    callers: Callers
    mail: Mailboxes
    state: StateSpaces
    events: EventLog
    traffic: Traffic
    line: Line
    kernel_account: Account
    sampler: Sampler
    audit: Audit
    lives: LifeCounter
    approvals: Approvals
    logs: Logs
    storage: StorageBound
    background: Background
    host_view: View
    http: Client
    mcp: Servers
    snapshots: Snapshots
    recordings: Recorder
    replays: Replays
    images: Images
    imports: Imports
    max_payload: int
    config_file: str | None = None
    upstream_proxy: str | None = None


def table(services: Services) -> tuple[Syscall, ...]:
    """All system calls except HELLO, CANCEL and EXIT, which the connection answers itself."""
    s = services
    spawning = Spawning(s.registry, s.supervision, s.callers, s.mail.is_taken, s.host_view.base)
    paces = overlays.Paces()
    calls = (
        Syscall(Op.NOOP, None, handler=echo, limit=s.max_payload),
        *clock.Clock().syscalls(),
        *think.syscalls(s.line, s.callers.queue_path, s.background, s.max_payload),
        *files.syscalls(s.registry, s.host_view, s.max_payload),
        *exec.syscalls(s.registry, s.supervision, s.background, s.host_view.base),
        *http.syscalls(s.http, s.callers, s.background, s.max_payload),
        *tools.syscalls(s.mcp, s.callers.authorizer),
        *agents.syscalls(s.registry, s.supervision, spawning, s.line, s.lives.reader, s.callers.authorizer),
        *logs.syscalls(s.registry, s.logs),
        *start_stop.syscalls(s.registry, s.supervision),
        *reload.syscalls(s.reload),
        *inspect.syscalls(s.registry, s.line, s.upstream_proxy),
        *messages.Messages(s.mail, s.registry, s.traffic, s.state.account).syscalls(),
        *state.syscalls(s.state, s.callers.authorizer.granted_prefixes),
        *events.syscalls(s.events, s.registry, s.callers.authorizer),
        *metrics.syscalls(s.registry, s.line, s.kernel_account, s.sampler),
        *kernel.syscalls(
            s.supervision, s.line, s.audit, s.storage, s.approvals, s.callers.authorizer, s.mail, s.config_file
        ),
        *usage.syscalls(s.registry, s.line, s.lives),
        *audit.syscalls(s.audit),
        *contents.syscalls(s.line),
        *replay.syscalls(s.replays, s.recordings, s.supervision, s.callers, s.snapshots, s.max_payload),
        *approvals.syscalls(s.approvals),
        *overlays.syscalls(s.registry, s.snapshots.overlays, paces),
        *snapshots.syscalls(s.registry, s.snapshots, s.supervision, paces),
        *fork.syscalls(s.registry, s.snapshots, s.supervision, spawning, paces),
        *recordings.syscalls(s.recordings, s.registry, s.max_payload),
        *images.syscalls(s.images, s.registry),
        *archives.syscalls(spawning, s.snapshots, s.mail, s.imports),
        *background.syscalls(s.background),
    )
    return (*calls, *permissions.syscalls(s.registry, s.callers, s.approvals, calls))


def echo(caller: Caller, body: bytes) -> bytes:
    caller.counts.noops += 1
    return body
