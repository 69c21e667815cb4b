"""Handlers of METRICS_SYSTEM, METRICS_AGENT, METRICS_ALL_AGENTS and METRICS_CGROUP."""

import time
from collections import Counter
from collections.abc import Sequence

import trio
from attrs import define, evolve, field
from msgspec.structs import asdict

from agentos.access.callers import Callers
from agentos.agents.jail.measured import LifeFigures, read_lives
from agentos.agents.jail.usage import subtract_own
from agentos.agents.registry import Agent
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.llm.queue.states import QueueState
from agentos.llm.settings import queue_names
from agentos.sandbox.cgroups.values import CgroupError
from agentos.services.metrics.cgroup import read_cgroup
from agentos.services.metrics.figures import AgentFigures, Reading
from agentos.services.metrics.proc import ProcessFigures
from agentos.services.metrics.sampler import Sampler
from agentos.syscalls.agents.inspect import describe_budget, model_states
from agentos.threads import run_in_thread
from agentos_sdk.calls.operator import metrics as calls
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, NotFound
from agentos_sdk.opcodes import Op, op_name
from agentos_sdk.values import CgroupPids

BATCH = 50  # agents that METRICS_ALL_AGENTS describes between two checkpoints
MIN_CPU_SECONDS = 0.5  # seconds over which the CPU time of processes is averaged at least


