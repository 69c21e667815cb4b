"""Outgoing connections of one agent: opened if its rules allow, closed when they no longer do."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from time import perf_counter, time

import trio
from attrs import define, field, frozen
from msgspec import Struct

from agentos.http.hang_up import unless_gone
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Approvals, Decision, Right
from agentos.kernel.prepared import Refused, note_refusal
from agentos.permissions.address_judge import ADDRESS_RULE, find_tunnel_refusal, judge_address_of
from agentos.permissions.authorizer import PermissionAuthorizer
from agentos.services.http.destination import Destination
from agentos.services.http.egress import Egress, JudgeAddress
from agentos_sdk.errors import CallError, Timeout

from .approval import Show, Shown, answered_until, find_answer, require_or_ask
from .tunnel import MAX_SECONDS, Traffic

CALL = "HTTP"  # the audit log's name of requests and tunnels
CONNECT_SECONDS = 60.0  # for name, address and upstream proxy
HALF_CLOSED_SECONDS = 5.0  # of these, once the client of a request has closed its sending side: it may be gone

Charge = Callable[[Caller, int, int, bool], None]
"""Counts requests and bytes of a caller; the flag says that they are used already. Raises ``QuotaExceeded``."""


class Granted(Struct, frozen=True):
    """Why a connection may be opened: ``decision``, and ``by_rule``, the rules' own, which asks if a person approved.

    ``until``: when the remembered answer that allows a tunnel ends, in seconds since the epoch, or ``inf``; None: it
    was allowed without one.
    """

    decision: Decision
    by_rule: Decision
    until: float | None = None


@define(eq=False)
class OutgoingConnection:
    """One connection. ``remark`` is added to the audit entry at its end."""

    destination: Destination
    granted: Granted
    judge: JudgeAddress
    server: trio.SocketStream
    traffic: Traffic
    remark: str = ""


@frozen(eq=False)
class OutgoingConnections:
    """All connections of ``caller``, an agent; one that a person must approve waits ``ask_seconds`` at most."""

    caller: Caller
    authorizer: PermissionAuthorizer
    approvals: Approvals | None
    egress: Egress
    ask_seconds: float
    charge: Charge
    _open: set[OutgoingConnection] = field(factory=set)

    @asynccontextmanager
    async def open(self, client: trio.SocketStream, to: Destination, show: Show) -> AsyncIterator[OutgoingConnection]:
        """Open a connection for the time of the block. ``show`` makes what a person sees who has to approve.

        Raises ``CallError``: before the block if the connection is refused or fails, within the block if changed rules
        refuse it or it is idle for too long. The audit log gets an intent before the name is resolved, and the outcome
        with duration and bytes at the end.
        """
        granted = await self.require(client, to, show)
        self.charge(self.caller, 1, 0, False)
        entry = self.caller.entry(CALL, str(to), granted.decision, "intent")
        intent, began = await self.caller.audit.intend(entry), perf_counter()
        outcome, remark, opened = "cancelled", "", None
        try:
            self._require_again(to, granted)
            judge = judge_address_of(self.authorizer, self.caller, to)
            connect = partial(self._connect, to, judge)
            # A tunnel ends with its client. A client of a request may close its sending side and wait for the response.
            async with await unless_gone(
                client, connect, HALF_CLOSED_SECONDS if to.method is not None else 0
            ) as server:
                left = MAX_SECONDS if granted.until is None else min(MAX_SECONDS, granted.until - time())
                ends = trio.current_time() + left
                traffic = Traffic(lambda size: self.charge(self.caller, 0, size, True), ends=ends)
                opened = OutgoingConnection(to, granted, judge, server, traffic)
                self._open.add(opened)
                if (observer := self.caller.table.observer) is not None:
                    observer.miss(self.caller, f"it reached {to.host} by the filtered network, whose bytes no call has")
                self._judge_again(opened)  # rules may have changed meanwhile
                with traffic.scope:
                    yield opened
            if traffic.refusal is not None:
                raise traffic.refusal
            if traffic.scope.cancelled_caught:
                if left < MAX_SECONDS and trio.current_time() >= ends:
                    raise granted.by_rule.refusal
                raise Timeout(f"{to}: the connection was idle for too long")
            outcome = "ok"
        except CallError as error:
            outcome = error.code
            raise
        finally:
            if opened is not None:
                self._open.discard(opened)
                opened.traffic.charge()
                remark = f" ({opened.remark}{opened.traffic.sent} bytes sent, {opened.traffic.received} received)"
            about, took = f"{to}{remark}", perf_counter() - began
            self.caller.audit.note(self.caller.entry(CALL, about, granted.decision, "outcome", outcome, took, intent))

    def judge_again(self) -> None:
        """Close the connections that the rules no longer allow."""
        for one in list(self._open):
            self._judge_again(one)

    def _judge_again(self, one: OutgoingConnection) -> None:
        try:
            self._require_again(one.destination, one.granted)
            if self.egress.settings.upstream_proxy is None:
                address, port, *_ = one.server.socket.getpeername()
                one.judge(ip_address(address), port)
        except CallError as error:
            one.traffic.end(error)
        except OSError:
            one.traffic.scope.cancel()  # the server is gone

    async def _connect(self, to: Destination, judge: JudgeAddress) -> trio.SocketStream:
        try:
            with trio.fail_after(CONNECT_SECONDS):
                return await self.egress.connect(self.caller.id, to.host, to.port, judge)
        except trio.TooSlowError:
            raise Timeout(f"{to}: no connection within {CONNECT_SECONDS:g} s") from None

    async def require(self, client: trio.SocketStream, to: Destination, show: Show) -> Granted:
        """Return why the destination is allowed.

        Raises ``CallError`` if the destination is refused, ``BrokenResourceError`` if the client disconnects meanwhile.
        """
        right = Right("http", to)
        decision = self.caller.authorizer.decide(self.caller, right)
        if decision.effect != "deny" and (refusal := find_tunnel_refusal(self.authorizer, self.caller, to)) is not None:
            note_refusal(self.caller, CALL, Refused(refusal, str(to), ADDRESS_RULE))
            raise refusal
        if decision.effect == "allow":
            return Granted(decision, decision)
        found = find_answer(self.approvals, self.caller, right, decision) if decision.effect == "ask" else None
        if found is None:
            shown = await show() if decision.effect == "ask" and self.approvals is not None else Shown("")
            deadline = trio.current_time() + self.ask_seconds
            found = await unless_gone(
                client, partial(require_or_ask, self.approvals, self.caller, right, shown, deadline)
            )
        by_rule = self.caller.authorizer.decide(self.caller, right)
        return Granted(
            found, by_rule, answered_until(self.approvals, self.caller, right, by_rule) if to.method is None else None
        )

    def _require_again(self, destination: Destination, granted: Granted) -> None:
        """Raise ``CallError`` if the rules refuse now, or the remembered answer that allowed a tunnel is gone.

        A rule that still asks, as when a person approved, refuses nothing.
        """
        right = Right("http", destination)
        decision = self.caller.authorizer.decide(self.caller, right)
        if decision.effect != "allow" and decision != granted.by_rule:
            raise decision.refusal
        is_answered = granted.until is None or answered_until(self.approvals, self.caller, right, decision) is not None
        if decision.effect == "ask" and not is_answered:
            raise decision.refusal
        if (refusal := find_tunnel_refusal(self.authorizer, self.caller, destination)) is not None:
            raise refusal
