"""Others who take the places of the dashboard's ports: another user of the host, or one that proves nothing."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException

import pytest
from wsproto.utilities import RemoteProtocolError

from agentos.http.users import find_uid, find_user_but
from agentos.kernel.caller import MAX_CONNECTIONS
from tests.support.kernel import Kernel, until
from tests.web.conftest import Browser, browser_of

NOBODY = 65534
GET = "GET /static/page.js HTTP/1.1\r\nHost: {0}\r\n\r\n"
PAGE = (
    "GET /feed HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
POST = "POST / HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nContent-Length: 9999999\r\n\r\n"
# Keeps 100 connections to each address, and reads no answer: what is ended is opened anew.
STRANGER = """
import os, socket, sys, time
os.setgid(65534); os.setuid(65534)
port, text = int(sys.argv[1]), sys.argv[2].encode()
def begin(host, family):
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.settimeout(0.2)
    try:
        sock.connect((host, port))
        sock.sendall(text * 30)
    except OSError:
        pass
    sock.setblocking(False)
    return sock
def is_over(sock):
    try:
        sock.send(b" ")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False
places = [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)]
held = {(place, number): begin(*place) for place in places for number in range(100)}
print("ready", flush=True)
while True:
    for key, sock in held.items():
        if is_over(sock):
            sock.close()
            held[key] = begin(*key[0])
    time.sleep(0.05)
"""


@contextmanager
def stranger(netloc: str, text: str) -> Iterator[None]:
    """Another user of the host at the port."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    command = [sys.executable, "-c", STRANGER, netloc.rpartition(":")[2], text.format(netloc)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


def can_log_in(kernel: Kernel) -> bool:
    try:
        browser = browser_of(kernel)
        return browser.get("/static/page.js")[0] == 200
    except (OSError, AssertionError, HTTPException, RemoteProtocolError):  # no place, or it was taken away
        return False


@pytest.mark.parametrize("text", [GET, POST, PAGE], ids=["unread answers", "bodies", "pages"])
def test_another_user_of_the_host_cant_take_all_places(kernel: Kernel, browser: Browser, text: str) -> None:
    with browser.open_page() as tab, stranger(browser.netloc, text):
        for _ in range(3):
            assert can_log_in(kernel)
        assert tab.call("NOOP") == {}, "a page that has proven itself is kept"


@pytest.mark.parametrize("text", ["", PAGE], ids=["no request", "pages"])
def test_what_has_proven_nothing_gives_way_to_others_of_the_same_user(
    kernel: Kernel, browser: Browser, text: str
) -> None:
    """A reverse proxy is one user, whoever is behind it."""
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(browser.address)) for _ in range(MAX_CONNECTIONS)]
        for sock in socks:
            sock.sendall(text.format(browser.netloc).encode())
        until(lambda: can_log_in(kernel), "the oldest have given way")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_is_charged_to_the_user_who_made_it(family: socket.AddressFamily, host: str) -> None:
    with socket.create_server((host, 0), family=family) as listener:
        with socket.create_connection(listener.getsockname()[:2]):
            sock, _ = listener.accept()
            assert find_uid(sock) == os.geteuid()
            assert find_user_but(range(os.geteuid(), os.geteuid() + 1))(sock) == "agents"
        with sock:
            assert find_uid(sock) is None, "it is closed, and Linux would name root"
