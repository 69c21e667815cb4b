"""Handler of METRICS_SYSTEM."""

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.table import Syscall
from agentos.llm.line import Line
from agentos.llm.settings import Account
from agentos_sdk.calls import metrics as calls
from agentos_sdk.opcodes import Op

from .inspect import describe_budget, model_states


def syscalls(line: Line, kernel_account: Account) -> tuple[Syscall, ...]:
    def prepare(caller: Caller, request: calls.MetricsSystem) -> Prepared:
        def act(caller: Caller) -> calls.MetricsReply:
            llm = calls.LineMetrics(
                waiting=line.depth,
                in_flight=line.in_flight,
                fairness=line.fairness(),
                budgets=[describe_budget(standing) for standing in line.budget_states((kernel_account,))],
                providers=model_states(line, line.models()),
            )
            return calls.MetricsReply(metrics=calls.SystemMetrics(llm=llm))

        return Prepared((Right("metrics_system"),), act)

    return (Syscall(Op.METRICS_SYSTEM, calls.MetricsSystem, prepare=prepare),)
