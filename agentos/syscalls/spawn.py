"""Handler of SPAWN: turns a request into an agent's spec and starts the agent."""

from collections.abc import Callable, Sequence

import trio
from attrs import asdict, field, frozen

from agentos.agents.inherit import ExceedsParent, cut, inherit
from agentos.agents.jail import layout
from agentos.agents.rate_limit import Rate
from agentos.agents.registry import Agent, Registry, StartError
from agentos.agents.spec import AgentSpec, Limits, Restart, check_name, isolation_of
from agentos.agents.supervision import Supervision
from agentos.agents.workspaces import script_copies
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Right
from agentos.llm.settings import Share
from agentos.permissions.authorizer import NOT_HELD
from agentos.permissions.rule import PermissionSet
from agentos.services.quotas import Quota, budget_of
from agentos_sdk.calls import agents as calls
from agentos_sdk.errors import AlreadyExists, BadRequest, PermissionDenied, QuotaExceeded
from agentos_sdk.quantities import duration
from supervisors import Backoff, SpecError

from . import permissions
from .rights import Rights
from .spawn_paths import Places

RESTARTS: dict[str, Restart] = {"always": "permanent", "on-failure": "transient", "never": "temporary"}
POLICIES = {restart: policy for policy, restart in RESTARTS.items()}
MAX_RESTARTS = 1000  # as in a configuration file


@frozen
class Spawning:
    """Answers SPAWN. ``base`` is the directory that the operator's relative paths are resolved against."""

    registry: Registry
    supervision: Supervision
    callers: Rights
    is_taken: Callable[[str], bool]  # whether a caller has that name already
    base: str
    _rates: dict[str, Rate] = field(factory=dict, init=False)  # of guests, by name

    async def spawn(self, call: Call, request: calls.Spawn) -> calls.Spawned:
        """Start an agent and wait until it is running."""
        caller = call.caller
        parent = self.registry.find(caller.id, None) if caller.kind == "agent" else None
        rate = self._rate_of(caller, parent)
        if rate is not None:  # before permissions are parsed, files are read and the script is copied
            self._pace(caller, rate)
        try:
            given = await self._given(caller, request)
        except PermissionDenied as error:
            decision = Decision("deny", NOT_HELD, str(error))
            caller.audit.note(caller.entry("SPAWN", told(request, None), decision, "outcome", error.code))
            raise
        rights = await self._rights(caller, request)
        await call.require(*rights, about=told(request, given))
        spec = await self._understood(caller, request, given, rights)
        try:
            agent = await self._start(spec, caller, parent)
        except BaseException:
            script_copies.discard(spec)
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
        elif caller.kind == "guest":
            self._ration_guest(caller)
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

    def _rate_of(self, caller: Caller, parent: Agent | None) -> Rate | None:
        """The caller's rate limit; a guest's belongs to its name. None for the operator."""
        if caller.kind != "guest":
            return parent.rate if parent is not None else None
        limits = self.supervision.limits
        return self._rates.setdefault(caller.name, Rate(limits.per_second, limits.children))

    def _pace(self, caller: Caller, rate: Rate) -> None:
        limits, wait = self.supervision.limits, rate.wait(trio.current_time())
        if wait > 0:
            raise QuotaExceeded(
                f"{caller.name} may spawn {limits.per_second:g} agents per second (kernel.spawn_rate): "
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

    def _ration_guest(self, guest: Caller) -> None:
        most = self.supervision.limits.children
        if sum(not agent.over.is_set() and self.registry.is_own(guest, agent.id) for agent in self.registry) >= most:
            raise QuotaExceeded(f"{guest.name} may have {most} living agents (kernel.max_children)")

    async def rights(self, caller: Caller, request: calls.Spawn) -> Sequence[Right]:
        """The rights that SPAWN would need. If the caller holds them, other refusals are raised here."""
        given, rights = await self._given(caller, request), await self._rights(caller, request)
        if all(caller.authorizer.decide(caller, right).effect == "allow" for right in rights):
            script_copies.discard(await self._understood(caller, request, given, rights))
        return rights

    async def _understood(
        self, caller: Caller, request: calls.Spawn, given: PermissionSet | None, rights: Sequence[Right]
    ) -> AgentSpec:
        """The agent's spec for a caller with these rights; a host path must still lead to the checked file."""
        parent = self.registry.find(caller.id, None) if caller.kind == "agent" else None
        if caller.kind == "guest":
            refuse_to_guests(request)
        spec = await trio.to_thread.run_sync(self._spec, caller, parent, request, given, self.callers.limits(caller))
        if caller.kind == "guest":
            shown = spec.script or await trio.to_thread.run_sync(layout.own_program, spec)
            if shown not in (None, *(right.object for right in rights)):
                raise PermissionDenied("script, command: somebody replaced it while it was looked at")
        return spec

    async def _rights(self, caller: Caller, request: calls.Spawn) -> Sequence[Right]:
        """The right to spawn; for a guest, which uses host paths, also the right to read the named program."""
        if caller.kind != "guest":
            return [Right("spawn")]
        places = Places(self.base, None, self.supervision.deps.run.directory)
        asked, real = await trio.to_thread.run_sync(places.program_of, request)
        return [Right("spawn"), *([Right("read", real, told=asked)] if asked is not None else [])]

    async def _given(self, caller: Caller, request: calls.Spawn) -> PermissionSet | None:
        """The new agent's permissions, if the request names them; never more than its spawner has."""
        if request.permissions is None:
            return None
        given = await self.callers.read(request.permissions, "permissions", "SPAWN", caller)
        self.callers.authorizer.check_not_wider(given, caller.id, "permissions")
        return given

    def _spec(
        self,
        caller: Caller,
        parent: Agent | None,
        request: calls.Spawn,
        given: PermissionSet | None,
        bounds: Limits,
    ) -> AgentSpec:
        """Build the spec of the requested agent. Blocks: it reads files."""
        check_name(request.name, "name")
        if (request.script is None) == (not request.command):
            raise BadRequest("script: expected exactly one of script (a Python file) and command (an argv)")
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
            limits=cut(Limits(**asdict(request.limits)), bounds),
            runtime=request.runtime,
            llm=self._share(request.llm),
            permissions=given,
        )
        try:
            spec = inherit(spec, parent.spec) if parent is not None else spec
            sole = caller.kind != "operator"
            places = Places(self.base, parent, self.supervision.deps.run.directory, sole)
            spec = places.inside(spec, request) if spec.jailed else places.outside(spec, request)
        except ExceedsParent as error:
            raise PermissionDenied(str(error)) from None
        except layout.LayoutError as error:
            raise BadRequest(str(error)) from None
        except OSError as error:  # a part of the path is being replaced meanwhile
            raise BadRequest(f"a path that is named here can't be followed: {error.strerror}") from None
        return spec

    def _share(self, given: calls.Share) -> Share:
        quotas: dict[tuple[str, float], Quota] = {}
        for line in given.budget:
            if line.money is not None and not self.callers.priced:
                raise BadRequest("llm.budget: a budget of money needs the model's price, and there is no [llm.prices]")
            for quota in budget_of(line.per, line.tokens, line.calls, line.money):
                if (quota.what, quota.per) in quotas:
                    raise BadRequest(f"llm.budget: two budgets of {quota.what} per {duration(quota.per)}")
                quotas[quota.what, quota.per] = quota
        return Share(given.weight, tuple(quotas.values()))


