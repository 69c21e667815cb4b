"""Handlers of GET_AUDIT_LOG and SET_AUDIT_CONFIG."""

import sqlite3
from collections.abc import Mapping

import attrs

from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.services.audit.categories import CATEGORIES, category_of
from agentos.services.audit.chain import Row
from agentos.services.audit.log import Audit
from agentos.services.audit.query import Query
from agentos_sdk.calls.operator import audit as calls
from agentos_sdk.encoding.codec import Text
from agentos_sdk.errors import Unavailable
from agentos_sdk.opcodes import Op

FAILURE: Mapping[str, object] = {"entries": [], "count": 0}


def syscalls(audit: Audit) -> tuple[Syscall, ...]:
    async def prepare_get(caller: Caller, request: calls.GetAuditLog) -> Prepared:
        async def act(call: Call) -> calls.AuditLog:
            chosen = CATEGORIES[request.category] if request.category is not None else None
            query = Query(agent=request.agent_id, calls=chosen, after=request.since_id)
            find = audit.newest if request.since_id is None else audit.oldest
            try:
                found = await find(query, request.limit)
            except (OSError, sqlite3.Error) as error:
                raise Unavailable(f"the audit log can't be read: {error}: see `agentos audit verify`") from None
            return calls.AuditLog(entries=[build_entry(row) for row in found], count=len(found))

        return Prepared((Right("get_audit_log"),), act)

    async def prepare_configure(caller: Caller, request: calls.SetAuditConfig) -> Prepared:
        wanted = {name: on for name, on in attrs.asdict(request).items() if on is not None}

        async def act(call: Call) -> calls.AuditConfig:
            audit.configure({name.removeprefix("log_"): on for name, on in wanted.items()})
            return calls.AuditConfig(config={f"log_{category}": on for category, on in audit.config.items()})

        about = ", ".join(f"{name} {'on' if on else 'off'}" for name, on in wanted.items())
        return Prepared((Right("set_audit_config"),), act, about)

    return (
        Syscall(Op.GET_AUDIT_LOG, calls.GetAuditLog, prepare=prepare_get, failure=FAILURE, audit="outcome"),
        Syscall(Op.SET_AUDIT_CONFIG, calls.SetAuditConfig, prepare=prepare_configure, audit="intent"),
    )


def build_entry(row: Row) -> calls.AuditEntry:
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
