"""The builder of agent specs: the rules for what SPAWN and a configuration file say about an agent, each once.

Paths are resolved by ``HostPaths`` or ``JailPaths`` of the module ``paths``.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import attrs
from attrs import frozen

from agentos.llm.settings import Share
from agentos.permissions.rule import PermissionSet
from agentos.services.quotas import Quota, make_quotas
from agentos_sdk import values
from agentos_sdk.strict import shown
from supervisors import Backoff, ChildSpec, SpecError, SupervisorSpec

from .inherit import cut, inherit
from .jail import layout
from .spec import (
    INTENSITY_RULE,
    PERIOD_RULE,
    AgentSpec,
    BadField,
    GroupSpec,
    Isolation,
    OnGiveUp,
    Restart,
    Runtime,
    Shutdown,
)

NO_LIMITS = values.Limits()
NO_PRICES = "there is no [llm.prices]"

Wrong = Callable[[BadField], None]
"""Takes each mistake, and raises it or notes it. If it returns, the other mistakes are found as well."""


@frozen(kw_only=True)
class Request:
    """What SPAWN or a configuration file says about one agent; ``None`` means not set. Paths are as written."""

    name: str
    script: str | None = None
    command: Sequence[str] | None = None
    args: Sequence[str] | None = None
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    python: str | None = None
    ready: Literal["hello"] | None = None
    restart: Restart | None = None
    max_restarts: int | None = None
    restart_window: float | None = None
    shutdown: Shutdown | None = None
    significant: bool | None = None
    backoff: values.Backoff | None = None
    on_give_up: OnGiveUp | None = None
    network: bool | None = None
    isolation: str | None = None
    sandboxed: bool | None = None
    limits: values.Limits | None = None
    code: str | None = None
    workspace: str | None = None
    runtime: Runtime | None = None
    llm: values.Share | None = None
    permissions: PermissionSet | None = None


CONVERTED = (
    *("script", "command", "cwd", "python", "code", "workspace"),
    *("isolation", "sandboxed", "limits", "backoff", "llm"),
)  # the other fields of a request are the spec's


class Paths(Protocol):
    """Resolves the paths of one request."""

    def resolve(self, spec: AgentSpec, request: Request, wrong: Wrong) -> AgentSpec:
        """The spec with the paths and the program of the request. Blocks."""


def build(
    request: Request, paths: Paths, wrong: Wrong, parent: AgentSpec | None = None, bounds: values.Limits = NO_LIMITS
) -> AgentSpec:
    """The spec of the requested agent. Blocks: it reads the file system.

    It never has more than its ``parent``, and its limits are cut to ``bounds``. After a mistake it isn't usable.
    """
    check_values(request, wrong)
    given = attrs.asdict(
        request, recurse=False, filter=lambda it, value: value is not None and it.name not in CONVERTED
    )
    spec = AgentSpec(
        **given,
        isolation=isolation_of(request.isolation, request.sandboxed, wrong),
        limits=cut(request.limits or NO_LIMITS, bounds),
        backoff=backoff_of(request.backoff, wrong),
        llm=share_of(request.llm, wrong),
    )
    with reported(wrong):
        spec = inherit(spec, parent) if parent is not None else spec
    if not spec.jailed:
        for name in ("code", "workspace", "runtime"):
            if getattr(request, name) not in (None, "exec"):
                wrong(BadField(name, "only a jail has this, and isolation is none: leave it out"))
    with reported(wrong):
        spec = paths.resolve(spec, request, wrong)
    for mistake in layout.mistakes(spec) if spec.jailed else layout.bad_limits(spec):
        wrong(mistake)
    return spec


def check_values(request: Request, wrong: Wrong) -> None:
    """The rules that need neither the file system nor another agent."""
    if request.script is None and not request.command:
        wrong(BadField("script", "a script or a command is missing"))
    if request.script is not None and request.command:
        wrong(BadField("script", "a script or a command, but not both"))
    for name in request.env or ():
        if not name or "=" in name:
            wrong(BadField(("env", name), f"expected the name of a variable, without '=', got {shown(name)}"))
        elif name.startswith("AGENTOS_"):
            expected = "expected a name without AGENTOS_ in front, which is the kernel's"
            wrong(BadField(("env", name), f"{expected}, got {shown(name)}"))
    for name, rule in (("max_restarts", INTENSITY_RULE), ("restart_window", PERIOD_RULE)):
        value = getattr(request, name)
        if value is not None and not rule.holds(value):
            wrong(BadField(name, f"expected {rule.expected}, got {shown(value)}"))


def isolation_of(level: str | None, sandboxed: bool | None, wrong: Wrong) -> Isolation:
    """The level that ``isolation`` and ``sandboxed`` mean together."""
    if sandboxed is False and level == "strict":
        wrong(BadField("isolation", "strict isolation needs a sandbox, and sandboxed is false: leave one of them out"))
    if sandboxed is False or level == "none":
        return "none"
    return "strict" if level == "strict" else "standard"


def backoff_of(given: values.Backoff | None, wrong: Wrong) -> Backoff | None:
    """The backoff of an agent or a supervisor."""
    with refused_by_supervisors("backoff", wrong):
        return Backoff(**attrs.asdict(given)) if given is not None else None
    return None


def share_of(given: values.Share | None, wrong: Wrong) -> Share:
    """The share of the model of an agent or a supervisor."""
    return Share(given.weight, quotas_of(given.budget, wrong, "llm", "budget")) if given is not None else Share()


def quotas_of(lines: Iterable[values.Budget], wrong: Wrong, *keys: str) -> tuple[Quota, ...]:
    """The quotas of a budget; ``keys`` lead to it."""
    quotas: dict[tuple[str, float], Quota] = {}
    for index, line in enumerate(lines):
        for quota in make_quotas(line.per, line.tokens, line.calls, line.money):
            if (quota.what, quota.per) in quotas:
                message = f"there is a budget of {quota.what} per {quota.per:g} s already"
                wrong(BadField((*keys, index, quota.what), message))
            quotas[quota.what, quota.per] = quota
    return tuple(quotas.values())


def price_missing(lacking: str = NO_PRICES) -> str:
    """The mistake of a budget of money for a model without a price."""
    return f"a budget of money needs the model's price, and {lacking}"


def check_reach(child: AgentSpec | GroupSpec, intensity: int, period: float, wrong: Wrong) -> None:
    """Whether a child with this backoff can exceed the intensity. Otherwise it would be restarted for ever."""
    with refused_by_supervisors("backoff", wrong, child.name):
        one = ChildSpec(child.name, SupervisorSpec(), restart=child.restart, backoff=child.backoff)
        SupervisorSpec([one], intensity=intensity, period=period)


@contextlib.contextmanager
def refused_by_supervisors(field: str, wrong: Wrong, child: str = "") -> Iterator[None]:
    """Report what a supervisor would refuse as a mistake in this field; ``child`` is the child's name."""
    try:
        yield
    except SpecError as error:
        wrong(BadField(field, str(error).removeprefix(f"{field}: ").removeprefix(f"child {child!r}: ")))


@contextlib.contextmanager
def reported(wrong: Wrong) -> Iterator[None]:
    """Report a mistake that is raised here; what follows is done nevertheless."""
    try:
        yield
    except BadField as error:
        wrong(error)
