"""The feed: the state that all pages of one role show, sent as a snapshot, then as changes.

A snapshot is ``{"snapshot": {...}, "seq": n}``, a change is ``{"delta": {...}, "seq": n}``. In a delta ``agents`` maps
ids to the fields that changed, or to null if the agent is no longer listed; ``events`` are new ones; every other key
replaces the snapshot's.

Reading the state costs time for each agent. It is read when an event says that it may have changed, so many seconds
after the last time as there are thousands of agents, and now and then without an event.
"""

import json
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from socket import socket
from typing import Any

import msgspec
import trio
from attrs import define, field

from agentos_sdk.calls.connection import Hello
from agentos_sdk.client import Kernel, attach
from agentos_sdk.encoding import codec
from agentos_sdk.opcodes import Op

from .links import Role
from .page import Page, RawStream

log = logging.getLogger(__name__)

REFRESH_SECONDS = 2.0  # without an event: memory and CPU time change without one
GAP_SECONDS = 0.1  # between two changes that a page gets
SECONDS_PER_AGENT = 0.001  # between two readings; one of LIST takes 0.03 ms of CPU time for each
# They change nothing that is read, and may come by the hundred a second.
IRRELEVANT = {"CUSTOM", "STATE_CHANGED", "MESSAGE_RECEIVED", "TASK_STEP"}
SHOWN_EVENTS = 200
SETTLED_MS = 1500  # starts are computed from uptimes: smaller differences are ignored

Connect = Callable[[str, str | None], AbstractAsyncContextManager[socket]]
State = dict[str, Any]


@define(eq=False)
class Feed:
    """The feed of one role. ``state`` is what a snapshot shows, empty until the first reading."""

    role: Role
    pages: set[Page] = field(factory=set)
    state: State = field(factory=dict)
    seq: int = 0
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    _outdated: bool = True  # an event says that the state isn't what was read
    _read_at: float = -math.inf
    _news: trio.Event = field(factory=trio.Event)
    _events: deque[Any] = field(factory=lambda: deque(maxlen=SHOWN_EVENTS))  # not shown yet

    async def run(self, kernel: Kernel) -> None:
        """Read and publish until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_events, kernel)
            while True:
                delta = await self._read(kernel) if trio.current_time() >= self._due else {}
                self._publish(delta)
                await trio.sleep(GAP_SECONDS)
                with trio.move_on_at(self._due):
                    await self._news.wait()
                self._news = trio.Event()

    @property
    def _due(self) -> float:
        """When the state has to be read again."""
        if not self._outdated:
            return self._read_at + REFRESH_SECONDS
        return self._read_at + len(self.state.get("agents", ())) * SECONDS_PER_AGENT

    async def _follow_events(self, kernel: Kernel) -> None:
        """Collect events, beginning with the last ones before now."""
        everything = {"event_types": ["*"]}
        now = await _call(kernel, Op.SUBSCRIBE, everything)
        await _call(kernel, Op.UNSUBSCRIBE, {"all": True})
        since = {"since": max(0, now["seq"] - SHOWN_EVENTS), "boot": now["boot"], "stream": True}
        async with RawStream(kernel, Op.SUBSCRIBE, msgspec.json.encode({**everything, **since})) as stream:
            async for chunk in stream:
                events = parse(chunk)["events"]
                self._outdated |= any(map(_is_relevant, events))
                self._events.extend(events)
                self._news.set()

    async def _read(self, kernel: Kernel) -> State:
        """Read the state; returns what has changed."""
        self._outdated, self._read_at = False, trio.current_time()
        rows = await _call(kernel, Op.LIST, {"all": True})
        status = await _call(kernel, Op.STATUS, {})
        status["since_ms"] = _since(status.pop("up_ms"), self.state.get("kernel", {}).get("since_ms"))
        new = {"kernel": status, "approvals": (await _call(kernel, Op.APPROVALS, {}))["pending"]}
        delta: State = {key: value for key, value in new.items() if self.state.get(key) != value}
        agents = self._compare(rows)
        if agents:
            delta["agents"] = agents
        self.state.update(new)
        return delta

    def _publish(self, delta: State) -> None:
        """Send a change, with the new events, to all pages."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        if events:
            delta["events"] = events
        self.state["events"] = [*self.state.get("events", ()), *events][-SHOWN_EVENTS:]
        if delta:
            self.seq += 1
            text = encode({"delta": delta, "seq": self.seq, "at": time.time()})
            for page in self.pages:
                page.change(text)

    def _compare(self, rows: list[State]) -> dict[str, State | None]:
        """Replace the shown agents; returns the differences."""
        shown: dict[str, State] = self.state.get("agents", {})
        found: dict[str, State] = {}
        for row in rows:
            key = str(row["id"])
            old = shown.get(key, {})
            uptime_ms, same = row.pop("uptime_ms"), old.get("state") == row["state"]
            # Without a program there is no uptime: show since when this state has been seen.
            row["since_ms"] = old["since_ms"] if same and not uptime_ms else _since(uptime_ms, old.get("since_ms"))
            found[key] = row
        self.state["agents"] = found
        changed: dict[str, State | None] = {}
        for key, row in found.items():
            if key not in shown:
                changed[key] = row
            elif row != shown[key]:
                changed[key] = {name: value for name, value in row.items() if shown[key].get(name, ...) != value}
        return {**changed, **{key: None for key in shown if key not in found}}


