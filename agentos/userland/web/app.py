"""The dashboard's server as an ASGI application: log in, the page and its files, the feed."""

from collections.abc import Sequence
from functools import partial

import trio
from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from agentos.threads import run_in_thread

from .feed import Feeds
from .guard import Guard
from .page import Page
from .page_files import PageFiles
from .sessions import Session, Sessions

MAX_PAGES = 16  # a read-only one makes room for the operator's
LOGIN_SECONDS = 60.0  # a window for attempts to log in
MAX_LOGINS = 10  # failed attempts in it
UNKNOWN = "This browser isn't logged in. Run `agentos dashboard` in a terminal and open the link that it prints.\n"
TOO_MANY = "Too many failed attempts to log in: wait a minute.\n"
USED_LINK = "This link was used already, or is older than 10 minutes. Run `agentos dashboard` for a new one.\n"


@define(eq=False)
class Dashboard:
    """The application of one kernel; ``kernel_id`` names its cookie, as cookies ignore ports."""

    kernel_id: str
    sessions: Sessions
    feeds: Feeds
    files: PageFiles
    _one_thread: trio.CapacityLimiter = field(factory=partial(trio.CapacityLimiter, 1))  # uses the sessions at a time
    _failed: list[float] = field(factory=list)  # times of failed logins
    _pages: set[Page] = field(factory=set)

    def build(self, names: Sequence[str]) -> ASGIApp:
        """Build the application; ``names`` are further host names besides the loopback's."""
        routes = [
            Route("/", self.show_page),
            Route("/start", self.log_in),
            Route("/logout", self.log_out, methods=["POST"]),
            Route("/static/{path:path}", self.files.send_file),
            WebSocketRoute("/feed", self.serve_feed),
        ]
        return Guard(Starlette(routes=routes), names)

    @property
    def cookie(self) -> str:
        return f"agentos-{self.kernel_id}"

    async def find_session(self, connection: HTTPConnection) -> Session | None:
        cookie = connection.cookies.get(self.cookie)
        return await run_in_thread(self.sessions.find, cookie, limiter=self._one_thread) if cookie else None

    async def show_page(self, request: Request) -> Response:
        if await self.find_session(request) is None:
            return PlainTextResponse(UNKNOWN, 401, {"cache-control": "no-store"})
        return self.files.show_index(request)

    async def log_in(self, request: Request) -> Response:
        """Redeem the token of a link, and leave the URL that contains it.

        A right token passes, however many wrong ones came: no stranger on this host can keep the operator out.
        """
        headers = {"cache-control": "no-store"}
        token, browser = request.query_params.get("token", ""), request.headers.get("user-agent", "")
        cookie = await run_in_thread(self.sessions.redeem, token, browser, limiter=self._one_thread)
        if cookie is None:
            now = trio.current_time()
            self._failed = [at for at in self._failed if at > now - LOGIN_SECONDS]
            if len(self._failed) >= MAX_LOGINS:
                return PlainTextResponse(TOO_MANY, 429, {**headers, "retry-after": "60"})
            self._failed.append(now)
            return PlainTextResponse(USED_LINK, 403, headers)
        response = RedirectResponse("/", 303, headers)
        secure = request.headers.get("x-forwarded-proto") == "https"
        response.set_cookie(self.cookie, cookie, httponly=True, samesite="strict", secure=secure, path="/")
        return response

    async def log_out(self, request: Request) -> Response:
        session = await self.find_session(request)
        if session is not None:
            await self.revoke(session.id)
        response = PlainTextResponse("logged out\n")
        response.delete_cookie(self.cookie)
        return response

    async def revoke(self, number: str) -> None:
        """End a session and close its pages."""
        await run_in_thread(self.sessions.revoke, number, limiter=self._one_thread)
        for page in self._pages:
            if page.session.id == number:
                page.close()

    async def serve_feed(self, socket: WebSocket) -> None:
        session = await self.find_session(socket)
        await socket.accept()  # of a connection that was refused before a browser wouldn't tell the page why
        if session is None:
            await socket.close(4401, "not logged in")
            return
        viewer = next((page for page in self._pages if page.session.level == "readonly"), None)
        if len(self._pages) >= MAX_PAGES and viewer is not None and session.level == "unrestricted":
            viewer.close()
            self._pages.discard(viewer)
        elif len(self._pages) >= MAX_PAGES:
            await socket.close(4429, f"{MAX_PAGES} pages are open: close one")
            return
        page = Page(socket, session, self.feeds, self.list_sessions, self.revoke)
        self._pages.add(page)
        try:
            await page.run()
        finally:
            self._pages.discard(page)

    def list_sessions(self) -> list[dict[str, object]]:
        return [
            {"id": one.id, "level": one.level, "started": one.started, "used": one.used, "browser": one.browser}
            for one in self.sessions.live()
        ]
