"""Makes the system call of a tool: with progress while it lasts, and errors that reach the MCP client."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, field
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from agentos_sdk.calls.host import Exec, Executed
from agentos_sdk.calls.operator.permissions import Approvals
from agentos_sdk.calls.think import Think
from agentos_sdk.client import Kernel
from agentos_sdk.clients.streams import Outputs, Thoughts
from agentos_sdk.encoding.codec import Text
from agentos_sdk.errors import ApprovalRequired, CallError, ConnectionFailed

from .tools import Call
from .transports.session import Revoked, Session

HEARTBEAT = 5.0  # seconds without progress after which the client hears that the call goes on
MIN_INTERVAL = 0.1  # seconds between two reports
MAX_REPORT_CHARS = 2000
MAX_OUTPUT_CHARS = 256 << 10  # of each stream of a command; a client's model can't use more

Report = Callable[[float, str], Awaitable[None]]
"""Tells the client the progress so far, a number that grows, with a message."""


@define
class Progress:
    """Progress of one call: at most ten reports a second, and one every five seconds while there is nothing new."""

    report: Report
    _text: str = ""  # new since the last report
    _news: trio.Event = field(factory=trio.Event)
    _count: int = 0
    _sending: trio.Lock = field(factory=trio.Lock)

    def add(self, text: str) -> None:
        """New output of the call."""
        self._text = (self._text + text)[-MAX_REPORT_CHARS:]
        self._news.set()

    async def serve(self) -> None:
        """Report until cancelled."""
        began = trio.current_time()
        while True:
            with trio.move_on_after(HEARTBEAT) as waited:
                await self._news.wait()
            seconds = trio.current_time() - began
            await self._send(f"still running after {seconds:.0f} s" if waited.cancelled_caught else "")
            await trio.sleep(MIN_INTERVAL)

    async def finish(self) -> None:
        """Report what is left, once a report that is on its way was sent."""
        await self._send("")

    async def _send(self, heartbeat: str) -> None:
        """Report what is new, or else ``heartbeat``; text is taken while it can be sent, so none is lost at the end."""
        async with self._sending:
            text = self._text or heartbeat
            if not text:
                return
            self._text, self._news = "", trio.Event()
            self._count += 1
            await self.report(self._count, text)


@asynccontextmanager
async def reporting(report: Report) -> AsyncIterator[Progress]:
    """Progress of the call that this block makes."""
    progress, failure = Progress(report), None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.serve)
        try:
            yield progress
            await progress.finish()
        except Exception as error:  # raised below: the nursery would wrap it in a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def perform(session: Session, call: Call, progress: Progress) -> object:
    """Make the call for the client, and return its reply. Raises what the call and :meth:`Session.guest` raise."""
    kernel = await session.guest()
    if call.request is Approvals:  # a guest may not list them; these are its own
        listed = await (await session.operator()).approvals()
        return {"approvals": [one for one in listed if one.agent == session.entry.guest]}
    if call.request is Exec:
        return await _execute(kernel, call, progress)
    if call.request is Think:
        async with Thoughts(kernel, call.fields) as answer:
            async for piece in answer:
                progress.add(piece)
        assert answer.thought is not None, "the stream has ended"
        return answer.thought
    return await kernel.make_call(call.request, call.fields)


async def _execute(kernel: Kernel, call: Call, progress: Progress) -> Executed:
    """Run a command; the reply has what it has written, which the kernel's reply to a stream doesn't repeat."""
    written = {"stdout": "", "stderr": ""}
    truncated = False
    async with Outputs(kernel, call.fields) as outputs:
        async for output in outputs:
            room = MAX_OUTPUT_CHARS - len(written[output.stream])
            written[output.stream] += output.text[:room]
            truncated |= len(output.text) > room
            progress.add(output.text)
    end = outputs.executed
    assert end is not None, "the stream has ended"
    return Executed(
        stdout=Text(written["stdout"]),
        stderr=Text(written["stderr"]),
        exit_code=end.exit_code,
        timed_out=end.timed_out,
        truncated=end.truncated or truncated,
    )


def describe_error(error: CallError | ConnectionFailed | Revoked) -> str:
    """The code and the sentence of an error, for the client and its model."""
    if isinstance(error, Revoked):
        return f"revoked: {error}"
    if isinstance(error, ConnectionFailed):
        return f"unavailable: {error}"
    text = f"{error.code}: {error}"
    number = error.details.get("approval_id")
    if isinstance(error, ApprovalRequired) and number is not None:
        text += (
            f". A person decides it with `agentos approve {number}` or `agentos deny {number}`, or in the dashboard. "
            "Once it is allowed, call this tool again with the same arguments."
        )
    return text


@asynccontextmanager
async def request_errors() -> AsyncIterator[None]:
    """Turn the kernel's errors into errors of the protocol, for requests that aren't of one tool or resource."""
    try:
        yield
    except (CallError, ConnectionFailed, Revoked) as error:
        raise MCPError(INTERNAL_ERROR, describe_error(error)) from error


@asynccontextmanager
async def tool_errors() -> AsyncIterator[None]:
    """Turn the kernel's errors into the only ones whose text reaches the client."""
    try:
        yield
    except (CallError, ConnectionFailed, Revoked) as error:
        raise ToolError(describe_error(error)) from error
