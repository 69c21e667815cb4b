"""Handler of SPAWN: prepares the spec of the requested agent, and starts the agent."""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256

import attrs
import trio
from attrs import field, frozen
from msgspec import Struct
from msgspec.structs import replace

from agentos.access.callers import Callers
from agentos.agents.builder import Paths, Request, build, check_restart_limits, describe_missing_price
from agentos.agents.jail import layout
from agentos.agents.paths import HostPaths, JailPaths
from agentos.agents.registry import Agent, StartError
from agentos.agents.spec import AgentSpec, BadField, check_name
from agentos.agents.tree.supervision import Supervision
from agentos.agents.workspaces import script_copies
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared, Refused
from agentos.llm.queue.classes import check_class
from agentos.permissions.approvals.text import describe_message
from agentos.permissions.authorizer import NOT_HELD
from agentos.permissions.rule import PermissionSet
from agentos.services.files.foreign_files import read_regular
from agentos.services.rate_limit import Rate
from agentos.syscalls.operator import permissions
from agentos.threads import run_in_thread
from agentos_sdk.calls import agents as calls
from agentos_sdk.encoding import codec
from agentos_sdk.errors import AlreadyExists, BadRequest, CallError, PermissionDenied, QuotaExceeded
from agentos_sdk.values import Limits
from supervisors.strategy import Restart

RESTARTS: dict[str, Restart] = {"always": "permanent", "on-failure": "transient", "never": "temporary"}
SHOWN_FIRST = (
    *("script", "command", "permissions", "isolation", "sandboxed", "network"),
    *("workspace", "workspace_mode", "code", "image", "user", "limits"),
)
POLICIES = {restart: policy for policy, restart in RESTARTS.items()}


class Draft(Struct, frozen=True):
    """What a SPAWN would start, and the rights that it needs.

    ``error`` is why it can't be started, which only a caller with these rights may see. ``script`` is one in the
    caller's jail, which is copied after the decision.
    """

    rights: Sequence[Right]
    spec: AgentSpec | None = None
    script: script_copies.JailScript | None = None
    error: CallError | None = None