def refuse_to_guests(request: calls.Spawn) -> None:
    """Raise ``PermissionDenied`` for options that are reserved for the operator."""
    if request.isolation == "none" or request.sandboxed is False:
        raise PermissionDenied("isolation: an agent without isolation is the operator's alone to start")
    if request.network:
        raise PermissionDenied("network: an agent with the host's network is the operator's alone to start")
    for name in ("code", "python"):
        if getattr(request, name) is not None:
            raise PermissionDenied(f"{name}: what else of the host's an agent sees is the operator's to say")
    if request.workspace not in (None, "tmp"):
        raise PermissionDenied("workspace: one that outlives the agent is the operator's to give: say tmp")


def told(request: calls.Spawn, given: PermissionSet | None) -> str:
    """The description of a request for the audit log."""
    program = request.script if request.script is not None else " ".join(request.command or ())
    parts = [f"{request.name}: {program}"]
    if request.isolation == "none" or request.sandboxed is False:
        parts.append("without isolation")
    if given is not None:
        parts.append(f"permissions {permissions.told(given)}")
    elif isinstance(request.permissions, str):
        parts.append(f"permissions {request.permissions}")
    return ", ".join(parts)


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
    """The isolation layers as read back before the program started."""
    layers = {name: calls.Layer(**layer) for name, layer in agent.layers.items()}
    return calls.Isolation(level=agent.spec.isolation, layers=layers)
