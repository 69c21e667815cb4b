"""The builder of agent specs: the rules for what SPAWN and a configuration file say about an agent, each once.

Paths are resolved by ``HostPaths`` or ``JailPaths`` of the module ``paths``.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, Protocol

import attrs
from msgspec.structs import replace

from agentos.llm.settings import Share
from agentos.permissions.rule import PermissionSet
from agentos.sandbox.policy import Network
from agentos.services.quotas import Quota, make_quotas
from agentos_sdk import values
from agentos_sdk.encoding.codec import Seconds
from agentos_sdk.encoding.strict import quote
from supervisors import Backoff, ChildSpec, SpecError, SupervisorSpec
from supervisors.strategy import Restart

from .inherit import cut, inherit
from .jail import layout
from .spec import (
    CHECKED_RULE,
    INTENSITY_RULE,
    PERIOD_RULE,
    AgentSpec,
    BadField,
    GroupSpec,
    HealthCheck,
    Isolation,
    OnCrash,
    OnGiveUp,
    Period,
    Runtime,
    Shutdown,
    Words,
    WorkspaceMode,
)
from .waking.schedule import Schedule, StartReason

NO_LIMITS = values.Limits()
NO_SHARE = Share()
NO_PRICES = "there is no [llm.prices]"

ReportMistake = Callable[[BadField], None]
"""Called with each mistake: it raises the mistake or records it. If it returns, the checks continue."""


@attrs.frozen(kw_only=True, slots=False)  # Python can't combine two base classes with slots
class AgentFields:
    """What SPAWN and a configuration file say alike about one agent; ``None`` means not set. Paths are as written.

    The rules are those of the file: SPAWN's body has been read by its own.
    """

    script: str | None = None
    command: Words | None = None
    args: Sequence[str] | None = None
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    python: str | None = None
    ready: Literal["hello"] | None = None
    required: bool | None = None
    start_timeout: Period | None = None
    watchdog: Annotated[Seconds, CHECKED_RULE] | None = None
    health: HealthCheck | None = None
    mailbox: Literal["kept", "memory"] | None = None
    schedule: Schedule | None = None
    start: StartReason | None = None
    idle_stop: Annotated[Seconds, CHECKED_RULE] | None = None
    record: bool | None = None
    on_crash: OnCrash | None = None
    sandboxed: bool | None = None
    network: bool | Network | None = None
    isolation: Literal["strict", "standard", "best_effort", "none"] | None = None
    limits: values.Limits | None = None
    code: str | None = None
    runtime: Runtime | None = None
    terminals: bool | None = None
    image: str | None = None
    user: Literal["root"] | None = None


@attrs.frozen(kw_only=True)
class Request(AgentFields):
    """A description of one agent that was read."""

    name: str
    restart: Restart | None = None
    max_restarts: float | None = None  # math.inf: unlimited, which SPAWN can't say
    restart_window: float | None = None
    shutdown: Shutdown | None = None
    significant: bool | None = None
    backoff: values.Backoff | None = None
    on_give_up: OnGiveUp | None = None
    after: Sequence[str] | None = None
    workspace: str | None = None
    workspace_mode: WorkspaceMode | None = None
    llm: values.Share | None = None
    permissions: PermissionSet | None = None


CONVERTED_FIELDS = (
    *("script", "command", "cwd", "python", "code", "workspace"),
    *("network", "isolation", "sandboxed", "limits", "backoff", "llm"),
)  # the spec has the other fields unchanged


class Paths(Protocol):
    """Resolves the paths of one request."""

    def resolve(self, spec: AgentSpec, request: Request, report: ReportMistake) -> AgentSpec:
        """The spec with the paths and the program of the request. Blocks."""


def build(
    request: Request,
    paths: Paths,
    report: ReportMistake,
    parent: AgentSpec | None = None,
    bounds: values.Limits = NO_LIMITS,
) -> AgentSpec:
    """The spec of the requested agent. Blocks: it reads the file system.

    It never has more than its ``parent``, and its limits are cut to ``bounds``. After a mistake it isn't usable.
    """
    check_values(request, report)
    fields = attrs.asdict(request, recurse=False).items()
    given = {name: value for name, value in fields if value is not None and name not in CONVERTED_FIELDS}
    asked = request.network
    spec = AgentSpec(
        **given,
        isolation=choose_isolation(request.isolation, request.sandboxed, report),
        limits=cut(request.limits or NO_LIMITS, bounds),
        backoff=build_backoff(request.backoff, report),
        llm=build_share(request.llm, report),
        network=asked if isinstance(asked, str) else "host" if asked else "none",
    )
    with report_bad_field(report):
        spec = inherit(spec, parent) if parent is not None else spec
    if not spec.jailed:
        mode = "workspace_mode" if request.workspace is None else "workspace"  # a file has both as one key
        for name in ("code", mode, "runtime", "image", "user", "terminals"):
            if getattr(request, name) not in (None, "exec", False):
                report(BadField(name, "only a jail has this, and isolation is none: leave it out"))
        if spec.network == "filtered":
            report(BadField("network", "only a jail can be filtered, and isolation is none: give it a jail"))
    if spec.on_crash == "resume":
        check_resume(spec, request, report)
        spec = replace(spec, record=True)
    with report_bad_field(report):
        spec = paths.resolve(spec, request, report)
    for mistake in (*layout.mistakes(spec), *layout.find_host_faults(spec)) if spec.jailed else layout.bad_limits(spec):
        report(mistake)
    return spec


def check_values(request: Request, report: ReportMistake) -> None:
    """The rules that need neither the file system nor another agent."""
    if request.script is None and not request.command and not request.image:
        report(BadField("script", "a script or a command is missing"))
    if request.script is not None and request.command:
        report(BadField("script", "a script or a command, but not both"))
    for name in request.env or ():
        if not name or "=" in name:
            report(BadField(("env", name), f"expected the name of a variable, without '=', got {quote(name)}"))
        elif name.startswith("AGENTOS_"):
            expected = "expected a name without AGENTOS_ in front, which is the kernel's"
            report(BadField(("env", name), f"{expected}, got {quote(name)}"))
    for name, rule in (("max_restarts", INTENSITY_RULE), ("restart_window", PERIOD_RULE)):
        value = getattr(request, name)
        if value not in (None, math.inf) and not rule.holds(value):
            report(BadField(name, f"expected {rule.expected}, got {quote(value)}"))


def check_resume(spec: AgentSpec, request: Request, report: ReportMistake) -> None:
    """What an agent needs so that its life can go on after a crash: all that it did is recorded."""
    needs = 'on_crash = "resume"'
    if request.record is False:
        report(BadField("record", f"{needs} needs the recording of its lives: leave record out"))
    if not spec.jailed:
        report(BadField("on_crash", "only a jail keeps an agent to calls that are recorded: give it a jail"))
    elif spec.network == "host":
        report(BadField("on_crash", "the host's network isn't recorded: set network = \"filtered\", or leave it out"))
    if spec.restart == "temporary":
        report(BadField("on_crash", 'a temporary agent has no next life: set restart = "transient" or "permanent"'))


def choose_isolation(level: str | None, sandboxed: bool | None, report: ReportMistake) -> Isolation:
    """The level that ``isolation`` and ``sandboxed`` mean together."""
    if sandboxed is False and level == "strict":
        report(BadField("isolation", "strict isolation needs a sandbox, and sandboxed is false: leave one of them out"))
    if sandboxed is False or level == "none":
        return "none"
    return "strict" if level == "strict" else "standard"


def build_backoff(given: values.Backoff | None, report: ReportMistake) -> Backoff | None:
    """The backoff of an agent or a supervisor."""
    with report_spec_error("backoff", report):
        return Backoff(**attrs.asdict(given)) if given is not None else None
    return None


def build_share(given: values.Share | None, report: ReportMistake) -> Share:
    """The share of the model of an agent or a supervisor."""
    if given is None:
        return NO_SHARE
    return Share(given.weight, build_quotas(given.budget, report, "llm", "budget"), class_=given.class_)


def build_quotas(lines: Iterable[values.Budget], report: ReportMistake, *keys: str) -> tuple[Quota, ...]:
    """The quotas of a budget; ``keys`` lead to it."""
    quotas: dict[tuple[str, float], Quota] = {}
    for index, line in enumerate(lines):
        for quota in make_quotas(line.per, line.tokens, line.calls, line.money):
            if (quota.what, quota.per) in quotas:
                message = f"there is a budget of {quota.what} per {quota.per:g} s already"
                report(BadField((*keys, index, quota.what), message))
            quotas[quota.what, quota.per] = quota
    return tuple(quotas.values())


def describe_missing_price(why: str = NO_PRICES) -> str:
    """The mistake of a budget of money for a model without a price."""
    return f"a budget of money needs the model's price, and {why}"


def check_intensity(child: AgentSpec | GroupSpec, intensity: float, period: float, report: ReportMistake) -> None:
    """Report a backoff so slow that its child can't exceed the intensity: it would be restarted for ever."""
    with report_spec_error("backoff", report, child.name):
        one = ChildSpec(child.name, SupervisorSpec(), restart=child.restart, backoff=child.backoff)
        SupervisorSpec([one], intensity=intensity, period=period)


