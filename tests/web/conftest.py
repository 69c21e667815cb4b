"""A kernel with a dashboard, and browsers' tabs without a browser: HTTP and WebSocket on sockets."""

import contextlib
import http.client
import json
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from attrs import define, field
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)

from agentos.userland.web.links import Level, find_link
from tests.support.kernel import Kernel, shared
from tests.support.wire import PATIENCE

DASHBOARD = '[dashboard]\nlisten = "127.0.0.1:0"\n'

Answer = tuple[int, Mapping[str, str], str]


@define
class Browser:
    """A browser with a cookie, if ``cookie`` isn't empty."""

    netloc: str
    cookie: str = ""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.netloc.rpartition(":")
        return host.strip("[]"), int(port)

    def get(self, target: str, method: str = "GET", **headers: str) -> Answer:
        """Status, headers and body; header names have underscores instead of hyphens."""
        host, port = self.address
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=PATIENCE)) as connection:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            if self.cookie:
                sent.setdefault("Cookie", self.cookie)
            connection.request(method, target, headers=sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read().decode()

    def log_in(self, link: str) -> None:
        status, headers, body = self.get(link.partition(self.netloc)[2])
        assert status == 303, body
        self.cookie = headers["set-cookie"].partition(";")[0]

    @contextlib.contextmanager
    def open_page(self, origin: str | None = None) -> "Iterator[Tab]":
        """A page with its feed."""
        host, port = self.address
        with socket.create_connection((host, port), timeout=PATIENCE) as sock:
            tab = Tab(sock)
            tab.open(self.netloc, self.cookie, origin if origin is not None else f"http://{self.netloc}")
            yield tab


@define
class Tab:
    """The WebSocket of a page. ``closed`` is the code with which the server closed it, or refused it."""

    sock: socket.socket
    closed: int | None = None
    shown: dict[str, Any] = field(factory=dict)  # the snapshot, with the deltas that have arrived
    _protocol: WSConnection = field(factory=lambda: WSConnection(ConnectionType.CLIENT))
    _messages: list[dict[str, Any]] = field(factory=list)
    _text: str = ""
    _packed: bytes = b""
    _number: int = 0
    _accepted: bool = False

    def open(self, host: str, cookie: str, origin: str) -> None:
        headers = [(b"cookie", cookie.encode()), (b"origin", origin.encode())]
        self.sock.sendall(self._protocol.send(Request(host=host, target="/feed", extra_headers=headers)))
        while self.closed is None and not self._accepted:
            self._receive()

    def _receive(self) -> None:
        data = self.sock.recv(65536)
        self._protocol.receive_data(data or None)
        for event in self._protocol.events():
            if isinstance(event, AcceptConnection):
                self._accepted = True
            elif isinstance(event, RejectConnection):
                self.closed = event.status_code
            elif isinstance(event, CloseConnection):
                self.closed = int(event.code)
            elif isinstance(event, Ping):
                self.sock.sendall(self._protocol.send(event.response()))
            elif isinstance(event, BytesMessage):
                self._packed += event.data
                if event.message_finished:
                    self._take(json.loads(zlib.decompress(self._packed)))
                    self._packed = b""
            elif isinstance(event, TextMessage):
                self._text += event.data
                if event.message_finished:
                    self._take(json.loads(self._text))
                    self._text = ""
        if not data and self.closed is None:
            self.closed = 1006

    def _take(self, message: dict[str, Any]) -> None:
        if "snapshot" in message:
            self.shown = message["snapshot"]
        elif "delta" in message:
            delta = message["delta"]
            for key, change in delta.pop("agents", {}).items():
                if change is None:
                    del self.shown["agents"][key]
                else:
                    self.shown["agents"].setdefault(key, {}).update(change)
            self.shown["events"] += delta.pop("events", [])
            self.shown.update(delta)
        else:
            self._messages.append(message)

    def send(self, message: object) -> None:
        self.sock.sendall(self._protocol.send(Message(data=json.dumps(message))))

    def call(self, op: str, /, **args: object) -> Any:
        """The reply to a system call."""
        self._number += 1
        return self.ask({"type": "call", "id": self._number, "call": op, "args": args})

    def ask(self, message: dict[str, Any]) -> Any:
        self.send(message)
        while True:
            for found in self._messages:
                if found["id"] == message["id"] and "reply" in found:
                    self._messages.remove(found)
                    return found["reply"]
            assert self.closed is None, f"closed with {self.closed}"
            self._receive()

    def wait(self, condition: Callable[[dict[str, Any]], object]) -> None:
        """Until what the page shows fulfils the condition."""
        while not (self.shown and condition(self.shown)):
            assert self.closed is None, f"closed with {self.closed}"
            self._receive()

    def wait_closed(self) -> int:
        while self.closed is None:
            self._receive()
        return self.closed

    def state_of(self, name: str) -> str | None:
        rows = self.shown.get("agents", {}).values()
        return next((str(row["state"]) for row in rows if row["name"] == name), None)


def link_of(kernel: Kernel, level: Level = "unrestricted") -> str:
    """A new link to the kernel's dashboard."""
    place = Path(kernel.state_dir)
    kernel.wait_line(r"\| dashboard: ")
    link = find_link(place, level)
    assert link is not None
    return link


def browser_of(kernel: Kernel, level: Level = "unrestricted") -> Browser:
    """A browser that has logged in."""
    link = link_of(kernel, level)
    browser = Browser(urlsplit(link).netloc)
    browser.log_in(link)
    return browser


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    """A kernel with a dashboard, shared by the tests of a module."""
    with shared(DASHBOARD) as started:
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser, of Playwright."""
    from tests.web.chromium import browser

    with browser() as started:
        yield started


@pytest.fixture
def browser(kernel: Kernel) -> Browser:
    return browser_of(kernel)
