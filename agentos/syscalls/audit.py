"""Handlers of GET_AUDIT_LOG and SET_AUDIT_CONFIG."""

import sqlite3
from collections.abc import Mapping, Sequence

import attrs

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.table import Syscall
from agentos.services.audit.categories import CATEGORIES, category_of
from agentos.services.audit.chain import Row
from agentos.services.audit.log import Audit
from agentos.services.audit.query import Query
from agentos_sdk.calls import audit as calls
from agentos_sdk.codec import Text
from agentos_sdk.errors import Unavailable
from agentos_sdk.opcodes import Op

FAILURE: Mapping[str, object] = {"entries": [], "count": 0}


def syscalls(audit: Audit) -> tuple[Syscall, ...]:
    async def get(call: Call, request: calls.GetAuditLog) -> calls.AuditLog:
        await call.require(*await to_get(call.caller, request))
        chosen = CATEGORIES[request.category] if request.category is not None else None
        query = Query(agent=request.agent_id, calls=chosen, after=request.since_id)
        find = audit.newest if request.since_id is None else audit.oldest
        try:
            found = await find(query, request.limit)
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"the audit log can't be read: {error}: see `agentos audit verify`") from None
        return calls.AuditLog(entries=[entry(row) for row in found], count=len(found))

    async def to_get(caller: Caller, request: calls.GetAuditLog) -> Sequence[Right]:
        return [Right("get_audit_log")]

    async def configure(call: Call, request: calls.SetAuditConfig) -> calls.AuditConfig:
        wanted = {name: on for name, on in attrs.asdict(request).items() if on is not None}
        about = ", ".join(f"{name} {'on' if on else 'off'}" for name, on in wanted.items())
        await call.require(*await to_configure(call.caller, request), about=about)
        audit.configure({name.removeprefix("log_"): on for name, on in wanted.items()})
        return calls.AuditConfig(config={f"log_{category}": on for category, on in audit.config.items()})

    async def to_configure(caller: Caller, request: calls.SetAuditConfig) -> Sequence[Right]:
        return [Right("set_audit_config")]

    return (
        Syscall(Op.GET_AUDIT_LOG, calls.GetAuditLog, get, failure=FAILURE, audit="outcome", rights=to_get),
        Syscall(Op.SET_AUDIT_CONFIG, calls.SetAuditConfig, configure, audit="intent", rights=to_configure),
    )


def entry(row: Row) -> calls.AuditEntry:
    return calls.AuditEntry(
        id=row.seq,
        at=row.at,
        agent_id=row.agent,
        name=row.name,
        kind=row.kind,
        category=category_of(row.call),
        call=row.call,
        about=Text(row.about),
        decision=row.decision,
        rule=row.rule,
        phase=row.phase,
        outcome=row.outcome,
        duration=row.duration,
        intent=row.intent,
        repeated=row.repeated,
        hash=row.hash,
    )