@frozen
class Spawning:
    """Answers SPAWN."""

    supervision: Supervision
    callers: Callers
    _rates: dict[str, Rate] = field(factory=dict, init=False)  # of guests, by name

    @property
    def base(self) -> str:
        """The directory that the operator's relative paths are resolved against."""
        return self.supervision.deps.host_view.base

    def is_taken(self, name: str) -> bool:
        """Whether an agent or another caller has that name already."""
        return self.callers.registry.is_taken(name) or self.callers.mail.is_taken(name)

    async def prepare(self, caller: Caller, request: calls.Spawn) -> Prepared:
        """Start an agent and wait until it is running."""
        try:
            given = await self._read_permissions(caller, request)
        except PermissionDenied as error:
            raise Refused(error, describe_request(request, None), NOT_HELD) from None
        parent = self.callers.registry.find(caller.id, None) if caller.kind == "agent" else None
        bounds = self.callers.limits(caller)
        draft = await run_in_thread(self._prepare, caller, parent, request, given, bounds)

        async def act(call: Call) -> calls.Spawned:
            if caller.kind == "operator":
                return await self._act(call, parent, draft)
            # The intent may have waited for seconds: paths may lead elsewhere by now, and limits may be narrower.
            bounds = self.callers.limits(caller)
            again = await run_in_thread(self._prepare, caller, parent, request, given, bounds)
            if again.error is not None:
                raise again.error
            if (again.rights, again.script) != (draft.rights, draft.script):
                raise PermissionDenied(f"{'script' if request.script else 'command'}: {script_copies.CHANGED}")
            return await self._act(call, parent, again)

        @cache
        def look() -> bytes:  # once: what is shown is what the approval is bound to
            return read_program(draft)

        return Prepared(
            draft.rights,
            act,
            describe_request(request, given),
            error=draft.error,
            shown=lambda: describe_spawn(request, look()),
            identity=lambda: sha256(look()).digest(),
        )

    def charge(self, caller: Caller) -> None:
        """Take a token of the caller's spawn rate. A guest's rate belongs to its name; the operator has none."""
        limits = self.supervision.limits
        if caller.kind == "guest":
            rate = self._rates.setdefault(caller.name, Rate(limits.per_second, limits.children))
        elif caller.kind == "agent":
            rate = self.callers.registry.find(caller.id, None).rate
        else:
            return
        if (wait := rate.wait(trio.current_time())) > 0:
            raise QuotaExceeded(
                f"{caller.name} may spawn {limits.per_second:g} agents per second (kernel.spawn_rate): "
                f"the next in {wait:.2f} s"
            )

    async def _act(self, call: Call, parent: Agent | None, draft: Draft) -> calls.Spawned:
        """Start the agent, with a copy of its script if that is in the caller's jail."""
        spec = draft.spec
        assert spec is not None, "a draft has a spec or an error"
        if draft.script is not None:
            copy = await trio.to_thread.run_sync(draft.script.copy, self.supervision.deps.run.directory)
            spec = replace(spec, script=copy)
        try:
            if self.is_taken(spec.name):
                raise AlreadyExists(f"name: {spec.name!r} is taken")
            self.check_child_count(call.caller, parent)
            agent = await self.supervision.spawn(spec, call.caller, parent)
        except StartError as error:
            script_copies.discard(spec)
            if error.end.exit_code is not None or error.end.signal is not None:
                call.outcome, call.remark = "ended", f"it ran: {error.end.reason}"
            raise error.error(
                f"{spec.name} did not start: {error}",
                exit_code=error.end.exit_code,
                signal=error.end.signal,
                stderr=error.stderr,
            ) from None
        except BaseException:
            script_copies.discard(spec)
            raise
        return calls.Spawned(
            id=agent.id,
            name=agent.name,
            pid=agent.pid or 0,
            status=str(agent.state),
            restart_policy=POLICIES[spec.restart],
            isolation=describe_isolation(agent),
        )

    def check_child_count(self, caller: Caller, parent: Agent | None) -> None:
        """Raise ``QuotaExceeded`` if the guest, the agent or one that it descends from has too many living agents."""
        most, above = self.supervision.limits.children, parent
        if caller.kind == "guest":
            registry = self.callers.registry
            own = [one for one in registry if not one.over.is_set() and registry.is_own(caller, one.id)]
            if len(own) >= most:
                raise QuotaExceeded(f"{caller.name} may have {most} living agents (kernel.max_children)")
        while above is not None:
            if len(self.callers.registry.living_below(above)) >= most:
                raise QuotaExceeded(
                    f"{above.name} may have {most} living agents below it (kernel.max_children): "
                    "there is room again when one of them has ended"
                )
            above = above.parent

    async def _read_permissions(self, caller: Caller, request: calls.Spawn) -> PermissionSet | None:
        """The new agent's permissions, if the request names them; never more than its spawner has."""
        if request.permissions is None:
            return None
        given = await self.callers.sets.read(request.permissions, "permissions", "SPAWN", caller)
        self.callers.authorizer.check_not_wider(given, caller.id, "permissions")
        return given

    def _prepare(
        self, caller: Caller, parent: Agent | None, request: calls.Spawn, given: PermissionSet | None, bounds: Limits
    ) -> Draft:
        """The blocking part of :meth:`prepare`: it reads files."""
        draft, host = Draft([Right("spawn")]), HostPaths(self.base)
        try:
            if caller.kind == "guest":  # uses host paths: the program must be one that it may read
                if (program := host.program_of(request.script, request.command)) is not None:
                    named, real = program
                    draft = replace(draft, rights=[*draft.rights, Right("read", real, shown_as=named)])
                check_guest_options(request)
            spec = self.build(caller, parent, request, given, bounds)
            if caller.kind == "guest":
                shown = spec.script or layout.own_program(spec)
                if shown not in (None, *(right.object for right in draft.rights)):
                    raise PermissionDenied(f"{'script' if spec.script else 'command'}: {script_copies.CHANGED}")
            script = None
            if spec.copied and spec.script is not None and parent is not None:
                script = script_copies.JailScript.look_at(parent, spec.script)
            return replace(draft, spec=spec, script=script)
        except CallError as error:
            return replace(draft, error=error)
        except OSError as error:  # a part of the path is being replaced meanwhile
            sentence = f"a path that is named here can't be followed: {error.strerror}"
            return replace(draft, error=BadRequest(sentence))

    def build(
        self, caller: Caller, parent: Agent | None, request: calls.Spawn, given: PermissionSet | None, bounds: Limits
    ) -> AgentSpec:
        """The spec that a request stands for; raises a ``CallError``. Blocks."""
        above = parent.spec if parent is not None else None

        def refuse(mistake: BadField) -> None:
            raise mistake.error(f"{mistake.field}: {layout.replace_host_paths(mistake.message, None, above)}")

        check_name(request.name, "name")
        fields = {**attrs.asdict(request, recurse=False), "restart": choose_restart(request), "permissions": given}
        del fields["restart_policy"]
        paths: Paths = HostPaths(self.base, single_link=caller.kind != "operator")
        if parent is not None and parent.spec.jailed:
            paths = JailPaths(parent)
        spec = build(Request(**fields), paths, refuse, above, bounds)
        check_restart_limits(spec, refuse)
        if caller.kind != "operator":
            check_class(spec.llm.class_, "llm.class", parent.queue_path if parent is not None else ())
        if not self.callers.sets.priced and any(quota.what == "money" for quota in spec.llm.budget):
            raise BadRequest(f"llm.budget: {describe_missing_price()}")
        return spec


