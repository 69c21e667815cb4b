"""Handler of USAGE."""

import time

import trio

from agentos.agents.life.counter import LifeCounter
from agentos.agents.registry import Registry
from agentos.database import DatabaseError
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.llm.line import Line
from agentos.services.quotas import MONEY_UNITS, OF_MODEL
from agentos.services.usage import Row, day_of
from agentos.syscalls.agents.inspect import describe_budget
from agentos_sdk.calls import usage as calls
from agentos_sdk.calls.inspect import Budget
from agentos_sdk.errors import BadRequest, CallError, PermissionDenied, Unavailable
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Usage

DEFAULT_DAYS = 7
BATCH = 50  # agents whose budgets are described between two checkpoints


def syscalls(registry: Registry, line: Line, lives: LifeCounter) -> tuple[Syscall, ...]:
    async def prepare(caller: Caller, request: calls.Usage) -> Prepared:
        async def act(call: Call) -> calls.UsageReply:
            account = find_account(registry, request.name) if request.name is not None else None
            if request.reset:
                assert account is not None, "checked before"
                await line.reset_budget(account)
            if request.hour:
                rows = describe_hour(line, account)
                return calls.UsageReply(usage=rows, currency=line.currency, budgets=await list_budgets(registry, line))
            since = time.time() - (DEFAULT_DAYS - 1) * 86400 if request.since is None else request.since
            await lives.count_running()
            try:
                days = await lives.log.read(account, day_of(since), by_model=request.by_model, total=request.total)
            except DatabaseError as error:
                raise Unavailable(f"the usage can't be read: {error}") from None
            return calls.UsageReply(usage=[describe_row(row) for row in days], currency=line.currency)

        about = f"reset the budget of {request.name}" if request.reset else request.name
        return Prepared(
            (Right("usage"),), act, about=about, announce=request.reset, error=find_mistake(caller, request)
        )

    return (Syscall(Op.USAGE, calls.Usage, prepare=prepare, failure={"usage": []}, audit="intent"),)


def find_mistake(caller: Caller, request: calls.Usage) -> CallError | None:
    if request.hour and (request.since is not None or request.by_model or request.total):
        return BadRequest("hour: leave since, by_model and total out, its rows are of the last hour and by model")
    if request.reset and caller.kind != "operator":
        return PermissionDenied("reset: only the operator may reset a budget")
    if request.reset and request.name is None:
        return BadRequest("name: expected the owner of the budget that is to be reset")
    return None


def find_account(registry: Registry, name: str) -> str:
    """The account of the agent that got the name last; any other name is that of an account itself."""
    agent = registry.find_by_name(name)
    return agent.queue_path[-1].name if agent is not None else name


def describe_hour(line: Line, account: str | None) -> list[calls.DayUsage]:
    """What was used in the last hour of one account or of all, by name and model."""
    today = day_of(time.time())
    return [
        calls.DayUsage(
            name=name,
            day=today,
            tokens=use.input + use.output + use.thinking,
            calls=use.calls,
            cost=None if line.budgets.cost(model, Usage()) is None else use.cost / MONEY_UNITS,
            cpu_seconds=None,
            peak_memory_bytes=None,
            cache_read=use.cache_read,
            cache_creation=use.cache_creation,
            model=model,
            questions=use.questions,
            failed=use.failed,
            retried=use.retried,
        )
        for (name, model), use in sorted(line.counts.last_hour().items())
        if account in (None, name)
    ]


async def list_budgets(registry: Registry, line: Line) -> list[Budget]:
    """The budgets of the model that agents have which haven't ended for good, without those of their groups."""
    found: list[Budget] = []
    for number, agent in enumerate([one for one in registry if not one.over.is_set() or one.declared]):
        own = agent.queue_path[-1].name
        states = [one for one in line.budget_states(agent.queue_path) if one.name == own and one.quota.what in OF_MODEL]
        found += map(describe_budget, states)
        if number % BATCH == BATCH - 1:
            await trio.lowlevel.checkpoint()
    return found


def describe_row(row: Row) -> calls.DayUsage:
    return calls.DayUsage(
        name=row.name,
        day=row.day,
        tokens=row.tokens,
        calls=row.calls,
        cost=None if row.cost is None else row.cost / MONEY_UNITS,
        cpu_seconds=None if row.cpu_seconds is None else round(row.cpu_seconds, 3),
        peak_memory_bytes=row.peak,
        cache_read=row.cache_read,
        cache_creation=row.cache_creation,
        model=row.model,
    )
