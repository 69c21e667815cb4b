"""Handlers of SHUTDOWN and STATUS."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import trio
from msgspec import Struct, field

from agentos import __version__
from agentos.access.callers import Callers
from agentos.access.event_sight import find_end_sight
from agentos.agents.life.failures import MANY, WINDOW
from agentos.agents.life.lifecycle import State
from agentos.agents.registry import Agent
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.permissions.approvals.approvals import Approvals
from agentos.sandbox.report.levels import LIMIT_LAYERS
from agentos.services.audit.log import Audit
from agentos.services.mail.mailbox import Mailbox
from agentos.services.quotas import BudgetState
from agentos.services.storage.bound import StorageBound
from agentos.syscalls.agents.inspect import describe_budget, model_states
from agentos_sdk.calls import kernel as calls
from agentos_sdk.encoding.quantities import duration
from agentos_sdk.opcodes import Op
from supervisors import Backoff

MANY_FAILURES = 3  # in a row, from which on an agent that waits for its restart needs attention
BATCH = 50  # agents that STATUS looks at between two checkpoints


class KernelCalls(Struct, frozen=True):
    """Handlers of the calls about the kernel as a whole."""

    supervision: Supervision
    callers: Callers
    audit: Audit
    storage: StorageBound
    config_file: str | None
    began: float = field(default_factory=time.monotonic)

    async def prepare_shutdown(self, caller: Caller, request: calls.Shutdown) -> Prepared:
        async def act(call: Call) -> calls.Stopping:
            self.supervision.shut_down(request.grace)
            return calls.Stopping(stopping=True)

        return Prepared((Right("shutdown"),), act)

    async def prepare_status(self, caller: Caller, request: calls.Status) -> Prepared:
        async def act(call: Call) -> calls.KernelStatus:
            attention = [*self.find_agent_problems(caller)]
            if caller.authorizer.decide(caller, Right("approvals")).effect == "allow":
                attention += count_waiting(self.callers.approvals)
            budgets: dict[tuple[str, str, float], BudgetState] = {}
            for number, agent in enumerate([*self.callers.registry]):  # others come and go meanwhile
                budgets |= {(one.name, one.quota.what, one.quota.per): one for one in self.find_spent(agent)}
                if number % BATCH == BATCH - 1:
                    await trio.lowlevel.checkpoint()
            models, health = model_states(self.callers.line, self.callers.line.model_states()), self.audit.health
            attention += [describe_spent(one) for one in budgets.values()]
            attention += [
                calls.Attention(kind="model", text=f"{one.model} by {one.name} is {one.state}: {one.reason}")
                for one in models
                if one.state != "ok"
            ]
            if health.problem is not None:
                attention.append(calls.Attention(kind="audit", text=f"the audit log: {health.problem}"))
            if caller.kind == "operator":
                attention += map(describe_dead, sorted(self.callers.mail.list_dead(), key=lambda box: box.name))
            if self.storage.problem is not None:
                attention.append(calls.Attention(kind="storage", text=self.storage.problem))
            if health.lost:
                attention.append(calls.Attention(kind="audit", text=f"{health.lost} entries of the audit log are lost"))
            return calls.KernelStatus(
                kernel_version=__version__,
                up_ms=int((time.monotonic() - self.began) * 1000),
                agents=Counter(str(agent.state) for agent in self.callers.registry),
                attention=attention,
                model=next(iter(models), None) if self.callers.line.model else None,
                openai_endpoint=self.supervision.deps.serve is not None,
                isolation=self.supervision.deps.jails.found,
                audit=calls.AuditStatus(
                    entries=health.entries, lost=health.lost, checked_at=health.checked_at, problem=health.problem
                ),
                config=self.config_file if caller.kind == "operator" else None,
            )

        return Prepared((Right("status"),), act)

    def find_agent_problems(self, caller: Caller) -> Iterator[calls.Attention]:
        """What is wrong with agents. How one ended is told only where :func:`find_end_sight` says so."""
        sees_end = find_end_sight(caller, self.callers.registry, self.callers.authorizer)
        for agent in self.callers.registry:
            why = agent.end.reason if agent.end is not None and sees_end(agent) else ""
            last = f"; the last time: {why}" if why else ""
            if agent.state is State.FAILED:
                yield about(agent, "failed", f"failed{f': {why}' if why else ''}")
            elif agent.state is State.BACKING_OFF and agent.failures >= MANY_FAILURES:
                yield about(agent, "restarts", f"failed {agent.failures} times in a row{last}")
            elif agent.spec.required and not agent.arrived.is_set():
                yield about(agent, "late", f"is required, and isn't up yet{last}")
            elif text := describe_recent_failures(agent, with_reason=bool(last)):
                yield about(agent, "restarts", text)
            # A limit that this host can't enforce is a lasting state, which the log and `ps` tell.
            missing = [layer for layer in agent.life.lacking if layer not in LIMIT_LAYERS.values()]
            if agent.alive and missing:
                text = f"{agent.name}: {', '.join(missing)} doesn't stand"
                yield calls.Attention(kind="isolation", name=agent.name, text=text)

    def find_spent(self, agent: Agent) -> Sequence[BudgetState]:
        """The budgets that apply to an agent and have nothing left."""
        if agent.over.is_set() and not agent.declared:
            return ()
        return [one for one in self.callers.line.budget_states(agent.queue_path) if not one.left]

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.SHUTDOWN, calls.Shutdown, prepare=self.prepare_shutdown, audit="intent"),
            Syscall(Op.STATUS, calls.Status, prepare=self.prepare_status),
        )


def describe_recent_failures(agent: Agent, with_reason: bool) -> str | None:
    """How many lives failed within its backoff's ``reset_after``, or many in ten minutes; None if none did.

    Agents that were stopped, and spawned ones that are over, need no attention.
    """
    if agent.failed is None or agent.wish.stopped_by is not None or (agent.over.is_set() and not agent.declared):
        return None
    now, window = time.monotonic(), (agent.spec.backoff or Backoff()).healthy_after
    if agent.failed.count(now, WINDOW) >= MANY:
        window = WINDOW
    if not (times := agent.failed.count(now, window)):
        return None
    many = "once" if times == 1 else f"{times} times"
    last = f"; the last time: {agent.failed.last.reason}" if with_reason and agent.failed.last is not None else ""
    return f"failed {many} within {duration(window)}{last}"


def about(agent: Agent, kind: str, text: str) -> calls.Attention:
    return calls.Attention(kind=kind, name=agent.name, text=f"{agent.name} {text}")


def describe_spent(spent: BudgetState) -> calls.Attention:
    budget = describe_budget(spent)
    window = f"{budget.most:,.10g} {budget.what} per {duration(budget.per)}"
    renewed = duration(max(0.0, budget.renews_at - time.time()))
    return calls.Attention(
        kind="budget", name=budget.name, text=f"the budget of {budget.name} is used up: {window}; renews in {renewed}"
    )


def describe_dead(box: Mailbox) -> calls.Attention:
    count = "1 dead letter" if len(box.dead) == 1 else f"{len(box.dead)} dead letters"
    command = f"agentos mail {shlex.quote(box.name)} --dead"
    return calls.Attention(kind="mail", name=box.name, text=f"{box.name} has {count}: `{command}`")


def count_waiting(approvals: Approvals) -> Iterator[calls.Attention]:
    """How many calls of each agent wait for a person; an agent has its path of names, as others may take a name."""
    waiting = [one for one in approvals.pending() if one.caller_present]
    for name, count in Counter(approvals.path_of(one.id) or one.agent for one in waiting).items():
        calls_text = "1 call waits" if count == 1 else f"{count} calls wait"
        text = f"{name}: {calls_text} for a person: `agentos approvals`"
        yield calls.Attention(kind="approval", name=name, text=text)
