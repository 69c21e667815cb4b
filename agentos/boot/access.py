"""Construction of what knows agents and callers: identities, rights, mailboxes, approvals, subscribers."""

import os
from functools import partial

from attrs import frozen
from msgspec.structs import replace

from agentos.access.callers import Callers
from agentos.access.event_sight import find_family, list_above
from agentos.access.sets import SetReader
from agentos.agents.jail.usage import UsageReader
from agentos.agents.life.counter import LifeCounter
from agentos.agents.life.entries import LifeEntries
from agentos.agents.life.life import home
from agentos.agents.registry import Registry
from agentos.agents.state_spaces import StateSpaces
from agentos.agents.tree.event_lines import (
    OUTPUT_WORDS,
    add_to_output,
    identify_log,
    log_event,
    log_isolation,
    log_start,
)
from agentos.config.load import Config
from agentos.database import Database
from agentos.kernel.background import Background
from agentos.llm.models.prices import prices_of
from agentos.llm.open_model import SharedModel
from agentos.permissions.approvals.answers import Answers
from agentos.permissions.approvals.approvals import Approvals, ApprovalSettings
from agentos.permissions.patterns.base import Names
from agentos.sandbox.files.root_files import CODE, WORKSPACE
from agentos.services.audit.log import Audit
from agentos.services.event_log.ring import EventLog
from agentos.services.events import (
    AgentEscalated,
    AgentExited,
    AgentFailed,
    AgentOver,
    IsolationProbed,
    KernelStarted,
    KernelStopping,
    Subscriber,
)
from agentos.services.http.secrets import Secrets
from agentos.services.ids import Ids
from agentos.services.logs.log import Logs
from agentos.services.mail.mailboxes import Mailboxes
from agentos.services.mail.store import MailStore
from agentos.services.publisher import Events
from agentos.services.state.state import State
from agentos.services.usage import UsageLog

from .host import Host


@frozen
class Stores:
    """What was opened and read before agents and callers are known."""

    events: Events
    model: SharedModel
    database: Database
    audit: Audit
    logs: Logs
    state: State
    event_log: EventLog
    secrets: Secrets
    caller_ids: Ids
    message_ids: Ids


@frozen
class Access:
    """Identities and what belongs to them: callers with all that these need, events, usage, state, the audit log."""

    events: Events
    event_log: EventLog
    state: StateSpaces
    audit: Audit
    lives: LifeCounter
    life_entries: LifeEntries
    logs: Logs
    callers: Callers


def open_access(config: Config, show: Subscriber, host: Host, stores: Stores) -> Access:
    """Construct what knows agents and callers, and subscribe to events."""
    events, mail, used = (
        stores.events,
        Mailboxes(stores.events.publish, MailStore(stores.database, config.kernel.max_state_bytes), stores.message_ids),
        UsageLog(stores.database),
    )
    model, audit, logs = stores.model, stores.audit, stores.logs
    registry = Registry(events.publish)
    approvals = _construct_approvals(config.approvals, registry, stores.database, audit)
    spaces = StateSpaces(registry, stores.state)
    lives = LifeCounter(registry, UsageReader(registry), used)
    model.line.on_use = used.add_model_use
    model.line.contents.list_secrets = stores.secrets.list_values
    life_entries = LifeEntries(registry, audit)
    names = Names(home(), str(config.directory))
    callers = Callers(
        registry=registry,
        mail=mail,
        line=model.line,
        audit=audit,
        approvals=approvals,
        background=Background(),
        secrets=stores.secrets,
        sets=SetReader(
            config.permissions,
            names,
            replace(names, workspace=WORKSPACE, code=CODE),
            stores.secrets,
            priced=bool(prices_of(config.llm)),
        ),
        kernel_account=model.account,
        default_budget=config.llm.default_budget,
        ids=stores.caller_ids,
        kernels=[os.path.realpath(path) for path in (host.state_dir, host.run.directory)],
    )
    approvals.on_forgotten = callers.authorizer.announce_change
    event_log = stores.event_log
    event_log.above = partial(list_above, registry)
    event_log.find_family = partial(find_family, registry, callers.find_guest)
    events.log = event_log.take_event
    logs.identify = partial(identify_log, registry)
    access = Access(events, event_log, spaces, audit, lives, life_entries, logs, callers)
    _subscribe(access, show)
    return access


def _subscribe(access: Access, show: Subscriber) -> None:
    """Subscribe to events, in the order in which each is delivered."""
    subscribe = access.events.subscribe
    subscribe(log_event)
    subscribe(access.life_entries.record)
    subscribe(access.callers.approvals.end_life)
    subscribe(access.callers.mail.end_life, AgentExited)
    subscribe(access.callers.mail.tell_spawner, AgentEscalated)
    subscribe(access.callers.mail.begin_stop, KernelStopping)
    subscribe(partial(add_to_output, access.callers.registry), *OUTPUT_WORDS)
    subscribe(access.callers.forget_agent, AgentOver)
    subscribe(access.lives.count_end, AgentExited)
    subscribe(access.state.end_session, AgentOver, AgentFailed)
    subscribe(show)
    subscribe(access.logs.take_event)
    subscribe(partial(log_start, access.logs), KernelStarted)
    subscribe(partial(log_isolation, access.logs), IsolationProbed)


def _construct_approvals(settings: ApprovalSettings, registry: Registry, database: Database, audit: Audit) -> Approvals:
    def name_of(number: int) -> str | None:
        agent = registry.get(number)
        return registry.lasting_name_of(agent) if agent is not None else None

    answers = Answers(database, name_of)
    return Approvals(settings, database, audit, answers, registry.publish, registry.lasting_name)