def _is_relevant(event: State) -> bool:
    return event["type"] not in IRRELEVANT and not event["type"].startswith("custom.")


def _since(uptime_ms: int, shown: int | None) -> int:
    """A start in ms since the epoch, from an uptime; the one ``shown`` already if it differs by jitter only."""
    since = round(time.time() * 1000) - uptime_ms
    return shown if shown is not None and abs(since - shown) < SETTLED_MS else since


async def _call(kernel: Kernel, op: Op, fields: State) -> Any:
    """Return the reply to a call."""
    return parse(await kernel.exchange(op, msgspec.json.encode(fields)))


def parse(data: bytes) -> Any:
    """Parse what the kernel has sent. Agents choose texts in it: unlike msgspec, take half a surrogate pair."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def encode(value: State) -> bytes:
    """JSON, also of a text with half a surrogate pair."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return codec.encode(value)


@define(eq=False)
class Feeds:
    """The feeds of one kernel, one for each role; a feed runs while it has pages.

    Pages of the operator get ``commands``, to run them on the host by EXEC.
    """

    _connect: Connect
    boot: str
    commands: Mapping[str, Sequence[str]]
    _feeds: dict[Role, Feed] = field(factory=dict)
    _nursery: trio.Nursery = field(init=False)

    async def serve(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    @asynccontextmanager
    async def connect(self, name: str, role: Role) -> AsyncIterator[Kernel]:
        """A connection to the kernel with the rights of a role; ``name`` is the caller's in the audit log."""
        opened = self._connect(name, None if role == "operator" else role)
        async with opened as sock, attach(trio.socket.from_stdlib_socket(sock), name, Hello(protocol=2)) as kernel:
            yield kernel

    @contextmanager
    def join(self, page: Page, role: Role) -> Iterator[None]:
        """Send a page the feed of this role."""
        feed = self._feeds.get(role)
        if feed is None:
            feed = self._feeds[role] = Feed(role)
            self._nursery.start_soon(self._run, feed)
        feed.pages.add(page)
        page.start_anew()
        try:
            yield
        finally:
            feed.pages.discard(page)
            if not feed.pages:
                self._end(feed)

    def _end(self, feed: Feed) -> None:
        feed.scope.cancel()
        if self._feeds.get(feed.role) is feed:  # it may have failed, and pages that came back have another
            del self._feeds[feed.role]

    async def _run(self, feed: Feed) -> None:
        """Run a feed. If it fails its pages are closed; they reconnect."""
        with feed.scope:
            try:
                async with self.connect(f"web:{feed.role}", feed.role) as kernel:
                    await feed.run(kernel)
            except Exception:
                log.exception("the dashboard's feed of role %s failed", feed.role)
                self._end(feed)
                for page in list(feed.pages):
                    page.close()

    def snapshot(self, role: Role, dropped: int) -> bytes:
        """The whole state for a page; empty if nothing has been read yet. ``dropped``: how often it was too slow."""
        feed = self._feeds.get(role)
        if feed is None or not feed.state:
            return b""
        shown = {**feed.state, "boot": self.boot, "role": role, "dropped": dropped}
        if role == "operator":
            shown["commands"] = self.commands
        return encode({"snapshot": shown, "seq": feed.seq, "at": time.time()})
