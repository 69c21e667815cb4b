"""Configuration schema: one class for each table of the file.

``None`` means that the file doesn't set the field; the default then comes from the value that the table is converted
to.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from attrs import field, frozen

from agentos.agents.builder import AgentFields
from agentos.agents.spec import (
    INTENSITY_RULE,
    NAME,
    NAME_RULE,
    RESERVED_RULE,
    STOP_TIMEOUT,
    OnGiveUp,
    Period,
    Strategy,
    Words,
    WorkspaceMode,
    is_reserved,
)
from agentos.kernel.caller import MAX_BODY_BYTES
from agentos.sandbox.host_ids import FIRST_ID, ID_COUNT
from agentos.sandbox.start.zygote import TIMEOUT
from agentos_sdk.encoding.codec import Rule, Seconds, Size
from agentos_sdk.values import Backoff, Share
from supervisors.strategy import AutoShutdown, Restart

MIN_STORAGE = 64 << 20  # bytes; the audit log takes 14 MiB of them at its beginning
MIN_RECORDINGS = 1 << 20  # bytes
MIN_PAYLOAD = 1 << 20  # bytes; a lower limit for every kernel, so that every client knows which size is always accepted
MAX_PAYLOAD = MAX_BODY_BYTES  # what one caller may have in flight; a body of 1G stops every caller for 4 s

Name = Annotated[
    str,
    Rule(NAME.fullmatch, NAME_RULE),
    Rule(lambda name: not is_reserved(name), RESERVED_RULE),
]
Count = Annotated[int, Rule(lambda number: number >= 1, "a whole number from 1 up")]
Shutdown = Seconds | Literal["brutal_kill", "infinity"]
LogLevel = Literal["debug", "info", "warning", "error"]

Intensity = Annotated[int, INTENSITY_RULE]
Patience = Annotated[Seconds, Rule(lambda seconds: 0 < seconds <= 3600, "a duration above 0s, at most 1h")]

Limit = Literal["memory", "max_pids", "cpu_quota", "cpu_weight", "open_files", "file_size", "disk", "inodes", "tmp"]


@frozen(kw_only=True)
class UidRange:
    """``uids = {...}``: the host uids that a kernel with root assigns to agents, one each."""

    first: Annotated[int, Rule(lambda first: first >= 1, "a uid from 1 up, 0 being root's")] = FIRST_ID
    count: Annotated[int, Rule(lambda count: count >= 1, "a whole number from 1 up")] = ID_COUNT


@frozen(kw_only=True)
class KernelSettings:
    """``[kernel]``. Sizes are bytes; ``None`` means the kernel's default path.

    ``max_children`` is how many descendants of one agent may be alive at once, ``spawn_rate`` how many agents one
    caller may start per second. ``max_state_keys`` and ``max_state_bytes`` are how much state one agent may have stored
    with all its descendants. With ``mail="durable"`` what the database acknowledges survives a power failure, too.
    ``image`` is the default of agents with a jail.
    ``zygote_timeout`` is how many seconds the process that starts agents has to become ready, and to answer,
    ``stop_timeout`` how many the kernel's end may take until what still runs is killed. ``waive`` names limits that may
    stay unenforced if this host can't enforce them.
    """

    socket: str | None = None
    state_dir: str | None = None
    log_level: LogLevel = "info"
    max_payload: Annotated[Size, Rule(lambda size: MIN_PAYLOAD <= size <= MAX_PAYLOAD, "a size from 1M to 64M")] = Size(
        16 << 20
    )
    max_connections: Count = 4096
    max_children: Count = 32
    spawn_rate: Annotated[float, Rule(lambda rate: rate > 0, "a number above 0")] = 10.0
    max_state_keys: Count = 10_000
    max_state_bytes: Size = Size(64 << 20)
    mail: Literal["normal", "durable"] = "normal"
    image: str | None = None
    zygote_timeout: Patience = Seconds(TIMEOUT)
    stop_timeout: Patience = Seconds(STOP_TIMEOUT)
    waive: Sequence[Limit] = ()
    uids: UidRange = UidRange()


@frozen(kw_only=True)
class StorageTable:
    """``[storage]``: ``max_total`` is the most that the state directory should hold, in bytes; None: no bound."""

    max_total: Annotated[Size, Rule(lambda size: size >= MIN_STORAGE, "a size of at least 64M")] | None = None


@frozen(kw_only=True)
class RecordingTable:
    """``[recording]``: ``max_total`` is the most that all recordings take, in bytes; ``masks`` are RE2 patterns."""

    max_total: Annotated[Size, Rule(lambda size: size >= MIN_RECORDINGS, "a size of at least 1M")] = Size(1 << 30)
    masks: Words = ()


@frozen(kw_only=True)
class ApprovalTable:
    """``[approvals]``: calls that a person must approve. ``notify``: a program and its arguments."""

    timeout: Annotated[Seconds, Rule(lambda seconds: 0 <= seconds <= 86400, "a duration of at most 24h")] | None = None
    keep: Annotated[Seconds, Rule(lambda seconds: 1 <= seconds <= 86400, "a duration from 1s to 24h")] | None = None
    notify: Words | None = None


@frozen(kw_only=True)
class NotifyTable:
    """``[notify]``: ``command`` is a program with its arguments that gets notices for a person."""

    command: Words = ()


@frozen(kw_only=True)
class DashboardTable:
    """``[dashboard]``: ``listen`` is HOST:PORT; ``allowed_hosts`` are names by which a reverse proxy is reached."""

    listen: str | None = None
    allowed_hosts: Sequence[str] | None = None


@frozen(kw_only=True)
class FileTable:
    """The whole file. Its parts are read one by one, so that a mistake in one doesn't hide mistakes in another."""

    kernel: object = field(factory=dict)
    logs: object = field(factory=dict)
    storage: object = field(factory=dict)
    recording: object = field(factory=dict)
    approvals: object = field(factory=dict)
    notify: object = field(factory=dict)
    dashboard: object = None
    llm: object = field(factory=dict)
    http: object = field(factory=dict)
    mcp: object = field(factory=dict)
    metrics: object = field(factory=dict)
    otel: object = field(factory=dict)
    permissions: object = field(factory=dict)
    agents: Sequence[object] = ()
    supervisor: object = field(factory=dict)


