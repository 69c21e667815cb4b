"""Callers: assigns identity, permissions and the call table to every operator connection, guest and agent."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs
from attrs import define, field
from msgspec.structs import replace

from agentos.agents.inherit import DEFAULTS, named
from agentos.agents.model_share import choose_share
from agentos.agents.registry import Agent, Registry
from agentos.agents.spec import AgentSpec, check_guest_name
from agentos.kernel.background import Background
from agentos.kernel.call_counts import CallCounts
from agentos.kernel.caller import Caller
from agentos.kernel.ports import AuditLog, Decision
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire.listener import Peer
from agentos.llm.line import Line
from agentos.llm.settings import Account, QueuePath, Share
from agentos.permissions.approvals.approvals import Approvals
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.levels import LEVELS, default, is_trusted
from agentos.permissions.link_sets import LINK_SETS
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import PermissionSet
from agentos.permissions.sets import files as set_files
from agentos.services.events import AgentOver
from agentos.services.http.secrets import Secrets
from agentos.services.mail.mailboxes import KERNEL, KERNEL_ID, Mailboxes
from agentos.services.quotas import Quota, limits_model, merge_quotas
from agentos.threads import run_in_thread
from agentos_sdk.encoding import codec
from agentos_sdk.errors import AlreadyExists, BadRequest, Busy
from agentos_sdk.values import Limits

from .call_tables import CallTables, StandIn
from .peer_identity import Peers
from .places import Places
from .sets import SetReader, limit_set

GIVEN_UP = Decision("allow", "a caller may give up its rights", "")


@define(eq=False)
class Callers:
    """All callers of one kernel.

    ``kernel_account`` is the model's share for all callers together. :meth:`serve` must be called before the first
    connection.
    """

    registry: Registry
    mail: Mailboxes
    line: Line
    audit: AuditLog
    approvals: Approvals
    background: Background
    secrets: Secrets
    sets: SetReader
    kernel_account: Account
    default_budget: Sequence[Quota]  # of an agent or a guest that isn't trusted and has no other
    ids: Iterator[int]  # of callers
    kernels: Sequence[str]  # directories that only the kernel may access
    authorizer: PermissionAuthorizer = field(init=False)
    places: Places = field(init=False)
    peers: Peers = field(init=False)
    tables: CallTables = field(init=False)
    operator_counts: CallCounts = field(factory=CallCounts)  # of all connections of the operator
    guest_counts: CallCounts = field(factory=CallCounts)  # of all guests
    standing_in: dict[str, StandIn] = field(factory=dict)  # for agents about to be spawned, by their names
    _operators: dict[int, Caller] = field(factory=dict)  # connections on the operator's socket, by id; also guests
    _guests: dict[int, Caller] = field(factory=dict)  # connected ones, by id

    def __attrs_post_init__(self) -> None:
        self.peers = Peers(self.registry)
        self.places = Places(self.registry)
        self.authorizer = PermissionAuthorizer(
            AgentTree(self.places.is_own, self._name, self._is_parent, self.places.are_siblings), self.kernels
        )
        self.tables = CallTables(self.authorizer)

    def serve(self, calls: Sequence[Syscall]) -> None:
        """Set the served calls."""
        self.sets.compile_defaults()
        self.tables.serve(calls)

    # -- Connecting and disconnecting ------------------------------------------------------------------------------

    def of_agent(self, spec: AgentSpec, spawner: Caller | None) -> Caller:
        """The identity of a new agent; it never has more rights than its spawner."""
        number = self._admit(
            spec.permissions or default(spec.jailed),
            self.sets.names_of(jailed=spec.jailed),
            spawner.id if spawner is not None else None,
        )
        self.mail.open(number, spec.name, kept=self._name_account(spec, spawner) if spec.mailbox == "kept" else None)
        caller = Caller(number, "agent", spec.name, self.tables.of(number), self.authorizer, self.audit)
        caller.approvals = self.approvals
        if (stand_in := self.standing_in.get(spec.name)) is not None:
            self.tables.seal(number, stand_in)
            caller.replayed, caller.approvals = stand_in, stand_in
            self.places.take(number, stand_in.name)
            caller.table = self.tables.of(number)
        elif spawner is not None and self.tables.inherit(number, spawner.id):
            caller.table = self.tables.of(number)
        former = self.registry.find_by_name(spec.name)
        if former is not None:
            caller.counts.former = former.caller.counts.all()
        caller.family = spawner.family if spawner is not None and spawner.family else f"agent {number}"
        return caller

    def _name_account(self, spec: AgentSpec, spawner: Caller | None) -> str:
        """Whose kept messages a new agent gets: none can get by a name what was for an agent of another spawner."""
        if spawner is None or spawner.kind == "operator":
            return spec.name
        return f"{self.queue_path(spawner)[-1].name}/{spec.name}"

    def resume(self, caller: Caller, stand_in: StandIn) -> None:
        """Have an agent's calls answered by what its life before asked, until :meth:`go_live`; they are recorded."""
        self.tables.seal(caller.id, stand_in)
        caller.approvals, caller.table = stand_in, self.tables.of(caller.id)

    def go_live(self, caller: Caller, stand_in: StandIn | None, whole: bool) -> None:
        """Ask people about what an agent does that lived a recorded life; ``whole``: no call is replayed any more."""
        caller.replayed, caller.approvals = None, self.approvals
        caller.told = stand_in if stand_in is not None and stand_in.keeps_name else None
        self.places.leave(caller.id)
        if whole and self.tables.open(caller.id, stand_in):
            caller.table = self.tables.of(caller.id)

    def of_server(self, name: str, given: PermissionSet) -> Caller:
        """The identity of an MCP server, for what the kernel does on its behalf; no connection has it."""
        number = self._admit(given, self.sets.names, None)
        self.mail.open(number)
        caller = Caller(number, "guest", name, self.tables.of(number), self.authorizer, self.audit)
        caller.approvals, caller.family, caller.counts = self.approvals, f"guest {name}", self.guest_counts
        return caller

    async def admit(self, peer: Peer) -> Caller:
        """The caller of a new connection on the operator's socket: the operator, or an agent found by ancestry."""
        agent = await self.peers.identify(peer)
        return agent.caller if agent is not None else self.admit_operator(peer.uid)

    def admit_operator(self, uid: int, name: str | None = None) -> Caller:
        """The operator on a connection of its own, of a process of ``uid``; ``name`` stands in the audit log."""
        number = self._admit(LEVELS["unrestricted"], self.sets.names, None, is_operator=True)
        self.mail.open(number)
        # The whole table: an unrestricted set refuses no call, and to ask it about each one takes longer than the rest.
        table = self.tables.whole(number)
        caller = Caller(number, "operator", name or f"operator#{number}", table, self.authorizer, self.audit)
        caller.counts, self._operators[number] = self.operator_counts, caller
        caller.become, caller.approvals, caller.uid = self.become, self.approvals, uid
        return caller

    def admit_link(self, uid: int, name: str, link_set: str) -> Caller:
        """A guest with one of :data:`LINK_SETS` on a connection of its own, for what the operator gave a link for."""
        caller = self.admit_operator(uid, name)
        self._make_guest(caller, LINK_SETS[link_set])
        self.audit.note(caller.entry("HELLO", LINK_SETS[link_set].name, GIVEN_UP, "outcome", "ok"))
        return caller

    def dismiss(self, caller: Caller) -> None:
        """Clean up after a connection on the operator's socket."""
        if caller.kind == "agent":
            return
        if caller.kind == "operator":  # a guest may reconnect
            self.line.remove_agent(self.queue_path(caller))
        self._guests.pop(caller.id, None)
        self._operators.pop(caller.id, None)
        self.approvals.forget_caller(caller.id)
        self.background.drop(caller.id)
        self.mail.close(caller.id)
        self.authorizer.remove_caller(caller.id)

    def find_guest(self, guest: str | int) -> Caller | None:
        """The connected guest with that id or name; of several connections of one name the latest."""
        if isinstance(guest, int):
            return self._guests.get(guest)
        return next((one for one in reversed(self._guests.values()) if one.name == guest), None)

    def forget_agent(self, event: AgentOver) -> None:
        """Clean up after an agent that is over. A declared one keeps its mailbox: its group may be restarted."""
        agent = self.registry.get(event.agent_id)
        if agent is not None and not agent.declared:
            self.forget(agent)

    def forget(self, agent: Agent) -> None:
        """Remove an agent's mailbox with its unread messages, its rights, and its place in the model's queue."""
        self.mail.close(agent.id)
        self.places.leave(agent.id)
        self.tables.forget(agent.id)
        self.authorizer.remove_caller(agent.id)
        self.line.remove_agent(agent.queue_path)

    async def become(
        self, caller: Caller, name: str | None, level: str | None, permissions: object, kept: bool
    ) -> None:
        """Make an operator's connection a guest, or reduce a guest's rights. Rights that are given up never return.

        Quotas, spawned agents and the ``kept`` mailbox belong to the guest's ``name``, also after it reconnects.
        """
        if level is not None and permissions is not None:
            raise BadRequest("permissions: level says it already; leave one of them out")
        wanted = permissions if permissions is not None else level
        given = (
            default(jailed=False) if wanted is None else await self.sets.read(wanted, "permissions", "HELLO", caller)
        )
        self.authorizer.check_layer_left(given, caller.id)
        if kept:
            self._check_mailbox(caller, name)
        if name is not None and name != caller.name:
            self._rename(caller, name)
        if kept:
            self.mail.register(caller.id, caller.name)
            self.mail.adopt(caller.id, f"guest {caller.name}")  # no agent's name has a space
        self._make_guest(caller, given)
        rights = wanted if isinstance(wanted, str) else codec.encode(set_files.describe_set(given)).decode()
        self.audit.note(caller.entry("HELLO", f"from now on {rights}", GIVEN_UP, "outcome", "ok"))

    def _check_mailbox(self, caller: Caller, name: str | None) -> None:
        """Raise ``Busy`` while another connection has the mailbox of the guest's name, or it has no room for more."""
        if name is None:
            raise BadRequest("mailbox: a kept one belongs to a guest's name: say it in `as`")
        check_guest_name(name)
        if self.mail.is_taken(name) and self.mail.by_name(name).id in self._guests.keys() - {caller.id}:
            raise Busy(
                f"mailbox: another connection of the guest {name!r} has its mailbox: "
                "try again when that has ended, or leave `mailbox` out"
            )
        self.mail.check_adoption(caller.id, f"guest {name}")

    def _make_guest(self, caller: Caller, given: PermissionSet) -> None:
        """Limit a connection of the operator or of a guest to this set from now on."""
        if caller.kind == "operator" and caller.name == f"operator#{caller.id}":
            caller.name = f"guest#{caller.id}"
        caller.kind, caller.family, caller.counts = "guest", f"guest {caller.name}", self.guest_counts
        self._guests[caller.id] = caller
        self.authorizer.add_layer(caller.id, given)
        caller.table = self.tables.of(caller.id)
        for agent in self.registry:  # some may have been spawned by this connection
            if not agent.over.is_set():
                agent.caller.table = self.tables.of(agent.id)

    def _rename(self, caller: Caller, name: str) -> None:
        check_guest_name(name)
        if caller.kind == "guest":
            raise BadRequest(f"as: this connection is the guest {caller.name!r} already")
        if self.registry.is_taken(name):
            raise AlreadyExists(f"as: {name!r} is an agent")
        if not self.mail.is_taken(name):
            self.mail.register(caller.id, name)
        elif self.mail.by_name(name).id not in self._guests:  # another connection of the same guest has its mailbox
            raise AlreadyExists(f"as: {name!r} is the name of the caller with id {self.mail.by_name(name).id}")
        caller.name = name

    # -- Permissions -----------------------------------------------------------------------------------------------

    def give(self, agent: Agent, given: PermissionSet, by: Caller) -> None:
        """Replace an agent's set. It applies to the next call, and as an upper bound to all descendants."""
        self.authorizer.replace_set(agent.id, given, by.id)
        self._apply_set(agent, given)

    async def check_narrower(self, caller: Caller, given: PermissionSet, field: str) -> None:
        """Raise ``PermissionDenied`` for grants the caller lacks, ``QuotaExceeded`` after too many narrowings."""
        check = self.authorizer.check_narrower
        async with caller.turn:
            await run_in_thread(check, given, caller.id, field, limiter=self.sets.reading)

    def declare(self, agent: Agent, spec: AgentSpec) -> None:
        """Replace a declared agent's rights by those of this spec; what it narrowed, or SET_PERMS gave, is dropped."""
        names = self.sets.names_of(jailed=spec.jailed)
        self.authorizer.replace_all(agent.id, spec.permissions or default(spec.jailed), names)
        self._apply_set(agent, spec.permissions)

    def use_sets(self, known: Mapping[str, PermissionSet]) -> None:
        """Use these sets of the file, also for spawned agents that were given one of them by its name."""
        before, self.sets.known = self.sets.known, known
        changed = {old: known[name] for name, old in before.items() if known.get(name, old) != old}
        if not changed:
            return
        for agent in self.registry:
            if not agent.declared and not agent.over.is_set():
                self.authorizer.replace_sets(agent.id, changed)
                given = agent.spec.permissions
                self._apply_set(agent, changed.get(given, given) if given is not None else None)

    def limit(self, agent: Agent, spec: AgentSpec) -> None:
        """Take away what this spec doesn't grant, until :meth:`declare` gives the agent all of it."""
        self.authorizer.stack(agent.id, spec.permissions or default(spec.jailed))
        self.choose_tables()

    def narrow(self, caller: Caller, given: PermissionSet) -> None:
        """Limit a caller to a set from now on; an operator's connection becomes a guest by this."""
        if self.authorizer.is_held_already(given, caller.id):
            return
        if caller.kind != "agent":
            self._make_guest(caller, given)
            return
        agent = self.registry.find(caller.id, None)
        self.authorizer.add_layer(agent.id, given)
        own, share = agent.spec.permissions or default(agent.spec.jailed), agent.queue_path[-1].share
        had = share.budget if share.by_default else own.quotas
        self._apply_set(agent, attrs.evolve(limit_set(given, own), quotas=merge_quotas(had, given.quotas)))

    def _apply_set(self, agent: Agent, given: PermissionSet | None) -> None:
        """Apply an agent's new set to the call tables and the model quotas of the agent and its descendants."""
        agent.spec = replace(agent.spec, permissions=given)
        for other in self.registry:  # each parent before its children
            if other is agent or self.registry.descends(other.id, agent.id):
                if not other.over.is_set():
                    other.caller.table = self.tables.of(other.id)
                above = other.queue_path[:-1] if other is agent or other.parent is None else other.parent.queue_path
                share = choose_share(other.spec, above, self.default_budget)
                other.queue_path = (*above, Account(other.queue_path[-1].name, share))

    def limits(self, caller: Caller) -> Limits:
        """Upper limits, by its permissions, for agents that the caller spawns; for a guest also the defaults."""
        found: dict[str, float] = {}
        for one in self.authorizer.permissions_of(caller.id).sets():
            for name, most in one.limits:
                found[name] = min(most, found.get(name, most))
        if caller.kind == "guest":  # an agent's children are limited to the agent's own limits elsewhere
            found = {**named(DEFAULTS), **found}
        return Limits(**found)  # type: ignore[arg-type]

    def queue_path(self, caller: Caller) -> QueuePath:
        """The caller's place in the model's queue: below its ancestors for an agent, separate for others."""
        if caller.kind == "agent":
            return self.registry.find(caller.id, None).queue_path
        if caller.kind == "guest":
            sets = self.authorizer.permissions_of(caller.id).sets()
            needs_default = not limits_model(sets[-1].quotas) and not all(
                map(is_trusted, sets)
            )  # the last one is its first
            budget = merge_quotas(*(one.quotas for one in sets), self.default_budget if needs_default else ())
            return (self.kernel_account, Account(f"guest {caller.name}", Share(budget=budget)))
        return (self.kernel_account, Account(caller.name, Share(class_="interactive")))  # a person waits for the answer

    def charge_http(self, caller: Caller, requests: int, size: int, used: bool) -> None:
        """Count HTTP requests, tunnels and their bytes towards the caller's quotas; raises ``QuotaExceeded``.

        ``used``: the bytes have passed already, and count even then.
        """
        amounts = {"http_bytes": size} if used else {"http_requests": requests, "http_bytes": size}
        self.line.charge(self.queue_path(caller), amounts, used)

    def _admit(self, own: PermissionSet, names: Names, above: int | None, *, is_operator: bool = False) -> int:
        number = next(self.ids)
        self.authorizer.add_caller(number, own, names, above, is_operator=is_operator)
        return number

    def choose_tables(self, numbers: Collection[int] | None = None) -> None:
        """Give callers, these by id or all, the tables that they need now: what is recorded has another one."""
        agents = [*self.registry] if numbers is None else [self.registry.get(number) for number in numbers]
        for agent in agents:
            if agent is not None and (agent.declared or not agent.over.is_set()):  # else its rights are gone
                agent.caller.table = self.tables.of(agent.id)
        for number, caller in self._operators.items():
            if numbers is None or number in numbers:
                is_operator = caller.kind == "operator"
                caller.table = self.tables.whole(number) if is_operator else self.tables.of(number)

    def _name(self, number: int) -> str:
        if number == KERNEL_ID:
            return KERNEL
        found = self.registry.get(number)
        return found.name if found is not None else self.mail.by_id(number).name

    def _is_parent(self, number: int, other: int) -> bool:
        """The operator, on any connection, is the parent of the declared agents and of those that it spawned.

        A guest is, on any connection of its name, of those that it spawned.
        """
        agent = self.registry.get(self.places.find(number))
        if agent is None or agent.spawner == other:
            return agent is not None
        if agent.guest is not None and (guest := self._guests.get(other)) is not None:
            return guest.name == agent.guest
        of_operator = agent.parent is None and agent.guest is None
        return of_operator and other not in self._guests and self.registry.get(other) is None