def check_restart_limits(child: AgentSpec | GroupSpec, report: ReportMistake, key: str = "backoff") -> None:
    """Report a backoff so slow that its child can't exceed its own ``max_restarts`` within ``restart_window``.

    ``key`` is the one to report; any but ``backoff`` means that the child has the default backoff.
    """

    def report_in_own_words(mistake: BadField) -> None:
        text = mistake.message.replace("intensity ", "max_restarts ").replace("period ", "restart_window ")
        if key != "backoff":
            text = text.replace("its backoff", "the default backoff of 1 s to 30 s")
            text = text.replace("give the backoff a max_failures", "give it a backoff of its own")
        report(BadField(key, text))

    check_intensity(child, child.max_restarts, child.restart_window, report_in_own_words)


@contextlib.contextmanager
def report_spec_error(field: str, report: ReportMistake, child: str = "") -> Iterator[None]:
    """Report what a supervisor would refuse as a mistake in this field; ``child`` is the child's name."""
    try:
        yield
    except SpecError as error:
        report(BadField(field, str(error).removeprefix(f"{field}: ").removeprefix(f"child {child!r}: ")))


@contextlib.contextmanager
def report_bad_field(report: ReportMistake) -> Iterator[None]:
    """Report a mistake raised in the block instead of raising it."""
    try:
        yield
    except BadField as error:
        report(error)