@frozen(kw_only=True, slots=False)  # Python can't combine two base classes with slots, as SupervisorTable does
class RootTable:
    """``[supervisor]``: the root of the tree. Children are read one by one; ``[[agents]]`` are the root's, too."""

    strategy: Strategy | None = None
    intensity: Intensity | None = None
    period: Period | None = None
    auto_shutdown: AutoShutdown | None = None
    children: Sequence[object] = ()


@frozen(kw_only=True)
class ChildTable:
    """Fields of every child, of any type."""

    name: Name
    type: Literal["agent", "supervisor"] = "agent"
    restart: Restart | None = None
    max_restarts: Intensity | Literal["unlimited"] | None = None
    restart_window: Period | None = None
    shutdown: Shutdown | None = None
    significant: bool | None = None
    on_give_up: OnGiveUp | None = None
    backoff: Backoff | None = None
    after: Sequence[str] | None = None
    llm: Share | None = None


@frozen(kw_only=True)
class SupervisorTable(ChildTable, RootTable):
    """A child with ``type = "supervisor"``."""


@frozen(kw_only=True)
class WorkspaceTable:
    """``workspace = {...}``: a host directory, and how the agent has it."""

    path: str
    mode: WorkspaceMode = "direct"


@frozen(kw_only=True)
class AgentTable(ChildTable, AgentFields):
    """A child without a type, or with ``type = "agent"``. Relative paths are resolved against the file's directory."""

    framework: str | None = None
    workspace: str | WorkspaceTable | None = None
    permissions: object = None
