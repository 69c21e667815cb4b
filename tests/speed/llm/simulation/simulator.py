"""A provider of models that answers in a known time: a process of its own that speaks OpenAI's protocol on loopback.

A request takes ``base`` seconds and so much more per token of the question and of the answer, in one of ``slots``
that are given in the order of arrival. It is stopped as soon as its client has gone. The question itself has the
agent's name and the length of the answer (:meth:`Asked.text`), so that no strategy in between can change them.

``GET /log`` tells what was served to whom, and when, on the clock that all processes of this machine share.
"""

import json
import math
import random
import re
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import h11
import trio
from attrs import asdict, define, frozen

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_PIECE = 25  # that are sent at once
ASKED = re.compile(r"^(?P<id>\S+) answer in (?P<output>\d+) tokens ")
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
READ_SIZE = 1 << 16
EVENT_STREAM = [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")]

Fate = Literal["answered", "gone", "reset"]
Outage = Literal["refuses", "breaks off", "sends nothing", "accepts, then sends nothing", "begins, then sends nothing"]


@frozen
class Behaviour:
    """Times are seconds. What is left out doesn't happen.

    ``room``: with so many waiting a request gets 429. ``requests`` are begun per ``window`` at most; a further one gets
    429 with a Retry-After. ``faults``: the share that gets 500, 503, or half an answer and a reset, by ``seed``.
    ``outage``: what happens to each request instead: 503, a reset after the head of the response, no response, or
    nothing after its head or after its first tokens.
    """

    slots: int = 4
    base: float = 0.0125
    per_input: float = 0.000125
    per_output: float = 0.001
    room: int | None = None
    window: float = 1.0
    requests: int | None = None
    faults: float = 0.0
    seed: int = 0
    outage: Outage | None = None


@frozen
class Asked:
    """``id`` is ``agent/number``; ``input`` and ``output`` are tokens."""

    id: str
    input: int
    output: int

    def text(self) -> str:
        return f"{self.id} answer in {self.output} tokens ".ljust(self.input * CHARACTERS_PER_TOKEN, ".")

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "Asked":
        """Raises ValueError: it wasn't made by :meth:`text`, or isn't to be streamed."""
        text = body["messages"][-1]["content"]
        if not isinstance(text, str):
            text = "".join(part["text"] for part in text)
        found = ASKED.match(text)
        if found is None or not body.get("stream"):
            raise ValueError("expected a question that says how long the answer shall be, and `stream`")
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or math.inf
        return cls(found["id"], -(-len(text) // CHARACTERS_PER_TOKEN), int(min(int(found["output"]), limit)))


@define
class Served:
    """One attempt that got a slot: ``output`` tokens were generated between ``began`` and ``ended``."""

    id: str
    input: int
    began: float
    output: int = 0
    ended: float = 0.0
    fate: Fate = "gone"


class Gone(Exception):
    """The client isn't there any more."""


class Exchange:
    """A connection, one request at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER)

    async def request(self) -> tuple[str, bytes] | None:
        """The next one's method and path, and its body; ``None``: the client has closed."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        target, body = "", b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._receive())
            elif isinstance(event, h11.Request):
                target = f"{event.method.decode()} {event.target.decode()}"
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return target, body
            else:
                return None

    async def watch(self) -> None:
        """Returns when the client has gone; it may ask again while the end of an answer is on its way."""
        while data := await self._receive():
            self._http.receive_data(data)

    async def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        await self.send(h11.Response(status_code=status, headers=[*headers]))

    async def send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        try:
            await self._stream.send_all(data or b"")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Gone from None

    async def whole(self, status: int, answer: object, *headers: tuple[str, str]) -> None:
        body = json.dumps(answer).encode()
        await self.begin(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers])
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    def reset(self) -> None:
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._stream.socket.close()

    async def _receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(READ_SIZE))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""


class Simulator:
    """What is the same for all connections: the slots, the window, and what was served."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.slots = trio.Semaphore(behaviour.slots)  # given in the order of asking
        self.waiting = 0
        self.window = (0.0, 0)  # its end, and how many were begun in it
        self.attempts: Counter[str] = Counter()
        self.refused: Counter[int] = Counter()  # by status
        self.served: list[Served] = []

    async def connection(self, stream: trio.SocketStream) -> None:
        exchange = Exchange(stream)
        try:
            while (request := await exchange.request()) is not None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._until_gone, exchange, nursery.cancel_scope)
                    await self.answer(exchange, *request)
                    nursery.cancel_scope.cancel()
        except* (Gone, h11.ProtocolError):
            pass

    async def _until_gone(self, exchange: Exchange, scope: trio.CancelScope) -> None:
        await exchange.watch()
        scope.cancel()

    async def answer(self, exchange: Exchange, target: str, body: bytes) -> None:
        if target == "GET /log":
            log = {"served": [asdict(each) for each in self.served], "refused": self.refused}
            await exchange.whole(200, log)
        elif target == "POST /v1/chat/completions":
            data = json.loads(body)
            try:
                asked = Asked.read(data)
            except (ValueError, KeyError) as error:
                await self.refuse(exchange, 400, str(error))
            else:
                await self.complete(exchange, asked, data)
        else:
            await self.refuse(exchange, 404, target)

    async def complete(self, exchange: Exchange, asked: Asked, body: Mapping[str, Any]) -> None:
        self.attempts[asked.id] += 1
        behaviour, now = self.behaviour, time.monotonic()
        if behaviour.outage is not None:
            await self.fail(exchange, behaviour.outage, event(asked, body, delta=" tok"))
            return
        if self.slots.value == 0 and behaviour.room is not None and self.waiting >= behaviour.room:
            await self.refuse(exchange, 429, "too many requests wait")
            return
        if (after := self.closed_for(now)) > 0:
            await self.refuse(exchange, 429, "too many requests in this window", ("Retry-After", str(math.ceil(after))))
            return
        fault = self.fault(asked.id)
        if isinstance(fault, int):
            await self.refuse(exchange, fault, "a fault, as was asked for")
            return
        self.waiting += 1
        try:
            await self.slots.acquire()
        finally:
            self.waiting -= 1
        try:
            await self.serve(exchange, asked, body, reset=fault == "reset")
        finally:
            self.slots.release()

    async def fail(self, exchange: Exchange, outage: Outage, piece: bytes) -> None:
        if outage == "refuses":
            await self.refuse(exchange, 503, "an outage, as was asked for")
            return
        if outage != "sends nothing":
            await exchange.begin(200, EVENT_STREAM)
        if outage == "breaks off":
            exchange.reset()
            raise Gone
        if outage == "begins, then sends nothing":
            await exchange.send(h11.Data(data=piece))
        await trio.sleep_forever()

    def closed_for(self, now: float) -> float:
        """Seconds until requests are taken again; 0: this one is, and counts."""
        if self.behaviour.requests is None:
            return 0.0
        end, begun = self.window
        if now >= end:
            end, begun = now + self.behaviour.window, 0
        if begun >= self.behaviour.requests:
            return end - now
        self.window = (end, begun + 1)
        return 0.0

    def fault(self, id: str) -> Literal[500, 503, "reset"] | None:
        dice = random.Random(f"{self.behaviour.seed} {id} {self.attempts[id]}")
        kinds: tuple[Literal[500, 503, "reset"], ...] = (500, 503, "reset")
        return dice.choice(kinds) if dice.random() < self.behaviour.faults else None

    async def refuse(self, exchange: Exchange, status: int, why: str, *headers: tuple[str, str]) -> None:
        self.refused[status] += 1
        await exchange.whole(status, {"error": {"message": why, "type": "simulated", "code": status}}, *headers)

    async def serve(self, exchange: Exchange, asked: Asked, body: Mapping[str, Any], *, reset: bool) -> None:
        begun = trio.current_time()
        record = Served(asked.id, asked.input, time.monotonic())
        self.served.append(record)
        first = self.behaviour.base + self.behaviour.per_input * asked.input
        try:
            if first > 0:
                await trio.sleep_until(begun + first)
            await exchange.begin(200, EVENT_STREAM)
            for tokens in pieces(asked.output):
                if self.behaviour.per_output > 0:
                    await trio.sleep_until(begun + first + self.behaviour.per_output * (record.output + tokens))
                record.output += tokens
                await exchange.send(h11.Data(data=event(asked, body, delta=" tok" * tokens)))
                if reset and record.output * 2 >= asked.output:
                    record.fate = "reset"
                    exchange.reset()
                    raise Gone
            await exchange.send(h11.Data(data=last_events(asked, body, record.output)))
            await exchange.send(h11.EndOfMessage())
            record.fate = "answered"
        finally:
            record.ended = time.monotonic()


def pieces(tokens: int) -> Iterator[int]:
    for begin in range(0, tokens, TOKENS_PER_PIECE):
        yield min(TOKENS_PER_PIECE, tokens - begin)


def event(
    asked: Asked, body: Mapping[str, Any], *, delta: str | None = None, usage: Mapping[str, int] | None = None
) -> bytes:
    """One piece of an answer; the one without a ``delta`` ends it, the one with ``usage`` has no choices."""
    choice = {
        "index": 0,
        "delta": {} if delta is None else {"role": "assistant", "content": delta},
        "finish_reason": "stop" if delta is None else None,
    }
    chunk = {
        "id": f"chatcmpl-{asked.id}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": body.get("model", ""),
        "choices": [] if usage else [choice],
        "usage": usage,
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def last_events(asked: Asked, body: Mapping[str, Any], output: int) -> bytes:
    usage = {"prompt_tokens": asked.input, "completion_tokens": output, "total_tokens": asked.input + output}
    counted = event(asked, body, usage=usage) if (body.get("stream_options") or {}).get("include_usage") else b""
    return event(asked, body) + counted + b"data: [DONE]\n\n"


async def main(behaviour: Behaviour) -> None:
    simulator = Simulator(behaviour)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=2048)
    port = listeners[0].socket.getsockname()[1]
    serve = partial(trio.serve_listeners, simulator.connection, listeners)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        print(f"ready http://127.0.0.1:{port}", flush=True)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Behaviour(**json.loads(sys.argv[1])))
