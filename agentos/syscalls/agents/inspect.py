"""Handler of INSPECT."""

import time
from collections.abc import Sequence

import trio

from agentos.agents.inherit import effective, named
from agentos.agents.jail import layout
from agentos.agents.jail.usage import read_usage
from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import AgentSpec
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.llm.line import Line
from agentos.llm.models.model import ModelState
from agentos.llm.queue.classes import find_class
from agentos.llm.queue.states import QueueState
from agentos.llm.settings import queue_names
from agentos.sandbox.cgroups import v2
from agentos.sandbox.cgroups.discover import Group
from agentos.services.http.egress import Egress
from agentos.services.quotas import MONEY_UNITS, OF_MODEL, BudgetState
from agentos_sdk.calls import inspect as calls
from agentos_sdk.opcodes import Op
from agentos_sdk.values import ResourceUsage

from .spawn import describe_isolation


def syscalls(registry: Registry, line: Line, egress: Egress) -> tuple[Syscall, ...]:
    async def prepare(caller: Caller, request: calls.Inspect) -> Prepared:
        agent = registry.find(request.id, request.name)

        async def act(call: Call) -> calls.Inspected:
            used = await trio.to_thread.run_sync(read_usage, agent)
            llm = describe_model(line, agent)
            return describe_agent(registry, agent, used, llm, egress.upstream_proxy, caller.kind == "operator")

        return Prepared((Right("inspect", agent=agent.id),), act)

    return (Syscall(Op.INSPECT, calls.Inspect, prepare=prepare),)


def describe_agent(
    registry: Registry,
    agent: Agent,
    used: ResourceUsage,
    llm: calls.Model,
    upstream_proxy: str | None,
    by_operator: bool,
) -> calls.Inspected:
    """The description of an agent. Host paths and uids are shown only to the operator."""
    jail, alive = agent.life.jail, agent.pid is not None
    age = trio.current_time() - agent.life.since
    return calls.Inspected(
        id=agent.id,
        name=agent.name,
        state=str(agent.state),
        pid=agent.pid,
        lives=agent.lives,
        restarts=agent.restarts,
        since=time.time() - age if alive else None,
        uptime_ms=int(age * 1000) if alive else 0,
        parent=describe_relative(agent.parent) if agent.parent is not None else None,
        supervisor="/".join(agent.path),
        children=[describe_relative(other) for other in registry if other.parent is agent and not other.over.is_set()],
        spec=describe_start(agent.spec, by_operator),
        isolation=describe_isolation(agent),
        limits=effective(agent.spec),
        named=sorted(named(agent.spec.limits)),
        usage=used,
        llm=llm,
        health=describe_health(agent),
        outer=jail.parts.outer if jail is not None and by_operator else None,
        cgroups=list_directories(jail.group) if jail is not None and jail.group is not None and by_operator else None,
        end=agent.end,
        upstream_proxy=upstream_proxy,
        next_at=agent.due_at,
        wakes_on=agent.spec.wakes_on,
        forked_from=agent.forked_from,
        image=describe_image(agent),
    )


def describe_image(agent: Agent) -> calls.ImageInUse | None:
    """The image that its spec names, and what its present life has of it."""
    jail, name = agent.life.jail, agent.spec.image
    image = jail.parts.image if jail is not None else None
    return calls.ImageInUse(name=name, digest=image.digest if image is not None else None) if name else None


def describe_health(agent: Agent) -> calls.Health | None:
    """The agent's watchdog and health command, and what they have found; None without both."""
    found, watchdog, check = agent.life.health, agent.spec.watchdog, agent.spec.health
    if watchdog is None and check is None:
        return None
    return calls.Health(
        watchdog=watchdog,
        idle=found.idle if watchdog is not None else None,
        command=check.command if check is not None else None,
        interval=check.interval if check is not None else None,
        timeout=check.timeout if check is not None else None,
        limit=check.failures if check is not None else None,
        failures=found.failures,
        checked_at=found.checked_at,
        problem=found.problem,
    )


def describe_model(line: Line, agent: Agent) -> calls.Model:
    """An agent's place in the model's queue, its usage and what is left of its budgets."""
    spent, share = line.usage_of(agent.queue_path), agent.queue_path[-1].share
    refusing = line.refusing_budgets(agent.queue_path)
    used, queue_state = spent.usage, line.queue_states().get(queue_names(agent.queue_path), QueueState())
    return calls.Model(
        weight=agent.spec.llm.weight,
        class_=find_class(agent.queue_path),
        place=queue_state.place,
        waits=line.wait_times(agent.queue_path),
        spent=calls.Spent(
            calls=spent.calls,
            input=used.input,
            output=used.output,
            thinking=used.thinking,
            cache_read=used.cache_read,
            cache_creation=used.cache_creation,
        ),
        budgets=[
            describe_budget(state, share.by_default and is_of_model(state, agent), state in refusing)
            for state in line.budget_states(agent.queue_path)
        ],
        providers=model_states(line, queue_state.models),
    )


def is_of_model(state: BudgetState, agent: Agent) -> bool:
    """Whether it is the agent's own budget of the model."""
    return state.name == agent.queue_path[-1].name and state.quota.what in OF_MODEL


def model_states(line: Line, models: Sequence[ModelState]) -> list[calls.ModelState]:
    """Model states in wire format: times are seconds since the epoch."""
    since = time.time() - trio.current_time()
    return [
        calls.ModelState(
            name=line.provider_of(each.model),
            model=each.model,
            state="ok" if each.state in ("ready", "limited") else each.state,
            until=None if each.until is None else since + each.until,
            reason=each.reason,
        )
        for each in models
    ]


def describe_budget(standing: BudgetState, by_default: bool = False, refuses: bool = False) -> calls.Budget:
    quota = standing.quota
    unit = MONEY_UNITS if quota.what == "money" else 1
    return calls.Budget(
        name=standing.name,
        what=quota.what,
        per=quota.per,
        most=quota.most / unit,
        used=standing.settled / unit,
        reserved=standing.reserved / unit,
        renews_at=standing.renews_at,
        by_default=by_default,
        refuses=refuses,
    )


def describe_relative(agent: Agent) -> calls.Relative:
    return calls.Relative(id=agent.id, name=agent.name, state=str(agent.state))


def describe_start(spec: AgentSpec, by_operator: bool) -> calls.Started:
    """The agent's start parameters. Values of variables are omitted because they may be secrets."""

    def host_path(path: str | None) -> str | None:
        return path if by_operator else None

    return calls.Started(
        script=host_path(spec.script),
        command=spec.command if by_operator or layout.own_program(spec) is None else None,
        args=spec.args,
        env=sorted(spec.env),
        cwd=spec.cwd,
        python=host_path(spec.python),
        code=host_path(spec.code),
        workspace=spec.workspace if spec.workspace in ("tmp", "keep") else host_path(spec.workspace),
        workspace_mode=spec.workspace_mode,
        terminals=spec.terminals,
        mailbox=spec.mailbox,
        runtime=spec.runtime,
        network=spec.network if spec.jailed else "host",
        ready=spec.ready,
        restart=spec.restart,
        shutdown=spec.shutdown,
    )


def list_directories(group: Group) -> Sequence[str]:
    """The directories of a cgroup on the host."""
    return [group.directory] if isinstance(group, v2.Group) else sorted(set(group.directories.values()))
