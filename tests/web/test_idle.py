"""A session ends after its last use by a person, although its page asks all the time."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any, cast

import pytest
import trio
import trio.lowlevel

from agentos.userland.web.app import Dashboard
from agentos.userland.web.feed import Feeds
from agentos.userland.web.links import DIRECTORY, make_link
from agentos.userland.web.page import Page
from agentos.userland.web.page_files import PageFiles
from agentos.userland.web.proof import Opening
from agentos.userland.web.recordings import Recordings
from agentos.userland.web.sessions import IDLE_SECONDS, Sessions
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.web.conftest import key_of

RUN = "0123456789abcdef"


class Asking:
    """A browser's tab that asks without end; with ``uses`` it says that many times that a person uses it."""

    def __init__(self) -> None:
        self.asked, self.uses, self.replies = 0, 0, 0
        self.closed: int | None = None

    async def receive_text(self) -> str:
        await trio.lowlevel.checkpoint()
        if self.uses:
            self.uses -= 1
            return '{"type": "use"}'
        self.asked += 1
        return f'{{"type": "{"sessions" if self.asked % 2 else "call"}", "id": {self.asked}{CALL[self.asked % 2]}}}'

    async def send_text(self, text: str) -> None:
        self.replies += '"reply"' in text

    async def send_bytes(self, data: bytes) -> None:
        pass

    async def close(self, code: int, reason: str) -> None:
        self.closed = code


CALL = (', "call": "NOOP", "args": {}', "")


async def test_a_page_that_asks_keeps_no_session_and_a_person_does(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def connect(name: str, link_set: str | None = None) -> AsyncIterator[socket]:
        with socket(AF_UNIX, SOCK_STREAM) as sock:
            sock.connect(kernel.socket)
            sock.setblocking(False)
            yield sock

    monkeypatch.setattr("agentos.userland.web.page.CHECK_SECONDS", 0.01)
    link = key_of(make_link("http://127.0.0.1:1", RUN, tmp_path, "operator"))
    sessions = Sessions.load(tmp_path / DIRECTORY, RUN, "127.0.0.1 1")
    entered = sessions.enter(Opening("link", link["id"], "", ""), "a browser")
    assert entered is not None
    session, tab = entered[0], Asking()
    session.used = before = time.time() - 3600
    feeds = Feeds(connect, RUN, {})
    page = Page(cast(Any, tab), session, feeds, Dashboard(sessions, feeds, PageFiles.load(), Recordings(tmp_path)))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feeds.serve)
            nursery.start_soon(page.run)
            while tab.replies < 10:
                await trio.sleep(0.01)
            assert session.used == before

            tab.uses = 1
            while session.used == before:
                await trio.sleep(0.01)
            session.used = time.time() - IDLE_SECONDS - 1
            while tab.closed is None:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    assert tab.closed == 4401
    assert sessions.live() == []
