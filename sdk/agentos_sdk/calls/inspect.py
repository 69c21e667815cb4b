"""INSPECT: everything about one agent."""

from collections.abc import Sequence
from typing import Literal

from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op
from agentos_sdk.values import End, HostIds, InLine, Limits, LLMClass, ResourceUsage, Waits

from .agents import Isolation
from .request import Request, SuccessfulReply


@record
class Budget:
    """A budget of ``what`` (tokens, calls or money): ``most`` in each window of ``per`` seconds; ``name`` is its owner.

    ``used`` in the current window, ``reserved`` for questions in flight; ``renews_at`` is seconds since the epoch.
    ``by_default``: the file gives its owner none, and it is ``[llm] default_budget``. ``refuses``: in this window
    it has refused a question.
    """

    name: str
    what: str
    per: float
    most: float
    used: float
    reserved: float
    renews_at: float
    by_default: bool = False
    refuses: bool = False


@record
class Spent:
    """Questions asked since the kernel started, and their tokens.

    ``cache_read`` and ``cache_creation`` are parts of ``input``.
    """

    calls: int
    input: int
    output: int
    thinking: int
    cache_read: int = 0
    cache_creation: int = 0


@record
class ModelState:
    """Whether a model can be called now; ``name`` is the provider's.

    ``state`` is ok, paused (the provider answered 429) or down (it failed many times in a row). ``until`` is when it
    may be called again, in seconds since the epoch, and ``reason`` the provider's last error. Both are ``None`` if the
    state is ok.
    """

    name: str
    model: str
    state: str
    until: float | None
    reason: str | None


@record
class Model:
    """An agent's place in the queue for the model, its use of the model, and every budget that applies to it.

    ``providers`` are the models that its questions wait for and that can't be called now.
    """

    weight: float
    class_: LLMClass
    place: InLine
    waits: Waits | None
    spent: Spent
    budgets: Sequence[Budget]
    providers: Sequence[ModelState] = ()


@record
class Relative:
    """A short reference to another agent."""

    id: int
    name: str
    state: str


@record
class Started:
    """What an agent was started with; ``env`` holds only the names of variables.

    ``script``, ``code``, ``workspace``, ``python`` and the program of a ``command`` may be host paths. An agent that
    asks gets ``None`` for those.
    """

    script: str | None
    command: Sequence[str] | None
    args: Sequence[str]
    env: Sequence[str]
    cwd: str | None
    python: str | None
    code: str | None
    workspace: str | None
    runtime: str
    network: Literal["none", "filtered", "host"]
    ready: str | None
    restart: str
    shutdown: float | str
    workspace_mode: Literal["direct", "overlay"] = "direct"
    terminals: bool = False
    mailbox: Literal["kept", "memory"] = "memory"


@record
class ImageInUse:
    """The image that an agent has as its root. ``digest`` is that of its present life, ``None`` without one."""

    name: str
    digest: str | None


@record
class Health:
    """How an agent's health is watched, and what was found in its present life or the last.

    ``watchdog`` is how many seconds it may be without a call, ``idle`` how many it has been. ``command`` runs each
    ``interval`` seconds for at most ``timeout``; ``failures`` of the last checks failed in a row, and at ``limit`` the
    agent is killed. ``checked_at`` is when the last check ended, in seconds since the epoch, and ``problem`` why it
    failed or couldn't be run. What isn't configured is ``None``.
    """

    watchdog: float | None
    idle: float | None
    command: Sequence[str] | None
    interval: float | None
    timeout: float | None
    limit: int | None
    failures: int
    checked_at: float | None
    problem: str | None


@record
class Inspected(SuccessfulReply):
    """Everything about one agent.

    ``parent`` spawned it; ``children`` are the agents that it spawned and that are alive. ``named`` lists the limits
    that were set explicitly; the others are the kernel's defaults. ``health`` is ``None`` if it has neither a watchdog
    nor a health command. ``end`` is how its last life ended, ``None`` before that. ``outer`` and ``cgroups``, the
    directories of its cgroups, are for the operator only. ``upstream_proxy``, HOST:PORT, is the HTTP proxy that
    resolves the names of its requests and judges their addresses. ``next_at`` and ``wakes_on`` are as in the reply of
    LIST.
    """

    id: int
    name: str
    state: str
    pid: int | None
    lives: int
    restarts: int
    since: float | None
    uptime_ms: int
    parent: Relative | None
    supervisor: str
    children: Sequence[Relative]
    spec: Started
    isolation: Isolation
    limits: Limits
    named: Sequence[str]
    usage: ResourceUsage
    llm: Model
    health: Health | None
    outer: HostIds | None
    cgroups: Sequence[str] | None
    end: End | None
    upstream_proxy: str | None
    next_at: float | None = None
    wakes_on: str | None = None
    forked_from: str | None = None
    image: ImageInUse | None = None


@record
class Inspect(Request[Inspected]):
    """Inspect one agent: exactly one of ``name`` and ``id``."""

    op = Op.INSPECT
    name: str | None = None
    id: int | None = None
