"""An answer as it arrives over HTTP: the connection, the events on it, and what they make together.

The SDKs ask, but we listen. Their streams are generators within generators: whatever stops one in the middle leaves
those inside it, and the connection, to the garbage collector. So the body of a reply is read in its innermost place,
and to the SDK it looks empty.
"""

import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import httpx2
import trio
from attrs import define, field

from .provider import Answer, Delta, Failing, FinishReason, Hear, Question, ToolCall, Usage, guessed, guessed_input
from .settings import Timeouts

for _library in ("httpcore2", "httpx2", "openai", "google_genai"):
    logging.getLogger(_library).setLevel(logging.WARNING)  # below, they tell of questions and of headers

MAX_LINE = 16 << 20  # bytes, of a stream of events
OURS = "call-of-agentos-"  # how the id of a tool call begins whose vendor gave it none

_LISTENER: ContextVar["Arriving"] = ContextVar("listener")


def http_client(timeouts: Timeouts) -> httpx2.AsyncClient:
    """Connections that wait for an answer as long as they are let, and follow nobody to another host with the key.

    What is answered goes to the :class:`Arriving` that the task listens with. Takes 30 ms, for certificates are read.
    """

    async def time_only_connecting(request: httpx2.Request) -> None:
        request.extensions["timeout"] = {"connect": timeouts.connect}  # the SDKs put in their own for each request

    async def listen(response: httpx2.Response) -> None:
        if response.status_code == 200:
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            arriving = _LISTENER.get()
            arriving.begun = True
            response.stream = _Body(response.stream, arriving)

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity"},  # we read the body before anybody could decompress it
        limits=httpx2.Limits(max_connections=None),  # the line says how many
        event_hooks={"request": [time_only_connecting], "response": [listen]},
        follow_redirects=False,
    )


@define(eq=False)
class HalfCall:
    """A tool call of which arguments are still coming, as JSON."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""


@define(eq=False)
class Arriving:
    """An answer, as far as it has come.

    ``read`` makes sense of an event, and ``hear`` is told. ``begun``: it was not refused; ``unheard`` is what ``hear``
    raised.
    """

    hear: Hear
    read: Callable[["Arriving", Mapping[str, Any]], Delta]
    text: list[str] = field(factory=list)
    unseen: int = 0  # characters
    calls: list[ToolCall] = field(factory=list)
    halves: list[HalfCall] = field(factory=list)
    usage: Usage | None = None
    finish: FinishReason | None = None
    model: str | None = None
    begun: bool = False
    unheard: Exception | None = None

    async def listen(self, stream: Callable[[], Any]) -> None:
        """Let the SDK ask; its stream is empty when all has arrived."""
        token = _LISTENER.set(self)
        try:
            async for _ in await stream():
                raise AssertionError("the SDK has found what is not there")
        finally:
            _LISTENER.reset(token)

    def take(self, data: bytes) -> None:
        """An event."""
        if data == b"[DONE]":
            return
        delta = self.read(self, json.loads(data))
        self.text.append(delta.text)
        self.unseen += delta.unseen
        self.usage = delta.usage or self.usage
        try:
            self.hear(delta)
        except Exception as error:
            self.unheard = error
            raise

    def answer(self, vendor: str, question: Question) -> Answer:
        """All of it; raises :class:`Failing` when it broke off."""
        if self.finish is None:
            raise Failing(f"{vendor} broke off its answer")
        text = "".join(self.text)
        calls = [*self.calls, *self._completed(vendor)]
        finish: FinishReason = "tool_calls" if calls and self.finish == "stop" else self.finish
        usage = self.usage or Usage(guessed_input(question), guessed(len(text) + self.unseen))
        return Answer(text, usage, finish, self.model or question.model, tuple(calls))

    def _completed(self, vendor: str) -> Iterator[ToolCall]:
        for half in self.halves:
            try:
                arguments = json.loads(half.arguments or "{}")
            except (ValueError, RecursionError):
                arguments = None
            if isinstance(arguments, dict):
                yield ToolCall(half.id or new_id(), half.name, arguments)
            elif self.finish != "length":  # then the last one is cut off, and would be the next time
                raise Failing(f"{vendor} called {half.name or 'a tool'} with arguments that are no JSON object")


@define(eq=False)
class _Body(httpx2.AsyncByteStream):
    """Of a reply: server-sent events."""

    body: httpx2.AsyncByteStream
    arriving: Arriving
    _rest: bytearray = field(factory=bytearray)
    _data: list[bytes] = field(factory=list)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Take everything, give nothing.

        When taking fails, the wait for what comes next is cancelled, so that these generators too end from within.
        """
        failure: Exception | None = None
        with trio.CancelScope() as scope:
            async for chunk in self.body:
                if failure is None:
                    try:
                        self._feed(chunk)
                    except Exception as error:
                        failure = error
                        scope.cancel()
        if failure is not None:
            raise failure
        self._feed(b"\n\n")  # behind the last event too
        return
        yield b""

    async def aclose(self) -> None:
        await self.body.aclose()

    def _feed(self, chunk: bytes) -> None:
        """Only line feeds end lines: JSON may hold what Unicode calls line ends."""
        looked = len(self._rest)
        self._rest += chunk
        while (end := self._rest.find(b"\n", looked)) >= 0:
            line = bytes(self._rest[:end]).removesuffix(b"\r")
            del self._rest[: end + 1]
            looked = 0
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                self.arriving.take(data)
        if len(self._rest) > MAX_LINE:
            raise ValueError("a line without an end")


def new_id() -> str:
    """For a tool call whose vendor gave it none."""
    return OURS + secrets.token_hex(8)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
