"""The dashboard's server as an ASGI application: the page and its files, and the feed for pages that have a session."""

import hmac
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import trio
from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentos.threads import Limiter, run_in_thread

from .control import Ask
from .feed import Feeds
from .guard import Guard
from .page import Page
from .page_files import PageFiles
from .proof import decode_opening, decode_proof
from .recordings import PageAskAgain, PageRecordings, Recordings
from .sessions import Session, Sessions

MAX_PAGES = 16  # one of another role makes room for the operator's
PROOF_SECONDS = 20.0  # in which a page has to prove itself


@define(eq=False)
class Dashboard:
    """The application of one kernel."""

    sessions: Sessions
    feeds: Feeds
    files: PageFiles
    recordings: Recordings
    _one_thread: Limiter = field(factory=partial(Limiter, 1))  # uses the sessions at a time
    _pages: set[Page] = field(factory=set)

    def build(self, names: Sequence[str]) -> ASGIApp:
        """Build the application; ``names`` are further host names besides the loopback's."""
        routes = [
            Route("/", self.show_page),
            Route("/static/{path:path}", self.files.send_file),
            WebSocketRoute("/feed", self.serve_feed),
        ]
        return Guard(Starlette(routes=routes), names)

    async def show_page(self, request: Request) -> Response:
        return self.files.show_index(request)

    async def revoke(self, number: str) -> bool:
        """End a session and close its pages, or an unused link; whether there was one."""
        found = await run_in_thread(self.sessions.revoke, number, limiter=self._one_thread)
        for page in self._pages:
            if page.session.id == number:
                page.close()
        return found

    async def answer(self, ask: Ask) -> dict[str, Any]:
        """Answer the command line."""
        found = ask.revoke is not None and await self.revoke(ask.revoke)
        return {"found": found, "links": await self.list_links()}

    async def list_links(self) -> list[dict[str, object]]:
        return await run_in_thread(self.sessions.describe, limiter=self._one_thread)

    async def use(self, session: Session) -> None:
        """Note that a person uses a session."""
        session.use()
        await run_in_thread(self.sessions.note_uses, limiter=self._one_thread)

    async def read_recordings(self, session: Session, asked: PageRecordings) -> bytes:
        return await self.recordings.answer(session.role, asked)

    async def build_question(self, session: Session, asked: PageAskAgain) -> bytes:
        return await self.recordings.build(session.role, asked)

    async def serve_feed(self, socket: WebSocket) -> None:
        await socket.accept()  # of a connection that was refused before a browser wouldn't tell the page why
        session = None
        try:
            with trio.move_on_after(PROOF_SECONDS) as limit:
                session = await self.admit(socket)
        except WebSocketDisconnect:
            return
        if limit.cancelled_caught:
            await socket.close(4408, f"proved nothing in {PROOF_SECONDS:g} s")  # it may try again
            return
        if session is None:
            await socket.close(4401, "not logged in")
            return
        viewer = next((page for page in self._pages if page.session.role != "operator"), None)
        if len(self._pages) >= MAX_PAGES and viewer is not None and session.role == "operator":
            viewer.close()
            self._pages.discard(viewer)
        elif len(self._pages) >= MAX_PAGES:
            await socket.close(4429, f"{MAX_PAGES} pages are open: close one")
            return
        socket.scope["extensions"]["agentos.keep"]["keep"]()  # until now it gives way where all places are taken
        page = Page(socket, session, self.feeds, self)
        self._pages.add(page)
        try:
            await page.run()
        finally:
            self._pages.discard(page)

    async def admit(self, socket: WebSocket) -> Session | None:
        """Prove the kernel to a page and have the page prove itself, as :mod:`.proof` says; None if it doesn't."""
        try:
            opening = decode_opening(await socket.receive_text() or "")  # None: a binary one
            key = await run_in_thread(self.sessions.find_key, opening, limiter=self._one_thread)
            if key is None:
                return None
            nonce = secrets.token_hex(16)
            await _send(socket, {"nonce": nonce, "proof": opening.sign(key, "kernel", nonce)})
            proof = decode_proof(await socket.receive_text() or "")
        except msgspec.DecodeError:
            return None
        if not hmac.compare_digest(proof.proof, opening.sign(key, "page", nonce)):
            return None
        browser = socket.headers.get("user-agent", "")
        entered = await run_in_thread(self.sessions.enter, opening, browser, limiter=self._one_thread)
        if entered is None:
            return None
        session, keys = entered
        await _send(socket, {"keys": keys})
        return session


async def _send(socket: WebSocket, message: object) -> None:
    await socket.send_text(msgspec.json.encode(message).decode())
