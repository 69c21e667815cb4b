"""GET_AUDIT_LOG and SET_AUDIT_CONFIG: read the audit log, and configure what is logged."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from agentos_sdk.calls.request import Number, Page, Request, SuccessfulReply
from agentos_sdk.encoding.codec import Text
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

Category: TypeAlias = Literal[
    "agents", "audit", "commands", "files", "kernel", "messages", "model", "network", "permissions", "state", "tools"
]


@record
class AuditEntry:
    """One entry of the audit log.

    ``at`` is seconds since the epoch, ``duration`` seconds. ``phase`` is ``intent`` before an action and ``outcome``
    after it; the ``intent`` of an outcome is the id of the entry that announced it. ``outcome`` is ``ok`` or an error
    code. ``repeated`` is the number of calls that the entry stands for. ``hash`` is computed from the entry and the
    hash of the entry before.
    """

    id: int
    at: float
    agent_id: int
    name: str
    kind: str
    category: str
    call: str
    about: Text
    decision: str
    rule: str
    phase: str
    outcome: str
    duration: float | None
    intent: int | None
    repeated: int
    hash: str


@record
class AuditLog(SuccessfulReply):
    """Entries, oldest first."""

    entries: Sequence[AuditEntry]
    count: int


@record
class GetAuditLog(Request[AuditLog]):
    """Get the newest ``limit`` entries; with ``since_id`` the first entries after that one."""

    op = Op.GET_AUDIT_LOG
    category: Category | None = None
    agent_id: Number | None = None
    since_id: Number | None = None
    limit: Page = 100


@record
class AuditConfig(SuccessfulReply):
    """For each category: whether allowed calls without an intent entry are logged."""

    config: Mapping[str, bool]


@record
class SetAuditConfig(Request[AuditConfig]):
    """Switch the logging of allowed calls on or off, until the kernel ends; None leaves a switch unchanged."""

    op = Op.SET_AUDIT_CONFIG
    log_agents: bool | None = None
    log_audit: bool | None = None
    log_commands: bool | None = None
    log_files: bool | None = None
    log_messages: bool | None = None
    log_model: bool | None = None
    log_network: bool | None = None
    log_permissions: bool | None = None
    log_state: bool | None = None
    log_tools: bool | None = None
