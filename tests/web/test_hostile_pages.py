"""A browser's tab that misuses its WebSocket: what it costs the kernel, and that it ends."""

import base64
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import repeat

import msgspec
import pytest

from agentos.userland.web.proof import Opening
from tests.support.kernel import Kernel, stat_of, until
from tests.support.wire import EMIT, PATIENCE
from tests.web.conftest import DASHBOARD, Browser, Key, browser_of

pytestmark = pytest.mark.usefixtures("long")

TEXT, CONTINUATION, BINARY, CLOSE, PING = 1, 0, 2, 8, 9


def frame(opcode: int, data: bytes, last: bool = True, compressed: bool = False) -> bytes:
    """A WebSocket frame of a client; its mask is 0, so that the data stays as it is."""
    size = len(data)
    length = struct.pack("!B", 128 | size) if size < 126 else struct.pack("!BH", 254, size)
    return bytes([(128 if last else 0) | (64 if compressed else 0) | opcode]) + length + bytes(4) + data


@contextmanager
def open_raw(browser: Browser, extensions: str = "", buffer: int = 0) -> Iterator[tuple[socket.socket, bytes]]:
    """A socket with an accepted WebSocket, and the head of the response. ``buffer``: the socket's, in bytes."""
    head = [
        *("GET /feed HTTP/1.1", f"Host: {browser.netloc}", f"Origin: http://{browser.netloc}"),
        *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        *([f"Sec-WebSocket-Extensions: {extensions}"] if extensions else ()),
    ]
    with socket.socket() as sock:
        sock.settimeout(PATIENCE)
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.connect(browser.address)
        sock.sendall("\r\n".join([*head, "", ""]).encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(1)
        assert answer.startswith(b"HTTP/1.1 101"), answer
        prove(sock, browser.keys["run"])
        yield sock, answer


def prove(sock: socket.socket, key: Key) -> None:
    """Log in, with frames that are this page's own."""
    opening = Opening("run", key["id"], key["salt"], "x")
    sock.sendall(frame(TEXT, msgspec.json.encode(opening)))
    nonce = json.loads(read_frame(sock))["nonce"]
    sock.sendall(frame(TEXT, json.dumps({"proof": opening.sign(key["key"], "page", nonce)}).encode()))
    read_frame(sock)


def read_frame(sock: socket.socket) -> bytes:
    """A short text that the server sends."""
    head = receive(sock, 2)
    size = head[1] if head[1] < 126 else struct.unpack("!H", receive(sock, 2))[0]
    return receive(sock, size)


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := sock.recv(size - len(data))):
        data += piece
    return data


def read_all(sock: socket.socket) -> bytes:
    """What the server sends until it ends the connection."""
    data = b""
    try:
        while piece := sock.recv(1 << 16):
            data = (data + piece)[-64:]
    except ConnectionResetError:
        pass
    return data


def send_until_closed(sock: socket.socket, data: bytes, times: int) -> bool:
    """Send it repeatedly; whether the server ended the connection before all was sent."""
    try:
        for _ in range(times):
            sock.sendall(data)
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


def call(number: int, text: bytes) -> bytes:
    return frame(TEXT, b'{"type":"call","id":%d,%s}' % (number, text))


def fill(sock: socket.socket, kernel: Kernel) -> None:
    """Make calls until the kernel reads no more of them, as the replies aren't read."""
    calls = (call(number, b'"call":"NOOP","args":{}') for number in range(1_000_000))
    assert not all_read(sock, kernel, calls)


def all_read(sock: socket.socket, kernel: Kernel, frames: Iterator[bytes]) -> bool:
    """Send them until the kernel sleeps and leaves some in its socket's buffer; whether it read all instead."""
    sock.setblocking(False)
    rest, left = next(frames), -1

    def is_settled() -> bool:
        nonlocal rest, left
        with suppress(BlockingIOError):
            while rest:
                rest = rest[sock.send(rest) :] or next(frames, b"")
        former, left = left, unread(sock)
        return left == former and sleeps(kernel) and (left > 0 or not rest)

    until(is_settled, "the kernel reads no more, or has read all", show=lambda: left)
    return left == 0


def sleeps(kernel: Kernel) -> bool:
    stat = stat_of(kernel.pid)
    return stat is not None and stat[0] == "S"


def unread(sock: socket.socket) -> int:
    """Bytes that the other end, on this host, has in its socket's buffer."""
    ours = f":{sock.getsockname()[1]:04X}"
    with open("/proc/net/tcp") as file:
        found = [fields[4] for fields in map(str.split, file) if fields[2].endswith(ours)]
    if not found:
        raise ConnectionResetError("the kernel has ended the connection")
    return int(found[0].partition(":")[2], 16)


def test_a_page_cant_send_a_small_message_that_becomes_a_large_one(browser: Browser) -> None:
    """64 KiB of deflate become 64 MiB, before anything looks at the size."""
    with open_raw(browser, "permessage-deflate") as (_, answer):
        assert b"sec-websocket-extensions" not in answer.lower()


def test_a_message_without_end_isnt_kept(kernel: Kernel, browser: Browser) -> None:
    with open_raw(browser) as (sock, _):
        before = kernel.rss
        piece = frame(CONTINUATION, b"x" * 60_000, last=False)
        sock.sendall(frame(TEXT, b"x", last=False))
        send_until_closed(sock, piece, 1000)
        read_all(sock)
        assert kernel.rss - before < 20 << 20


