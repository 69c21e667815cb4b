"""Agent specifications: the values that both the configuration file and SPAWN are converted to."""

import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import attrs
from msgspec import Struct
from msgspec.structs import replace

from agentos.llm.settings import Share
from agentos.permissions.rule import PermissionSet
from agentos.sandbox.policy import Network
from agentos.services.quotas import merge_quotas
from agentos_sdk.encoding.codec import Rule, Seconds
from agentos_sdk.errors import AlreadyExists, BadRequest, CallError
from agentos_sdk.values import Limits
from supervisors import Backoff
from supervisors.strategy import AutoShutdown, Restart

from .waking.schedule import Schedule, StartReason

Shutdown = float | Literal["brutal_kill", "infinity"]
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]  # of a declared supervisor
OnGiveUp = Literal["fail", "escalate"]
OnCrash = Literal["restart", "resume"]
Isolation = Literal["strict", "standard", "none"]
Runtime = Literal["exec", "fast"]
WorkspaceMode = Literal["direct", "overlay"]

STOP_TIMEOUT = 45.0  # seconds that the kernel's end may take until what still runs is killed
NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)  # digits alone would be taken for an id
NAME_RULE = "a name of 1 to 64 letters, digits, '.', '_' or '-', begun by a letter or digit, and not of digits alone"
GUEST = "guest"  # all guests together, in metrics
# The kernel's supervisors, the kernel itself, its operator, and guests.
RESERVED = ("root", "spawned", "kernel", "operator", GUEST)
MCP_PREFIX = "mcp:"  # of guests' names: no agent's name has a colon
RESERVED_PREFIX = "mcp."  # instances of MCP servers
RESERVED_RULE = (
    f"a name other than {', '.join(RESERVED)} in any case, and without {RESERVED_PREFIX} in front: "
    "the kernel keeps these for itself"
)

# Larger values have no use, and a supervisor stores the time of each restart within the period.
INTENSITY_RULE = Rule(lambda restarts: 0 <= restarts <= 1000, "a whole number from 0 to 1000")
PERIOD_RULE = Rule(lambda seconds: seconds > 0, "a duration above 0s")
CHECKED_RULE = Rule(lambda seconds: 1 <= seconds <= 86400, "a duration from 1s to 1d")
Period = Annotated[Seconds, PERIOD_RULE]
Words = Annotated[Sequence[str], Rule(len, "at least one word")]


class BadField(ValueError):
    """A field of an agent's description has a value that can't be used.

    ``keys`` lead to the value in a configuration file. ``field`` names it in a request: the keys before the first
    index. ``error`` is the type of the error that a caller gets.
    """

    error: type[CallError] = BadRequest

    def __init__(self, field: str | tuple[str | int, ...], message: str, error: type[CallError] | None = None) -> None:
        self.keys = (field,) if isinstance(field, str) else field
        self.field = ".".join(itertools.takewhile(lambda key: isinstance(key, str), self.keys))  # type: ignore[arg-type]
        self.message = message
        self.error = error or self.error
        super().__init__(f"{self.field}: {message}")


class HostFault(BadField):
    """A field names something that this host doesn't have, or that an agent can't use there; the text is right."""


