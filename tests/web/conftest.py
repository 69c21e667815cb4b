"""A kernel with a dashboard, and browsers' tabs without a browser: HTTP and WebSocket on sockets."""

import contextlib
import http.client
import json
import secrets
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import msgspec
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

from agentos.userland.web.links import Role, find_link
from agentos.userland.web.proof import Opening
from tests.support.kernel import Kernel, shared
from tests.support.wire import PATIENCE

if TYPE_CHECKING:
    from tests.web.chromium import Open

DASHBOARD = '[dashboard]\nlisten = "127.0.0.1:0"\n'

NO_KEY = {"use": "run", "id": "none", "salt": "", "key": ""}

Answer = tuple[int, Mapping[str, str], str]


Key = dict[str, str]


@define
class Browser:
    """A browser at an origin. ``keys`` are what it has of the kernel: a link's, its session's, its last page's."""

    netloc: str
    keys: dict[str, Key] = field(factory=dict)  # by use

    @property
    def address(self) -> tuple[str, int]:
        """Where it connects to: a name below ``localhost`` is no other host in browsers."""
        host, _, port = self.netloc.rpartition(":")
        return "127.0.0.1" if host.endswith(".localhost") else host.strip("[]"), int(port)

    def get(self, target: str, method: str = "GET", **headers: str) -> Answer:
        """Status, headers and body; header names have underscores instead of hyphens."""
        host, port = self.address
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=PATIENCE)) as connection:
            sent = {"Host": self.netloc, **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.request(method, target, headers=sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read().decode()

    def log_in(self, link: str) -> None:
        self.keys["link"] = key_of(link)
        with self.open_page(use="link") as tab:
            assert tab.closed is None, f"closed with {tab.closed}"
            tab.leave()

    @contextlib.contextmanager
    def connect(self, origin: str | None = None) -> "Iterator[Tab]":
        """A page that has proven nothing yet."""
        with socket.create_connection(self.address, timeout=PATIENCE) as sock:
            tab = Tab(sock)
            tab.open(self.netloc, origin if origin is not None else f"http://{self.netloc}")
            yield tab

    @contextlib.contextmanager
    def open_page(self, origin: str | None = None, use: str = "run") -> "Iterator[Tab]":
        """A page with its feed; ``closed`` if it isn't let in."""
        with self.connect(origin) as tab:
            for key in tab.prove(self.keys.get(use, NO_KEY)):
                self.keys[key["use"]] = key
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

    def open(self, host: str, origin: str) -> None:
        headers = [(b"origin", origin.encode())]
        self.sock.sendall(self._protocol.send(Request(host=host, target="/feed", extra_headers=headers)))
        while self.closed is None and not self._accepted:
            self._receive()

    def prove(self, key: Key) -> list[Key]:
        """Prove that this page has a key, after the kernel did; returns new ones."""
        if self.closed is not None:
            return []
        opening, challenge = self.begin(key)
        if challenge is None:
            return []
        assert challenge["proof"] == opening.sign(key["key"], "kernel", challenge["nonce"])
        self.send({"proof": opening.sign(key["key"], "page", challenge["nonce"])})
        found = self.next()
        keys: list[Key] = found["keys"] if found is not None else []
        return keys

    def begin(self, key: Key) -> tuple[Opening, dict[str, Any] | None]:
        """Name a key; returns the kernel's proof, None if it closes the connection."""
        opening = Opening(key["use"], key["id"], key["salt"], secrets.token_hex(16))  # type: ignore[arg-type]
        self.send(msgspec.to_builtins(opening))
        return opening, self.next()

    def next(self) -> dict[str, Any] | None:
        """The next message that is neither of the feed nor a reply."""
        while not self._messages and self.closed is None:
            self._receive()
        return self._messages.pop(0) if self._messages else None

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

    def send_text(self, text: str) -> None:
        self.sock.sendall(self._protocol.send(Message(data=text)))

    def send(self, message: object) -> None:
        self.send_text(json.dumps(message))

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

    def leave(self) -> None:
        """Close it, and wait until the server has ended the connection."""
        self.sock.sendall(self._protocol.send(CloseConnection(1000)))
        while self.sock.recv(65536):
            pass

    def state_of(self, name: str) -> str | None:
        rows = self.shown.get("agents", {}).values()
        return next((str(row["state"]) for row in rows if row["name"] == name), None)


def key_of(link: str) -> Key:
    """The key in a link."""
    parts = urlsplit(link)
    return {"use": "link", "id": parse_qs(parts.query)["link"][0], "salt": "", "key": parts.fragment}


def link_of(kernel: Kernel, role: Role = "operator") -> str:
    """A new link to the kernel's dashboard."""
    place = Path(kernel.state_dir)
    kernel.wait_line(r"\| dashboard: ")
    link = find_link(place, role)
    assert link is not None
    return link


def browser_of(kernel: Kernel, role: Role = "operator") -> Browser:
    """A browser that has logged in."""
    link = link_of(kernel, role)
    browser = Browser(urlsplit(link).netloc)
    browser.log_in(link)
    return browser


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    """A kernel with a dashboard, shared by the tests of a module."""
    with shared(DASHBOARD) as started:
        yield started


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A real browser, of Playwright."""
    from tests.web.chromium import browser

    with browser() as started:
        yield started


@pytest.fixture
def browser(kernel: Kernel) -> Browser:
    return browser_of(kernel)


@pytest.fixture(scope="module")
def context(chromium: Any, kernel: Kernel) -> Iterator[Any]:
    """A browser that has logged in."""
    from tests.web.chromium import log_in

    made = log_in(chromium, kernel)
    yield made
    made.close()


@pytest.fixture
def open_page(kernel: Kernel, context: Any) -> "Iterator[Open]":
    """Opens pages, which are closed after the test."""
    from tests.web.chromium import pages

    with pages(context, kernel, keep=True) as show:
        yield show