def test_what_is_no_message_ends_the_page(browser: Browser) -> None:
    for wrong in (
        frame(TEXT, b"\xff\xfe"),
        frame(BINARY, b"{}"),
        frame(3, b""),
        frame(CONTINUATION, b"x"),
        b"\x81\x00",
    ):
        with open_raw(browser) as (sock, _):
            sock.sendall(wrong)
            read_all(sock)
    with browser.open_page() as tab:
        assert tab.call("NOOP") == {}


def test_empty_frames_dont_take_the_kernels_time(kernel: Kernel, browser: Browser) -> None:
    for flood in (frame(CONTINUATION, b"", last=False), frame(PING, b"")):
        with open_raw(browser) as (sock, _), kernel.connect() as wire:
            sock.sendall(frame(TEXT, b"", last=False))
            sock.settimeout(0.05)
            before, began = kernel.cpu_seconds, time.monotonic()
            while (passed := time.monotonic() - began) < 2:
                with suppress(TimeoutError):
                    sock.sendall(flood * 1000)
                wire.call(0, {})
            assert kernel.cpu_seconds - before < 0.4 * passed  # measured: 0.15 to 0.18


def test_a_page_that_reads_nothing_doesnt_outlast_its_session(kernel: Kernel, browser: Browser) -> None:
    lost = browser_of(kernel)
    with browser.open_page() as tab, lost.open_page() as page:
        number = page.ask({"type": "sessions", "id": 900})["own"]
        before = kernel.open_files
        with open_raw(lost, buffer=4096) as (sock, _):
            fill(sock, kernel)
            tab.ask({"type": "sessions", "id": 901, "revoke": number})
            until(lambda: kernel.open_files <= before - 3, "no page of the session is left")


def test_questions_for_sessions_dont_pile_up_for_a_page_that_reads_nothing(kernel: Kernel, browser: Browser) -> None:
    questions = (frame(TEXT, b'{"type":"sessions","id":%d}' % number) for number in range(1_000_000))
    with open_raw(browser, buffer=4096) as (sock, _), suppress(ConnectionError):  # in the end it is disconnected
        assert not all_read(sock, kernel, questions)


@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"sessions","id":%d}',
        b'{"type":"call","id":%d,"call":"NOOP","args":{}}',
        b'{"type":"call","id":%d,"call":"NO_SUCH_CALL","args":{}}',
        b'{"type":"recordings","id":%d}',
    ],
)
def test_a_page_whose_client_is_gone_ends_before_all_that_it_had_sent_is_taken(
    kernel: Kernel, browser: Browser, text: bytes
) -> None:
    """That are thousands of messages, of which a page takes 20 a second."""
    before = kernel.open_files
    with open_raw(browser, buffer=4096) as (sock, _), suppress(ConnectionError):
        assert not all_read(sock, kernel, (frame(TEXT, text % number) for number in range(1_000_000)))
    until(lambda: kernel.open_files <= before, f"{before} files", show=lambda: kernel.open_files)


def test_a_page_ends_whose_client_closes_it_and_doesnt_wait_for_the_answer(kernel: Kernel, browser: Browser) -> None:
    before = kernel.open_files
    for _ in range(20):
        with open_raw(browser) as (sock, _):
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # a reset follows what was sent
            sock.sendall(frame(CLOSE, struct.pack("!H", 1000)))
    until(lambda: kernel.open_files <= before, f"{before} files", show=lambda: kernel.open_files)


def test_streams_that_a_page_doesnt_read_arent_kept(kernel: Kernel, browser: Browser) -> None:
    with open_raw(browser, buffer=4096) as (sock, _), kernel.connect() as wire:
        for number in range(16):
            sock.sendall(call(number, b'"call":"SUBSCRIBE","args":{"event_types":["*"],"stream":true},"stream":true'))
        before = kernel.rss
        for number in range(1000):  # of 3 KB to each stream: 48 MB, if they were kept
            wire.call(EMIT, {"event_type": "custom.flood", "data": {"text": "x" * 3000, "number": number}})
        assert kernel.rss - before < 40 << 20


def test_a_reply_too_large_for_a_page_is_refused(kernel: Kernel, browser: Browser) -> None:
    large = kernel.place / "large.txt"
    large.write_text("x" * (2 << 20))
    with browser.open_page() as tab:
        assert tab.call("READ", path=str(large))["code"] == "too_large"
        assert tab.call("NOOP") == {}


@pytest.mark.usefixtures("kernels")
def test_the_kernel_ends_without_waiting_for_pages() -> None:
    kernel = Kernel(DASHBOARD)
    try:
        kernel.wait_ready()
        browser = browser_of(kernel)
        with browser.open_page() as tab, open_raw(browser, buffer=4096) as (sock, _):
            tab.wait(lambda shown: "kernel" in shown)
            fill(sock, kernel)
            kernel.stop()
    finally:
        kernel.clean_up()


def test_a_stranger_that_reads_nothing_is_disconnected(kernel: Kernel, browser: Browser) -> None:
    """Without a session: its requests are answered, too."""
    before = kernel.open_files
    request = f"GET /static/app.js HTTP/1.1\r\nHost: {browser.netloc}\r\n\r\n".encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(browser.address)
        with suppress(ConnectionError):  # it may be disconnected meanwhile
            assert not all_read(sock, kernel, repeat(request * 100, 1000))
        until(lambda: kernel.open_files <= before, "it is disconnected")