def is_reserved(name: str) -> bool:
    """Whether the name matches one of ``RESERVED``, or begins as one, after NFKC normalization, ignoring case.

    NAME admits only ASCII letters, so today only the case differs; the comparison doesn't rely on that.
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    return plain in RESERVED or plain.startswith(RESERVED_PREFIX)


def check_guest_name(name: str) -> None:
    """Like :func:`check_name`, for HELLO: the guest of an MCP client is called ``mcp:`` and a name.

    A guest, and no agent, may be called ``guest``.
    """
    plain = name.removeprefix(MCP_PREFIX)
    if plain.lower() != GUEST:
        check_name(plain, "as")


def check_name(name: str, field: str) -> None:
    """Raise ``BadRequest`` if the name is invalid for a caller, ``AlreadyExists`` if it is reserved.

    Used by REGISTER and SPAWN; ``field`` is the request's field. The configuration file has the same two rules.
    """
    if not NAME.fullmatch(name):
        raise BadRequest(f"{field}: expected {NAME_RULE}, got {name!r}")
    if is_reserved(name):
        raise AlreadyExists(f"{field}: expected {RESERVED_RULE}, got {name!r}")


@attrs.frozen(kw_only=True)
class HealthCheck:
    """``health = {...}``: a command that runs in the agent's jail, and has to end with status 0.

    The agent is unhealthy after ``failures`` failed checks in a row. A check that hasn't ended within ``timeout``
    seconds has failed. ``interval`` seconds lie between two checks.
    """

    command: Words
    interval: Annotated[Seconds, CHECKED_RULE] = Seconds(30.0)
    timeout: Annotated[Seconds, Rule(lambda seconds: 0 < seconds <= 300, "a duration above 0s, at most 5m")] = Seconds(
        5.0
    )
    failures: Annotated[int, Rule(lambda number: 1 <= number <= 100, "a whole number from 1 to 100")] = 3


class AgentSpec(Struct, frozen=True):
    """One agent: exactly one of ``script`` (run by ``python``) and ``command`` (an argv) is set.

    With an ``image`` its jail has that one's files in place of the host's system, where ``python`` and a command's path
    are looked for; it may have neither, and then runs the image's command. ``user="root"``: its programs are root of
    the image.

    Paths are absolute host paths, except ``cwd``, which is a path in the jail if there is one. ``code`` is a directory
    that contains the script. ``workspace`` is ``tmp``, ``keep`` or a directory, which with ``workspace_mode="overlay"``
    stays as it is: the agent's changes are kept apart, and applied by the operator. With ``terminals`` its programs may
    open pseudo-terminals. More than ``max_restarts`` within
    ``restart_window`` seconds, and the agent is given up; ``math.inf`` is unlimited. Declared members of a
    ``one_for_all`` or ``rest_for_one`` group have their supervisor's intensity instead. ``on_give_up`` applies only to
    declared agents. ``ready="hello"`` makes the start wait for the agent's HELLO.

    For declared agents: the kernel ends if a ``required`` one isn't up ``start_timeout`` seconds after it has begun to
    start agents; an agent begins when those in ``after`` are up, have ended for good, or were given up. ``watchdog`` is
    how many seconds it may be without a call, and ``health`` the command that checks it. With a ``schedule`` it runs at
    these times only, and waits otherwise, with a ``start`` when something has come for it; ``idle_stop`` is after how
    many seconds without a message that one ends. A ``kept`` mailbox outlives the kernel. ``record``: each of its lives
    is recorded. ``on_crash="resume"``: the life after a crash is given the recorded answers of the one before.
    """

    name: str
    script: str | None = None
    command: Sequence[str] | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    python: str | None = None
    ready: Literal["hello"] | None = None
    restart: Restart = "permanent"
    max_restarts: float = 3
    restart_window: float = 60.0
    shutdown: Shutdown = 5.0
    significant: bool = False
    backoff: Backoff | None = None
    on_give_up: OnGiveUp = "fail"
    network: Network = "none"
    isolation: Isolation = "standard"
    limits: Limits = Limits()
    code: str | None = None
    workspace: str = "tmp"
    workspace_mode: WorkspaceMode = "direct"
    runtime: Runtime = "exec"
    terminals: bool = False
    image: str | None = None
    user: Literal["root"] | None = None
    llm: Share = Share()
    permissions: PermissionSet | None = None  # None: the default of its kind
    required: bool = False
    start_timeout: float = 60.0
    after: Sequence[str] = ()
    watchdog: float | None = None
    health: HealthCheck | None = None
    mailbox: Literal["kept", "memory"] = "memory"
    schedule: Schedule | None = None
    start: StartReason | None = None
    idle_stop: float | None = None
    record: bool = False
    on_crash: OnCrash = "restart"
    copied: bool = False  # the script is a copy made for this agent (until it's made, a path in the spawner's jail)

    @property
    def share(self) -> Share:
        """Its share of the model, by its budget and its permissions' quotas."""
        quotas = self.permissions.quotas if self.permissions is not None else ()
        return replace(self.llm, budget=merge_quotas(self.llm.budget, quotas)) if quotas else self.llm

    @property
    def waits(self) -> bool:
        """Whether it is started only when there is a reason, and waits otherwise."""
        return self.schedule is not None or self.start is not None

    @property
    def wakes_on(self) -> str | None:
        """The reasons to start an agent that waits, for people."""
        start = "message" if self.start == "on_message" else self.start
        return ", ".join(str(reason) for reason in (self.schedule, start) if reason is not None) or None

    @property
    def jailed(self) -> bool:
        """Whether the agent runs in a sandbox."""
        return self.isolation != "none"

    @property
    def has_own_network(self) -> bool:
        """Whether its jail has a network namespace."""
        return self.jailed and self.network != "host"

    def as_spawned(self, name: str) -> "AgentSpec":
        """It under another name without what only a declared agent has: it starts now, its mailbox ends with it."""
        return replace(
            self,
            name=name,
            mailbox="memory",
            schedule=None,
            start=None,
            idle_stop=None,
            required=False,
            after=(),
            significant=False,
            on_give_up="fail",
            on_crash="restart",
        )


class GroupSpec(Struct, frozen=True):
    """A supervisor and its children, in start order.

    ``intensity`` and ``period`` count the restarts of its children; under ``one_for_one`` only those of children with
    ``on_give_up="escalate"`` that were given up. ``max_restarts`` within ``restart_window`` seconds limits the restarts
    of the group itself if it is a child of a ``one_for_one`` group.
    """

    name: str
    strategy: Strategy = "one_for_one"
    intensity: int = 1
    period: float = 5.0
    auto_shutdown: AutoShutdown = "never"
    children: Sequence["AgentSpec | GroupSpec"] = ()
    restart: Restart = "permanent"
    max_restarts: float = 5
    restart_window: float = 60.0
    shutdown: Shutdown = "infinity"
    significant: bool = False
    backoff: Backoff | None = None
    on_give_up: OnGiveUp = "fail"
    after: Sequence[str] = ()
    llm: Share = Share()

    def agents(self) -> Iterator[AgentSpec]:
        """Those in it and in the groups below it, in start order."""
        for child in self.children:
            yield from child.agents() if isinstance(child, GroupSpec) else [child]
