"""INSPECT: everything about one agent."""

from collections.abc import Sequence

from attrs import frozen

from agentos_sdk.opcodes import Op

from .agents import InLine, Isolation, Limits
from .request import Request


@frozen(kw_only=True)
class Waits:
    """How long the last ``count`` questions waited for their turn."""

    count: int
    p50_ms: float
    p95_ms: float


@frozen(kw_only=True)
class Budget:
    """Of ``what`` (tokens, calls, or money), ``most`` in each window of ``per`` seconds; ``name`` is whose it is.

    ``used`` in the present window, ``reserved`` for what is under way; ``renews_at`` is seconds since the epoch.
    """

    name: str
    what: str
    per: float
    most: float
    used: float
    reserved: float
    renews_at: float


@frozen(kw_only=True)
class Spent:
    """Questions that were asked since the kernel began, and their tokens."""

    calls: int
    input: int
    output: int
    thinking: int


@frozen(kw_only=True)
class ModelState:
    """Whether a model can be asked at present; ``name`` is the provider's.

    ``state`` is ok, paused (the provider answered 429) or down (it failed many times in a row). ``until`` is when it
    may be asked again, in seconds since the epoch, and ``reason`` what the provider said last; both ``None`` where the
    state is ok.
    """

    name: str
    model: str
    state: str
    until: float | None
    reason: str | None


@frozen(kw_only=True)
class Model:
    """An agent's place in the line to the model, what it has had of it, and every budget that concerns it.

    ``providers`` are the models that its questions wait for and that can't be asked at present.
    """

    weight: float
    place: InLine
    waits: Waits | None
    spent: Spent
    budgets: Sequence[Budget]
    providers: Sequence[ModelState] = ()


@frozen(kw_only=True)
class Relative:
    """Another agent, shortly."""

    id: int
    name: str
    state: str


@frozen(kw_only=True)
class Outer:
    """Who an agent is on the host."""

    uid: int
    gid: int


@frozen(kw_only=True)
class Usage:
    """What an agent uses with all that it started and spawned; of one that has ended, what is known of its last life.

    ``memory`` and ``peak`` are bytes, ``pids`` processes and threads. ``source`` says who counted; ``None`` is what
    nobody counts, and ``reason`` says why.
    """

    memory: int | None = None
    peak: int | None = None
    pids: int | None = None
    cpu_seconds: float | None = None
    source: str = ""
    reason: str = ""


@frozen(kw_only=True)
class Started:
    """What an agent was started with; ``env`` are names alone.

    ``script``, ``code``, ``workspace``, ``python`` and the program of a ``command`` may be the host's paths, which an
    agent that asks doesn't get: ``None``.
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
    network: bool
    ready: str | None
    restart: str
    shutdown: float | str


@frozen(kw_only=True)
class Ended:
    """``exit_code``, or the number of the ``signal``; neither where the program never ran. ``reason`` is for people."""

    exit_code: int | None
    signal: int | None
    reason: str


@frozen(kw_only=True)
class Inspected:
    """``parent`` spawned it, ``children`` are those that it spawned and that live.

    ``named`` are the limits that somebody set; the others are the kernel's defaults. ``end`` is how its last life
    ended, ``None`` before that.

    ``outer`` and ``cgroups``, its groups' directories, are for the operator alone.
    """

    success: bool = True
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
    usage: Usage
    llm: Model
    outer: Outer | None
    cgroups: Sequence[str] | None
    end: Ended | None


@frozen(kw_only=True)
class Inspect(Request[Inspected]):
    """Exactly one of ``name`` and ``id``."""

    op = Op.INSPECT
    reply = Inspected
    name: str | None = None
    id: int | None = None
