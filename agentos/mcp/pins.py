"""Pins: which versions of an MCP server's tools the operator has allowed.

A server may change what a tool says it does after it was trusted. So a decision holds for the digest of a tool's
description, schemas and annotations. A tool that is new or has changed is withheld, and one approval for each server
asks the operator about all of its withheld tools. Decisions are kept in the kernel's database.
"""

import hashlib
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio
from attrs import define, field
from msgspec import Struct

from agentos.database import Database, DatabaseError
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Decision, Question, Right
from agentos.permissions.approvals.answers import Answer
from agentos.permissions.approvals.approvals import Approvals
from agentos.permissions.approvals.page import escape
from agentos.threads import run_in_thread
from agentos_sdk.errors import ApprovalRefused, CallError

from .pin_text import Change, describe_changes, fits
from .tool import Tool

log = logging.getLogger("agentos.mcp")

TABLES: Final = (
    "CREATE TABLE mcp_pins (server TEXT NOT NULL, tool TEXT NOT NULL, allowed INTEGER NOT NULL, digest TEXT NOT NULL,"
    " definition TEXT NOT NULL, approval INTEGER NOT NULL, at REAL NOT NULL, reason TEXT,"
    " PRIMARY KEY (server, tool, allowed)) WITHOUT ROWID",
)
MAX_TOO_LONG: Final = 1000  # digests of tools that can't be shown, which are kept so as not to ask again
RETRY_SECONDS: Final = 5.0  # from a question that failed until the next one: each call of a tool may cause one


class Pin(Struct, frozen=True):
    """A decision of the operator about one version of a tool; of each tool the last allowed and the last refused one.

    ``approval`` is the id of the approval that it was, ``at`` seconds since the epoch.
    """

    server: str
    tool: Tool
    allowed: bool
    approval: int
    at: float
    reason: str | None = None

    @property
    def key(self) -> tuple[str, str, bool]:
        return self.server, self.tool.name, self.allowed


class Split(Struct, frozen=True):
    """``pinned`` tools may be used; ``withheld`` ones may not: the reason by the tool's name, as a sentence."""

    pinned: Sequence[Tool]
    withheld: Mapping[str, str]


