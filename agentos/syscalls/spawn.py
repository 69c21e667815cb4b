"""SPAWN: from what a caller asks for to an agent that is up, and what to say about it."""

import os
import shutil
import stat
from collections.abc import Callable, Sequence

import trio
from attrs import asdict, frozen

from agentos.agents.life import PATH
from agentos.agents.registry import Agent, Registry, StartError
from agentos.agents.spec import NAME, NAME_RULE, AgentSpec, Limits, Restart
from agentos.agents.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.sandbox.plain import LAYERS, REASON
from agentos_sdk.calls import agents as calls
from agentos_sdk.errors import (
    AlreadyExists,
    BadRequest,
    IsolationUnavailable,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from supervisors import Backoff, SpecError

RESTARTS: dict[str, Restart] = {"always": "permanent", "on-failure": "transient", "never": "temporary"}
POLICIES = {restart: policy for policy, restart in RESTARTS.items()}
MAX_RESTARTS = 1000  # as in a configuration file
NOT_BUILT = ("code", "workspace", "permissions")  # keys of SPAWN that later versions will serve


@frozen
class Spawner:
    """Answers SPAWN. ``base`` is the directory that the operator's relative paths are resolved against."""

    registry: Registry
    supervision: Supervision
    is_taken: Callable[[str], bool]  # whether a caller goes by that name already
    base: str

    async def spawn(self, call: Call, request: calls.Spawn) -> calls.Spawned:
        """Start an agent, and wait until it is up."""
        caller = call.caller
        await call.require(Right("spawn"))
        spec = await trio.to_thread.run_sync(self._spec, caller, request)
        if self.registry.is_taken(spec.name) or self.is_taken(spec.name):
            raise AlreadyExists(f"name: {spec.name!r} is taken")
        parent = self.registry.find(caller.id, None) if caller.kind == "agent" else None
        if parent is not None:
            self._ration(caller)
        try:
            agent = await self.supervision.spawn(spec, caller, parent)
        except SpecError as error:
            raise BadRequest(f"backoff: {error}") from None
        except StartError as error:
            raise Unavailable(
                f"{spec.name} did not start: {error}",
                exit_code=error.end.code,
                signal=error.end.signal,
                stderr=error.stderr,
            ) from None
        return calls.Spawned(
            id=agent.id,
            name=agent.name,
            pid=agent.pid or 0,
            status=str(agent.state),
            restart_policy=POLICIES[spec.restart],
            isolation=isolation(spec),
        )

    def _ration(self, caller: Caller) -> None:
        limits = self.supervision.limits
        agent = self.registry.find(caller.id, None)
        above: Agent | None = agent
        while above is not None:
            if len(self.registry.living_below(above)) >= limits.children:
                raise QuotaExceeded(
                    f"{above.name} may have {limits.children} living agents below it (kernel.max_children): "
                    "there is room again when one of them has ended"
                )
            above = above.parent
        wait = agent.rate.wait(trio.current_time())
        if wait > 0:
            raise QuotaExceeded(
                f"{caller.name} may spawn {limits.per_second:g} agents per second (kernel.spawn_rate): "
                f"the next in {wait:.2f} s"
            )

    def _spec(self, caller: Caller, request: calls.Spawn) -> AgentSpec:
        """What the request describes; looks at files, so not in the event loop's thread."""
        if not NAME.fullmatch(request.name):
            raise BadRequest(f"name: expected {NAME_RULE}, got {request.name!r}")
        if (request.script is None) == (not request.command):
            raise BadRequest("script: expected exactly one of script (a Python file) and command (an argv)")
        self._refuse_unbuilt(request)
        if not 0 <= request.max_restarts <= MAX_RESTARTS:
            raise BadRequest(f"max_restarts: expected 0 to {MAX_RESTARTS}, got {request.max_restarts}")
        if request.restart_window <= 0:
            raise BadRequest(f"restart_window: expected more than 0 seconds, got {request.restart_window:g}")
        for name in request.env:
            if not name or "=" in name or name.startswith("AGENTOS_"):
                raise BadRequest(f"env.{name}: expected a variable's name, without '=' and not AGENTOS_... (ours)")
        base, search = self._base(caller), request.env.get("PATH", PATH)
        cwd = self._path(base, request.cwd or base)
        if not os.path.isdir(cwd):
            raise NotFound(f"cwd: there is no directory {cwd}")
        return AgentSpec(
            name=request.name,
            script=readable("script", self._path(base, request.script)) if request.script is not None else None,
            command=runnable("command", request.command, base, search) if request.command else None,
            args=tuple(request.args),
            env=dict(request.env),
            cwd=cwd,
            python=runnable("python", (request.python,), base, PATH)[0] if request.python else None,
            ready=request.ready,
            restart=restart_of(request),
            max_restarts=request.max_restarts,
            restart_window=request.restart_window,
            shutdown=request.shutdown,
            backoff=backoff_of(request),
            sandboxed=request.sandboxed,
            network=request.network,
            isolation=request.isolation,
            limits=Limits(**asdict(request.limits)),
        )

    def _refuse_unbuilt(self, request: calls.Spawn) -> None:
        for key in NOT_BUILT:
            if getattr(request, key) is not None:
                raise Unavailable(f"{key}: this kernel doesn't have that yet; leave it out")
        if request.runtime == "fast":
            raise Unavailable("runtime: this kernel starts every agent by exec; leave it out or say exec")
        if request.isolation == "strict":
            raise IsolationUnavailable(f"isolation: strict can't be had: {REASON}; ask for standard to run without")

    def _base(self, caller: Caller) -> str:
        if caller.kind == "agent":
            return self.registry.find(caller.id, None).spec.cwd or self.base
        return self.base

    def _path(self, base: str, path: str) -> str:
        return os.path.normpath(os.path.join(base, os.path.expanduser(path)))


def readable(field: str, path: str) -> str:
    """``path`` if it is a file that can be read; ``NotFound`` or ``BadRequest`` if not."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadRequest(f"{field}: {path} is no file")  # and to open a FIFO would wait for its writer
        with open(path, "rb"):
            return path
    except FileNotFoundError:
        raise NotFound(f"{field}: there is no file {path}") from None
    except OSError as error:
        raise BadRequest(f"{field}: {path} can't be read: {error.strerror}") from None


def runnable(field: str, argv: Sequence[str], base: str, search: str) -> tuple[str, ...]:
    """``argv`` with its program as an absolute path; ``NotFound`` where there is none."""
    program, *rest = argv
    if "/" in program:
        program = os.path.normpath(os.path.join(base, os.path.expanduser(program)))
    found = shutil.which(program, path=search)
    if found is None:
        raise NotFound(f"{field}: there is no program {program!r} that can be run")
    return (found, *rest)


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


def isolation(spec: AgentSpec) -> calls.Isolation:
    """The truth: nothing separates the agent from its host but its being a process."""
    asked: dict[str, object] = dict.fromkeys(LAYERS, spec.sandboxed)
    asked |= {"net_ns": spec.sandboxed and not spec.network}
    asked |= {"memory": spec.limits.memory, "pids": spec.limits.max_pids, "cpu": spec.limits.cpu_quota}
    asked |= {"disk": spec.limits.disk}
    layers = {name: calls.Layer(asked=asked[name], active=False, reason=REASON) for name in LAYERS}
    return calls.Isolation(level="none", layers=layers)
