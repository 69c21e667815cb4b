"""SPAWN, KILL, LIST, WAIT, START, STOP, RESTART, PAUSE, RESUME, TREE and LOGS: requests to manage agents."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import field

from agentos_sdk.encoding.codec import Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Backoff, InLine, Layer, Limits, LogLine, Share

from .request import Request, SuccessfulReply


@record
class Isolation:
    """The isolation of an agent that is in force, not the one that was requested."""

    level: str
    layers: Mapping[str, Layer]


@record
class Spawned(SuccessfulReply):
    """The agent is running. ``pid`` is its process id as the kernel sees it."""

    id: int
    name: str
    pid: int
    status: str
    restart_policy: str
    isolation: Isolation


@record
class Spawn(Request[Spawned]):
    """Start an agent: exactly one of ``script`` and ``command``, or neither in an ``image`` that has a command.

    ``restart_policy`` is the original's name for ``restart``: always, on-failure, never. With the ``workspace_mode``
    overlay its changes of a directory that is its ``workspace`` wait for APPLY. With ``terminals`` its programs may
    open pseudo-terminals. A ``kept`` mailbox outlives it and the kernel, for the next of its name and spawner.
    """

    op = Op.SPAWN
    name: str
    script: str | None = None
    command: Sequence[str] | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(factory=dict)
    sandboxed: bool = True
    network: bool | Literal["none", "filtered", "host"] = False
    limits: Limits = Limits()
    restart: Literal["permanent", "transient", "temporary"] | None = None
    restart_policy: Literal["always", "on-failure", "never"] | None = None
    max_restarts: int = 3
    restart_window: Seconds = Seconds(60.0)
    backoff: Backoff | None = None
    shutdown: Seconds | Literal["brutal_kill", "infinity"] = Seconds(5.0)
    ready: Literal["hello"] | None = None
    python: str | None = None
    cwd: str | None = None
    isolation: Literal["strict", "standard", "best_effort", "none"] = "standard"
    code: str | None = None
    workspace: str | None = None
    workspace_mode: Literal["direct", "overlay"] | None = None
    runtime: Literal["exec", "fast"] = "exec"
    terminals: bool = False
    mailbox: Literal["kept", "memory"] = "memory"
    image: str | None = None
    user: Literal["root"] | None = None
    llm: Share = Share()
    permissions: object = None


@record
class Killed:
    """The agent has ended for good."""

    killed: bool
    agent_id: int


@record
class Kill(Request[Killed]):
    """Stop an agent for good, whatever its restart type: SIGTERM, ``grace`` seconds, SIGKILL.

    Without ``grace`` the agent's own ``shutdown`` applies. Exactly one of ``name`` and ``id``.
    """

    op = Op.KILL
    name: str | None = None
    id: int | None = None
    grace: Seconds | None = None


@record
class AgentInfo:
    """One agent in the reply of LIST.

    ``parent`` is the id of the agent that spawned it, ``None`` if the operator did. ``supervisor`` is the path of its
    supervisor in the tree. ``state`` is one of starting, running, paused, stopping, backing_off, waiting, stopped,
    exited, failed. ``stopped_by`` is ``operator`` or the name of the caller that stopped a declared agent, otherwise
    ``None``; ``kept``: it stays stopped when the next kernel starts.
    ``missing`` lists the isolation layers that were requested and are not active. ``end`` is how its last life ended,
    ``None`` before that. ``memory_bytes``, ``peak_memory_bytes`` and ``cpu_seconds`` are of its present life, with what
    it spawned if a cgroup counts, or of its last one; up to a second old, and ``None`` if they aren't known.
    ``budget_renews_at``, in seconds since the epoch: when the budgets that have refused its questions renew.
    ``next_at``, in seconds since the epoch: when its schedule starts it next. ``wakes_on`` is the schedule, or what
    starts it, for people; ``None`` for an agent that doesn't wait.
    """

    id: int
    name: str
    pid: int | None
    state: str
    parent: int | None
    supervisor: str
    restarts: int
    uptime_ms: int
    running: bool
    isolation: str
    missing: Sequence[str]
    llm: InLine
    end: str | None
    stopped_by: str | None
    kept: bool
    health: str | None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    cpu_seconds: float | None = None
    budget_renews_at: float | None = None
    next_at: float | None = None
    wakes_on: str | None = None


@record
class List(Request[Sequence[AgentInfo]]):
    """List the agents that are alive or will be restarted; with ``all`` also those that have ended for good.

    Of the spawned agents that have ended the kernel remembers the last 1,000.
    """

    op = Op.LIST
    all: bool = False


@record
class Exited(SuccessfulReply):
    """How an agent ended: ``exit_code``, or the number of the ``signal`` that killed it; ``reason`` is for people."""

    exit_code: int | None
    signal: int | None
    reason: str


@record
class Wait(Request[Exited]):
    """Wait until an agent has ended for good (a restart doesn't count); at most ``timeout`` seconds."""

    op = Op.WAIT
    name: str | None = None
    id: int | None = None
    timeout: Seconds | None = None


@record
class AgentState:
    name: str
    state: str


@record
class Changed(SuccessfulReply):
    """The states of the agents that the call was about, members of groups included."""

    agents: Sequence[AgentState]


@record
class Start(Request[Changed]):
    """Start declared agents and groups that have ended, in order: exactly one of ``name`` and ``names``.

    Id, name and mailbox stay, and restart limits begin anew. Agents that run, or wait for their restart, are left
    alone. Those with a schedule wait for its next time, unless they are wanted ``now``. Answers when each start has
    succeeded or failed.
    """

    op = Op.START
    name: str | None = None
    names: Sequence[str] | None = None
    now: bool = False


@record
class Stop(Request[Changed]):
    """Stop declared agents and groups until START: exactly one of ``name`` and ``names``.

    They stay stopped when their group is restarted, and with ``keep`` when the next kernel starts.
    """

    op = Op.STOP
    name: str | None = None
    names: Sequence[str] | None = None
    keep: bool = False


@record
class Restart(Request[Changed]):
    """Stop agents and groups and start them again: exactly one of ``name`` and ``names``.

    A member of a group is restarted without its siblings.
    """

    op = Op.RESTART
    name: str | None = None
    names: Sequence[str] | None = None


@record
class Paused(SuccessfulReply):
    paused: bool
    agent_id: int


@record
class Pause(Request[Paused]):
    """Stop an agent's process group (SIGSTOP) until RESUME. Exactly one of ``name`` and ``id``."""

    op = Op.PAUSE
    name: str | None = None
    id: int | None = None


@record
class Resumed(SuccessfulReply):
    resumed: bool
    agent_id: int


@record
class Resume(Request[Resumed]):
    """Continue a paused agent. Exactly one of ``name`` and ``id``."""

    op = Op.RESUME
    name: str | None = None
    id: int | None = None


@record
class TreeReply(SuccessfulReply):
    """``tree`` is the root: ``name``, ``type``, and for a supervisor ``strategy``, ``children`` and so on, nested."""

    tree: Mapping[str, Any]


@record
class Tree(Request[TreeReply]):
    """The current supervision tree."""

    op = Op.TREE


@record
class LogsReply(SuccessfulReply):
    """``missed`` is the number of lines before the first of these that were dropped because they were read too late."""

    lines: Sequence[LogLine]
    missed: int = 0


@record
class Logs(Request[LogsReply]):
    """The last lines of an agent's output. ``follow`` streams new ones, as CHUNKs of ``lines`` and ``missed``.

    ``names`` are several agents, and none at all means all. ``since`` and ``until`` are seconds since the epoch,
    ``grep`` is a regular expression, ``stream`` is stdout, stderr or kernel, and ``run`` is 0 for this run of the
    kernel, 1 for the one before. ``tail`` is 100 by default.
    """

    op = Op.LOGS
    name: str | None = None
    id: int | None = None
    names: Sequence[str] | None = None
    tail: int | None = None
    follow: bool = False
    since: float | None = None
    until: float | None = None
    grep: str | None = None
    stream: str | None = None
    run: int | None = None