@define(eq=False)
class Pins:
    """Decides which tools of a server agents may see and call. :meth:`serve` has to run.

    ``find_asker`` is the caller that asks for a server.
    """

    database: Database
    approvals: Approvals
    find_asker: Callable[[str], Caller]
    _pins: dict[tuple[str, str, bool], Pin] = field(factory=dict)
    _asking: dict[str, trio.CancelScope] = field(factory=dict)  # by server: the approval that waits
    _again_at: dict[str, float] = field(factory=dict)  # on Trio's clock: not before, where asking failed
    _too_long: set[str] = field(factory=set)  # digests of tools that no text can show
    _nursery: trio.Nursery | None = None

    async def load(self, servers: Collection[str]) -> None:
        """Load the decisions about these servers, and drop all others. Raises ``DatabaseError``."""
        self._pins = {pin.key: pin for pin in await self.database.write(_load)}
        await self.keep_only(servers)

    async def serve(self) -> None:
        """Ask the operator about withheld tools, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def split(self, server: str, tools: Sequence[Tool]) -> Split:
        """Divide the tools that a server offers now. Never waits. Withheld ones are asked about in the background.

        Of several tools with one name the first counts, and none is pinned by another's.
        """
        pinned, withheld, changes = list[Tool](), dict[str, str](), list[Change]()
        names = set[str]()
        for tool in tools:
            if tool.name in names:
                continue
            names.add(tool.name)
            allowed, refused = (self._pins.get((server, tool.name, way)) for way in (True, False))
            if allowed is not None and allowed.tool.digest == tool.digest:
                pinned.append(tool)
                continue
            if refused is not None and refused.tool.digest == tool.digest:
                why = f": {refused.reason}" if refused.reason else ""
                withheld[tool.name] = f"the operator has refused it in approval {refused.approval}{why}"
            elif tool.digest in self._too_long:
                withheld[tool.name] = "its description and schemas are too long to be shown to the operator"
            else:
                what = "it is new" if allowed is None else f"it has changed since approval {allowed.approval}"
                withheld[tool.name] = f"{what}, and waits for the operator (`agentos approvals`)"
                changes.append(Change(tool, allowed.tool if allowed is not None else None))
        if changes and self._nursery is not None and self._may_ask(server):
            self._asking[server] = trio.CancelScope()
            self._nursery.start_soon(self._ask, server, sorted(changes, key=lambda one: one.tool.name))
        return Split(pinned, withheld)

    def _may_ask(self, server: str) -> bool:
        return server not in self._asking and trio.current_time() >= self._again_at.get(server, 0.0)

    async def _ask(self, server: str, changes: Sequence[Change]) -> None:
        """Ask about as many changes as one text can show, and keep the decision."""
        try:
            with self._asking[server] as scope:
                text, shown = await run_in_thread(describe_changes, server, changes)
                if len(shown) < len(changes):
                    if len(self._too_long) > MAX_TOO_LONG:
                        self._too_long.clear()
                    self._too_long.update(await run_in_thread(_find_too_long, server, changes))
                if shown:
                    await self._decide(server, text, shown)
        except DatabaseError as error:
            self._again_at[server] = trio.current_time() + RETRY_SECONDS
            log.error("tools of the MCP server %s: the decision isn't kept, and is asked for again: %s", server, error)
        except CallError as error:  # no decision yet: the next list of its tools asks again
            if scope.cancel_called:  # the server is removed
                return
            self._again_at[server] = trio.current_time() + RETRY_SECONDS
            log.warning("tools of the MCP server %s stay withheld: %s", server, error)
        finally:
            del self._asking[server]

    async def _decide(self, server: str, text: str, shown: Sequence[Change]) -> None:
        caller, question = self.find_asker(server), make_question(server, text, shown)
        number: Any
        reason: Any = None
        try:
            await self.approvals.wait(caller, question, math.inf)
            ticket = self.approvals.take_ticket(caller, question)
            number, allowed = ticket.id if ticket is not None else None, True
        except ApprovalRefused as refusal:
            number, allowed = refusal.details["approval_id"], False
            reason = refusal.details["reason"]
        if number is not None:
            at = time.time()
            pins = [Pin(server, change.tool, allowed, number, at, reason) for change in shown]
            await self.database.write(partial(_insert, pins))
            self._pins |= {pin.key: pin for pin in pins}

    # -- Decisions that were made ----------------------------------------------------------------------------------

    def list(self) -> Sequence[Answer]:
        """All decisions in the form of remembered answers."""
        return [
            Answer(
                id=pin.approval,
                subject=asker_name(pin.server),
                agent=asker_name(pin.server),
                action="tools",
                object=f"{pin.server}.{escape(pin.tool.name)} (sha256 {pin.tool.digest})",
                rule=rule_of(pin.server),
                allow=pin.allowed,
                reason=pin.reason,
                by="the operator",
                at=pin.at,
            )
            for pin in self._pins.values()
        ]

    async def revoke(self, number: int) -> Sequence[Answer]:
        """Revoke what the approval with this id has decided; returns it. Raises ``DatabaseError``."""
        found = [one for one in self.list() if one.id == number]
        await self._remove([pin for pin in self._pins.values() if pin.approval == number])
        return found

    async def keep_only(self, servers: Collection[str]) -> None:
        """Revoke what was decided about all servers but these, and what is asked."""
        for server in self._asking.keys() - set(servers):
            self._asking[server].cancel()
            self.approvals.withdraw(self.find_asker(server))
        try:
            await self._remove([pin for pin in self._pins.values() if pin.server not in servers])
        except DatabaseError as error:
            log.warning("what was decided about MCP servers that the file no longer has isn't removed yet: %s", error)

    async def _remove(self, pins: Sequence[Pin]) -> None:
        if pins:
            await self.database.write(partial(_delete, pins))
            for pin in pins:
                if self._pins.get(pin.key) is pin:
                    del self._pins[pin.key]


def asker_name(server: str) -> str:
    """The name by which approvals, the audit log and answers know a server."""
    return f"mcp.{server}"


def rule_of(server: str) -> str:
    return f"[mcp.servers.{server}]"


def make_question(server: str, text: str, shown: Sequence[Change]) -> Question:
    """What the operator is asked; the digest covers exactly the versions that are shown."""
    reason = f"the operator decides which tools of the MCP server {server} agents may use"
    versions = "\n".join([server, text, *(change.tool.digest for change in shown)])
    return Question(
        call="TOOLS",
        about=f"of the MCP server {server}",
        asked=((Right("tools"), Decision("ask", rule_of(server), reason)),),
        digest=hashlib.sha256(versions.encode()).hexdigest(),
        shown=text,
    )


def _find_too_long(server: str, changes: Sequence[Change]) -> Sequence[str]:
    return [change.tool.digest for change in changes if not fits(server, change)]


def _load(connection: sqlite3.Connection) -> Sequence[Pin]:
    rows = connection.execute("SELECT server, tool, definition, digest, allowed, approval, at, reason FROM mcp_pins")
    return [
        Pin(server, Tool(name, definition, digest), bool(allowed), approval, at, reason)
        for server, name, definition, digest, allowed, approval, at, reason in rows
    ]


def _insert(pins: Sequence[Pin], connection: sqlite3.Connection) -> None:
    rows = [
        (pin.server, pin.tool.name, pin.allowed, pin.tool.digest, pin.tool.definition, pin.approval, pin.at, pin.reason)
        for pin in pins
    ]
    connection.executemany("INSERT OR REPLACE INTO mcp_pins VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _delete(pins: Sequence[Pin], connection: sqlite3.Connection) -> None:
    connection.executemany(
        "DELETE FROM mcp_pins WHERE server = ? AND tool = ? AND allowed = ?", [pin.key for pin in pins]
    )
