"""What the providers reached by HTTP share: how to connect, an answer as it arrives, their errors in our words."""

import contextlib
import email.utils
import json
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar

import httpx2
import trio
from attrs import define, field, frozen

from .provider import (
    Answer,
    Delta,
    Denied,
    Failing,
    FinishReason,
    Hear,
    ProviderError,
    Question,
    Rejected,
    SlowDown,
    ToolCall,
    Usage,
    guessed,
    guessed_input,
)
from .settings import Timeouts

for _library in ("httpcore2", "httpx2", "openai", "google_genai"):
    logging.getLogger(_library).setLevel(logging.WARNING)  # below, they tell of questions and of headers

MAX_SAID = 500  # characters of a provider's own words that are passed on
OURS = "call-of-agentos-"  # how the id of a tool call begins whose provider gave it none

T = TypeVar("T")


def http_client(timeouts: Timeouts) -> httpx2.AsyncClient:
    """Connections that wait for an answer as long as they are let, and follow nobody to another host with the key.

    Takes 30 ms, for it reads the authorities' certificates.
    """

    async def only_connecting_is_timed(request: httpx2.Request) -> None:
        request.extensions["timeout"] = {"connect": timeouts.connect}  # the SDKs put in their own for each request

    return httpx2.AsyncClient(
        limits=httpx2.Limits(max_connections=None),  # the line says how many
        event_hooks={"request": [only_connecting_is_timed]},
        follow_redirects=False,
    )


@frozen
class Account:
    """At whose we ask, by which key; ``variable`` is where the key comes from."""

    vendor: str
    key: str | None = field(repr=False)
    variable: str

    def refusal(self, status: int, said: object, after: float | None = None) -> ProviderError:
        """The error for an HTTP status and what was said with it."""
        if status in (401, 402, 403):
            return self.denied(status)
        text = f"{self.vendor}: {self.clean(said)} ({status})"
        if status == 429:
            return SlowDown(text, after)
        if status == 408 or status >= 500:
            return Failing(text, after)
        return Rejected(text)

    def denied(self, status: int) -> Denied:
        """In our words only: providers like to repeat the key, with a few stars in it."""
        if self.key is None:
            return Denied(f"{self.vendor} wants a key ({status}): set {self.variable}")
        return Denied(f"{self.vendor} does not accept the key in {self.variable}, or not for this ({status})")

    def broken(self, error: Exception) -> Failing:
        """The way there, or the stream back, broke."""
        if isinstance(error, httpx2.ConnectTimeout):
            return Failing(f"{self.vendor} can't be reached: no connection in time")
        what = "can't be reached" if isinstance(error, httpx2.ConnectError) else "broke the connection"
        return Failing(f"{self.vendor} {what}: {self.clean(str(error) or type(error).__name__)}")

    def clean(self, said: object) -> str:
        """A provider's words on one line of sane length, without the key."""
        text = str(said)
        if self.key:
            text = text.replace(self.key, "[key]")
        text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
        return text if len(text) <= MAX_SAID else f"{text[:MAX_SAID]}…"

    @contextlib.contextmanager
    def errors(self, arriving: "Arriving") -> Iterator[None]:
        """Make a :class:`ProviderError` of whatever goes wrong, once the SDK's own errors have been dealt with."""
        try:
            yield
        except ProviderError:
            raise
        except httpx2.TransportError as error:
            if arriving.finish is None:  # else all was said, and only the farewell is missing
                raise self.broken(error) from None
        except Exception as error:  # an SDK that reads nonsense raises anything
            raise Failing(f"{self.vendor} answered what can't be read ({type(error).__name__})") from None


def seconds_of(headers: Mapping[str, str]) -> float | None:
    """How long the headers of a reply ask to wait: ``Retry-After`` in seconds or as a date, or OpenAI's own header."""
    if (milliseconds := seconds(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    said = headers.get("retry-after")
    if said is None or (number := seconds(said)) is not None:
        return number if said else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def seconds(said: str | None) -> float | None:
    """Of a number that somebody wrote."""
    try:
        number = float(said or "")
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


async def listen(stream: AsyncIterator[T], read: Callable[[T], Delta], hear: Hear) -> Exception | None:
    """Tell ``hear`` of every piece that arrives; what it raises is returned, what ``read`` raises is raised.

    Whichever it was, the stream is ended by cancelling the wait for its next piece: leave an SDK's stream in another
    way and its generators, each within the next, hold the connection until the garbage collector finds them.
    """
    unread: Exception | None = None
    unheard: Exception | None = None
    with trio.CancelScope() as scope:
        async for piece in stream:
            if scope.cancel_called:
                continue
            try:
                delta = read(piece)
            except Exception as error:
                unread = error
                scope.cancel()
                continue
            try:
                hear(delta)
            except Exception as error:
                unheard = error
                scope.cancel()
    if unread is not None:
        raise unread
    return unheard


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event. Only line feeds end lines: JSON may hold what Unicode calls line ends."""
    rest, data = b"", list[bytes]()
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data).decode()
                data = []
    if data:
        yield b"\n".join(data).decode()


@define
class HalfCall:
    """A tool call of which arguments are still coming, as JSON."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""


@define(eq=False)
class Arriving:
    """An answer, as far as it has come."""

    text: list[str] = field(factory=list)
    unseen: int = 0  # characters
    calls: list[ToolCall] = field(factory=list)
    halves: list[HalfCall] = field(factory=list)
    usage: Usage | None = None
    finish: FinishReason | None = None
    model: str | None = None

    def got(self, text: str, unseen: int, usage: Usage | None) -> Delta:
        self.text.append(text)
        self.unseen += unseen
        self.usage = usage or self.usage
        return Delta(text, unseen, usage)

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


def new_id() -> str:
    """For a tool call whose provider gave it none."""
    return OURS + secrets.token_hex(8)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
