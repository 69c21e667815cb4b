"""SPAWN: from what a caller asks for to an agent that is up, and what to say about it."""

from collections.abc import Callable

import trio
from attrs import asdict, frozen

from agentos.agents import copies, dwelling
from agentos.agents.inherit import Beyond, inherit
from agentos.agents.registry import Agent, Registry, StartError
from agentos.agents.spec import NAME, NAME_RULE, AgentSpec, Limits, Restart, isolation_of
from agentos.agents.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.llm.settings import Share, budget_of
from agentos.services.quotas import Quota
from agentos_sdk.calls import agents as calls
from agentos_sdk.errors import AlreadyExists, BadRequest, PermissionDenied, QuotaExceeded, Unavailable
from agentos_sdk.quantities import duration
from supervisors import Backoff, SpecError

from .places import Places

RESTARTS: dict[str, Restart] = {"always": "permanent", "on-failure": "transient", "never": "temporary"}
POLICIES = {restart: policy for policy, restart in RESTARTS.items()}
MAX_RESTARTS = 1000  # as in a configuration file


@frozen
class Spawning:
    """Answers SPAWN. ``base`` is the directory that the operator's relative paths are resolved against."""

    registry: Registry
    supervision: Supervision
    is_taken: Callable[[str], bool]  # whether a caller goes by that name already
    base: str
    priced: bool = False  # some model has a price

    async def spawn(self, call: Call, request: calls.Spawn) -> calls.Spawned:
        """Start an agent, and wait until it is up."""
        caller = call.caller
        await call.require(Right("spawn"))
        parent = self.registry.find(caller.id, None) if caller.kind == "agent" else None
        if parent is not None:
            self._pace(parent)  # before its files are looked at and its script is copied
        spec = await trio.to_thread.run_sync(self._spec, parent, request)
        try:
            agent = await self._start(spec, caller, parent)
        except BaseException:
            copies.discard(spec)
            raise
        return calls.Spawned(
            id=agent.id,
            name=agent.name,
            pid=agent.pid or 0,
            status=str(agent.state),
            restart_policy=POLICIES[spec.restart],
            isolation=isolation(agent),
        )

    async def _start(self, spec: AgentSpec, caller: Caller, parent: Agent | None) -> Agent:
        if self.registry.is_taken(spec.name) or self.is_taken(spec.name):
            raise AlreadyExists(f"name: {spec.name!r} is taken")
        if parent is not None:
            self._ration(parent)
        try:
            return await self.supervision.spawn(spec, caller, parent)
        except SpecError as error:
            raise BadRequest(f"backoff: {error}") from None
        except StartError as error:
            raise error.error(
                f"{spec.name} did not start: {error}",
                exit_code=error.end.code,
                signal=error.end.signal,
                stderr=error.stderr,
            ) from None

    def _pace(self, parent: Agent) -> None:
        limits, wait = self.supervision.limits, parent.rate.wait(trio.current_time())
        if wait > 0:
            raise QuotaExceeded(
                f"{parent.name} may spawn {limits.per_second:g} agents per second (kernel.spawn_rate): "
                f"the next in {wait:.2f} s"
            )

    def _ration(self, parent: Agent) -> None:
        limits = self.supervision.limits
        above: Agent | None = parent
        while above is not None:
            if len(self.registry.living_below(above)) >= limits.children:
                raise QuotaExceeded(
                    f"{above.name} may have {limits.children} living agents below it (kernel.max_children): "
                    "there is room again when one of them has ended"
                )
            above = above.parent

    def _spec(self, parent: Agent | None, request: calls.Spawn) -> AgentSpec:
        """What the request describes; looks at files, so not in the event loop's thread."""
        if not NAME.fullmatch(request.name):
            raise BadRequest(f"name: expected {NAME_RULE}, got {request.name!r}")
        if (request.script is None) == (not request.command):
            raise BadRequest("script: expected exactly one of script (a Python file) and command (an argv)")
        if request.permissions is not None:
            raise Unavailable("permissions: this kernel doesn't have that yet; leave it out")
        if not 0 <= request.max_restarts <= MAX_RESTARTS:
            raise BadRequest(f"max_restarts: expected 0 to {MAX_RESTARTS}, got {request.max_restarts}")
        if request.restart_window <= 0:
            raise BadRequest(f"restart_window: expected more than 0 seconds, got {request.restart_window:g}")
        for name in request.env:
            if not name or "=" in name or name.startswith("AGENTOS_"):
                raise BadRequest(f"env.{name}: expected a variable's name, without '=' and not AGENTOS_... (ours)")
        try:
            isolated = isolation_of(request.isolation, request.sandboxed)
        except ValueError as error:
            raise BadRequest(f"isolation: {error}") from None
        spec = AgentSpec(
            name=request.name,
            args=tuple(request.args),
            env=dict(request.env),
            ready=request.ready,
            restart=restart_of(request),
            max_restarts=request.max_restarts,
            restart_window=request.restart_window,
            shutdown=request.shutdown,
            backoff=backoff_of(request),
            network=request.network,
            isolation=isolated,
            limits=Limits(**asdict(request.limits)),
            runtime=request.runtime,
            llm=self._share(request.llm),
        )
        try:
            spec = inherit(spec, parent.spec) if parent is not None else spec
            places = Places(self.base, parent, self.supervision.kit.run.directory)
            spec = places.inside(spec, request) if spec.jailed else places.outside(spec, request)
        except Beyond as error:
            raise PermissionDenied(str(error)) from None
        except dwelling.Misplaced as error:
            raise BadRequest(str(error)) from None
        except OSError as error:  # somebody replaces what lies on the way while it is looked at
            raise BadRequest(f"a path that is named here can't be followed: {error.strerror}") from None
        return spec

    def _share(self, given: calls.Share) -> Share:
        quotas: dict[tuple[str, float], Quota] = {}
        for line in given.budget:
            if line.money is not None and not self.priced:
                raise BadRequest("llm.budget: a budget of money needs the model's price, and there is no [llm.prices]")
            for quota in budget_of(line.per, line.tokens, line.calls, line.money):
                if (quota.what, quota.per) in quotas:
                    raise BadRequest(f"llm.budget: two budgets of {quota.what} per {duration(quota.per)}")
                quotas[quota.what, quota.per] = quota
        return Share(given.weight, tuple(quotas.values()))


def restart_of(request: calls.Spawn) -> Restart:
    if request.restart is not None and request.restart_policy is not None:
        raise BadRequest("restart_policy: restart says it already; leave one of them out")
    return request.restart or RESTARTS[request.restart_policy or "never"]


def backoff_of(request: calls.Spawn) -> Backoff | None:
    if request.backoff is None:
        return None
    given = request.backoff
    try:
        return Backoff(
            first=given.first,
            min=given.min,
            factor=given.factor,
            max=given.max,
            jitter=given.jitter,
            reset_after=given.reset_after,
            max_failures=given.max_failures,
        )
    except ValueError as error:
        raise BadRequest(f"backoff: {error}") from None


def isolation(agent: Agent) -> calls.Isolation:
    """What was read back of an agent's walls before it began."""
    layers = {name: calls.Layer(**layer) for name, layer in agent.layers.items()}
    return calls.Isolation(level=agent.spec.isolation, layers=layers)