def check_guest_options(request: calls.Spawn) -> None:
    """Raise ``PermissionDenied`` for options that are reserved for the operator."""
    if request.isolation == "none" or request.sandboxed is False:
        raise PermissionDenied("isolation: an agent without isolation is the operator's alone to start")
    if request.network in (True, "host"):
        raise PermissionDenied("network: an agent with the host's network is the operator's alone to start")
    for name in ("code", "python"):
        if getattr(request, name) is not None:
            raise PermissionDenied(f"{name}: only the operator may give an agent further host files: leave it out")
    if request.image is not None:
        raise PermissionDenied("image: only the operator may give an agent one: leave it out")
    if request.workspace not in (None, "tmp"):
        raise PermissionDenied("workspace: only the operator may give one that outlives the agent: say tmp")


def describe_request(request: calls.Spawn, given: PermissionSet | None) -> str:
    """The description of a request for the audit log."""
    program = request.script if request.script is not None else " ".join(request.command or ())
    parts = [f"{request.name}: {program}"]
    if request.isolation == "none" or request.sandboxed is False:
        parts.append("without isolation")
    if given is not None:
        parts.append(f"permissions {permissions.summarize_set(given)}")
    elif isinstance(request.permissions, str):
        parts.append(f"permissions {request.permissions}")
    return ", ".join(parts)


def read_program(draft: Draft) -> bytes:
    """The script that would run, as far as it can be read; empty for a command. Blocks."""
    try:
        if draft.script is not None:
            return script_copies.read(draft.script.agent, draft.script.path)
        if draft.spec is not None and draft.spec.script is not None:
            return read_regular(draft.spec.script, script_copies.MAX_SCRIPT)
    except (OSError, CallError):
        pass  # then it won't be started either
    return b""


def describe_spawn(request: calls.Spawn, script: bytes) -> str:
    """What a person sees of a SPAWN: what the request says, beginning with what it may do, and the script."""
    plain, fields = calls.Spawn(name=request.name), attrs.asdict(request, recurse=False)
    given = [
        (name, codec.encode(fields[name]).decode())
        for name in dict.fromkeys((*SHOWN_FIRST, *fields))
        if fields[name] != getattr(plain, name)
    ]
    text = ("script", script.decode(errors="replace")) if script else ("a command, or a script that can't be read", "")
    return describe_message("SPAWN", request.name, [text], given)


def choose_restart(request: calls.Spawn) -> Restart:
    if request.restart is not None and request.restart_policy is not None:
        raise BadRequest("restart_policy: restart says it already; leave one of them out")
    return request.restart or RESTARTS[request.restart_policy or "never"]


def describe_isolation(agent: Agent) -> calls.Isolation:
    """The isolation layers as read back before the program started."""
    return calls.Isolation(level=agent.spec.isolation, layers=agent.life.layers)