@define(eq=False)
class MetricsCalls:
    """Handlers of the calls about metrics."""

    callers: Callers
    sampler: Sampler
    _began: float = field(factory=time.monotonic)
    _processes: dict[int, tuple[int, ProcessFigures]] = field(factory=dict)  # by agent id: a life, an earlier reading

    def prepare_system(self, caller: Caller, request: calls.MetricsSystem) -> Prepared:
        def act(caller: Caller) -> calls.MetricsReply:
            return calls.MetricsReply(metrics=self.describe_system(request.history))

        return Prepared((Right("metrics_system"),), act)

    async def prepare_agent(self, caller: Caller, request: calls.MetricsAgent) -> Prepared:
        agent = self.find_agent(caller, request.agent_id)

        async def act(call: Call) -> calls.AgentMetricsReply:
            await self.sampler.refresh([agent.id])
            (found,) = await self.measure([agent], with_pss=True)
            if request.history is not None:
                past = self.sampler.history(agent.id, request.history)
                found = evolve(found, history=past)  # type: ignore[misc]  # a record is an attrs class
            return calls.AgentMetricsReply(metrics=found)

        return Prepared((Right("metrics_agent", agent=agent.id),), act)

    def prepare_all(self, caller: Caller, request: calls.MetricsAllAgents) -> Prepared:
        async def act(caller: Caller) -> bytes:
            agents = []
            for number, agent in enumerate([one for one in self.callers.registry if not one.over.is_set()]):
                right = Right("metrics_all_agents", agent=agent.id)
                if caller.kind == "operator" or caller.authorizer.decide(caller, right).effect == "allow":
                    agents.append(agent)
                if number % BATCH == BATCH - 1:
                    await trio.lowlevel.checkpoint()
            await self.sampler.refresh([agent.id for agent in agents])
            pieces = []
            for at in range(0, len(agents), BATCH):
                found = await self.measure(agents[at : at + BATCH], with_pss=False)
                pieces.append(codec.encode(found)[1:-1])
            return b'{"success":true,"agents":[%b],"count":%d}' % (b",".join(pieces), len(agents))

        return Prepared((Right("metrics_all_agents"),), act)

    async def prepare_cgroup(self, caller: Caller, request: calls.MetricsCgroup) -> Prepared:
        agent = self.find_agent(caller, request.agent_id)

        async def act(call: Call) -> calls.CgroupMetricsReply:
            jail = agent.life.jail
            if jail is None:
                raise NotFound(f"{agent.name} is {agent.state}: it has a control group only while it runs")
            if jail.group is None:
                raise NotFound(f"{agent.name} has no control group: none is delegated to this kernel")
            try:
                found = await run_in_thread(read_cgroup, jail.group, agent.id, agent.name)
            except CgroupError as error:
                raise NotFound(f"{agent.name} is ending, and its control group with it: {error}") from None
            counted = found.pids
            pids = CgroupPids(
                current=subtract_own(jail, counted.current),
                peak=subtract_own(jail, counted.peak),
                limit=subtract_own(jail, counted.limit),
                refused=counted.refused,
            )
            return calls.CgroupMetricsReply(metrics=evolve(found, pids=pids))

        return Prepared((Right("metrics_cgroup", agent=agent.id),), act)

    def find_agent(self, caller: Caller, number: int | None) -> Agent:
        """The agent with that id, by default the caller itself."""
        if number is None and caller.kind != "agent":
            raise BadRequest("agent_id: required field missing: only an agent has metrics of its own")
        return self.callers.registry.find(caller.id if number is None else number, None)

    async def measure(self, agents: Sequence[Agent], with_pss: bool) -> list[calls.AgentMetrics]:
        """The metrics of agents; their processes are read in one thread call."""
        jails = {agent.id: agent.life.jail for agent in agents if agent.life.jail is not None}
        lives = await run_in_thread(read_lives, jails, with_pss) if jails else {}
        places, nothing = self.callers.line.queue_states(), QueueState()
        self._forget_ended()
        return [
            self.describe_agent(
                agent,
                lives.get(agent.id) if agent.life.jail is jails.get(agent.id) else None,  # it may have ended meanwhile
                places.get(queue_names(agent.queue_path), nothing),
            )
            for agent in agents
        ]

    def _forget_ended(self) -> None:
        """Forget the readings of agents that have ended for good. Once per batch: all that are kept are looked at."""
        for number in list(self._processes):
            agent = self.callers.registry.get(number)
            if agent is None or agent.over.is_set():
                del self._processes[number]

    def describe_agent(self, agent: Agent, life: LifeFigures | None, state: QueueState) -> calls.AgentMetrics:
        figures, spent, place = self.sampler.find(agent.id), self.callers.line.usage_of(agent.queue_path), state.place
        assert figures is not None, "the registry knows the agent"
        use = describe_use(figures, life.counted) if life is not None and life.counted is not None else None
        total = figures.total_cpu_seconds
        if use is not None and total is not None and use.cpu_seconds is not None and figures.cpu_seconds is not None:
            total += max(0.0, use.cpu_seconds - figures.cpu_seconds)
        counted: dict[str, dict[str, int]] = {}
        for (op, outcome), count in agent.caller.counts.own().items():
            counted.setdefault(op_name(op), {})[outcome] = count
        return calls.AgentMetrics(
            agent_id=agent.id,
            name=agent.name,
            status=str(agent.state),
            uptime_ms=int((trio.current_time() - agent.life.since) * 1000) if agent.pid is not None else 0,
            source=figures.source,
            reason=figures.reason,
            total_cpu_seconds=total,
            process=self.describe_processes(agent, life.processes) if life is not None else None,
            cgroup=use,
            calls=counted,
            llm=calls.AgentModelUse(
                calls=spent.calls,
                input=spent.usage.input,
                output=spent.usage.output,
                thinking=spent.usage.thinking,
                cache_read=spent.usage.cache_read,
                cache_creation=spent.usage.cache_creation,
                waiting=place.waiting,
                in_flight=place.in_flight,
                position=place.position,
            ),
        )

    def describe_processes(self, agent: Agent, now: ProcessFigures) -> calls.ProcessMetrics:
        """Processes with their CPU time since an earlier reading of the same life, or since it began."""
        lives, before = self._processes.get(agent.id, (0, now))
        if lives != agent.lives:
            before = ProcessFigures(time.time() - (trio.current_time() - agent.life.since), cpu_seconds=0.0)
        elapsed, cpu = now.at - before.at, None
        if now.cpu_seconds is not None and before.cpu_seconds is not None and elapsed > 0:
            cpu = max(0.0, now.cpu_seconds - before.cpu_seconds) / elapsed
        if elapsed >= MIN_CPU_SECONDS or lives != agent.lives:
            self._processes[agent.id] = agent.lives, now
        return calls.ProcessMetrics(
            cpu=cpu,
            cpu_seconds=now.cpu_seconds,
            memory=calls.ProcessMemory(rss=now.rss, pss=now.pss, vms=now.vms),
            threads=now.threads,
            fds=now.fds,
        )

    def describe_system(self, history: float | None) -> calls.SystemMetrics:
        host = self.sampler.host
        total, available = host.memory_total_bytes, host.memory_available_bytes
        return calls.SystemMetrics(
            cpu=calls.HostCpu(used=host.cpu, count=host.cpu_count, load=host.load),
            memory=calls.HostMemory(
                total_bytes=total,
                used_bytes=subtract(total, available),
                available_bytes=available,
                swap_total_bytes=host.swap_total_bytes,
                swap_used_bytes=subtract(host.swap_total_bytes, host.swap_free_bytes),
            ),
            disk=calls.HostDisk(
                total_bytes=host.disk_total_bytes,
                used_bytes=subtract(host.disk_total_bytes, host.disk_free_bytes),
                free_bytes=host.disk_free_bytes,
            ),
            network=calls.HostNetwork(received_bytes=host.received_bytes, sent_bytes=host.sent_bytes),
            kernel=self.describe_kernel(),
            llm=self.describe_line(),
            history=self.sampler.kernel_history(history) if history is not None else None,
        )

    def describe_kernel(self) -> calls.KernelMetrics:
        return calls.KernelMetrics(
            **asdict(self.sampler.kernel),
            up_ms=int((time.monotonic() - self._began) * 1000),
            agents=Counter(str(agent.state) for agent in self.callers.registry),
        )

    def describe_line(self) -> calls.LineMetrics:
        line, now = self.callers.line, trio.current_time()
        return calls.LineMetrics(
            waiting=[
                calls.WaitingQuestion(
                    agent=one.queue_path[-1].name,
                    model=one.model,
                    position=position,
                    class_=one.class_,
                    state=state,
                    since_ms=int((now - one.arrived_at) * 1000),
                    tokens_guess=one.input,
                )
                for one, state, position in line.list_waiting()
            ],
            in_flight=[
                calls.SentQuestion(
                    agent=one.queue_path[-1].name,
                    model=one.model,
                    since_ms=int((now - (one.slot_since or now)) * 1000),
                    tokens=one.attempt.usage.total or one.input,
                )
                for one in line.list_in_flight()
            ],
            jain=line.fairness(),
            budgets=[describe_budget(standing) for standing in line.budget_states((self.callers.kernel_account,))],
            providers=model_states(line, line.model_states()),
        )

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.METRICS_SYSTEM, calls.MetricsSystem, prepare=self.prepare_system),
            Syscall(Op.METRICS_AGENT, calls.MetricsAgent, prepare=self.prepare_agent),
            Syscall(Op.METRICS_ALL_AGENTS, calls.MetricsAllAgents, prepare=self.prepare_all, in_order=True),
            Syscall(Op.METRICS_CGROUP, calls.MetricsCgroup, prepare=self.prepare_cgroup),
        )


def describe_use(figures: AgentFigures, counted: Reading) -> calls.CgroupUse:
    """Present counts of a cgroup, with the CPU share and the limits of the last sample."""
    used = counted.usage
    return calls.CgroupUse(
        at=counted.at,
        cpu=figures.cpu,
        cpu_seconds=used.cpu_seconds,
        memory_bytes=used.memory,
        memory_peak_bytes=used.peak,
        memory_limit_bytes=figures.memory_limit_bytes,
        pids=used.pids,
        pids_limit=figures.pids_limit,
    )


def subtract(total: int | None, rest: int | None) -> int | None:
    """Used bytes: the total minus the available ones; None if either is unknown."""
    return None if total is None or rest is None else total - rest
