"""FakeKernel: a socket that speaks the kernel's protocol, with programmed replies and a record of all calls."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from attrs import define, field

from agentos_sdk.calls.messages import Ack, Recv
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, CallError, Cancelled, NotFound, Unavailable, UnknownCall
from agentos_sdk.opcodes import Op, op_name

from . import replies
from .fake_server import Server

PATIENCE = 30.0  # seconds that `wait_for` waits, and an agent gets to end
AGENT_ID, SENDER_ID = 1, 2

Fields = Mapping[str, Any]
Reply = object
"""A mapping, a list, a ``CallError``, or a function of the request's fields that returns or raises one."""


@define
class Call:
    """A call that an agent made, with the fields that it sent. ``error`` is set once the call has failed."""

    name: str
    fields: Fields
    error: CallError | None = None

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self.fields.items())
        return f"{self.name}({given})" + (f" failed: {self.error}" if self.error else "")


@define
class Programmed:
    """A programmed reply; ``left`` is how often it can still be given, None without limit."""

    op: Op
    reply: Reply
    when: Fields
    chunks: Sequence[Fields]
    left: int | None

    def fits(self, op: int, fields: Fields) -> bool:
        return self.op == op and self.left != 0 and has_fields(fields, self.when)

    def __str__(self) -> str:
        given = f" with {dict(self.when)}" if self.when else ""
        return f"{self.op.name}{given} ({self.left} more)"


@define(eq=False)
class FakeKernel:
    """A kernel of programmed replies on a real Unix socket, for one agent. A context manager.

    It speaks both versions of the protocol, so an agent runs unmodified. HELLO, NOOP, EXIT and CANCEL answer as the
    kernel does; RECV answers what :meth:`deliver` queued and what the agent sent to itself, and leases it until the end
    if it is asked to; ACK ends that; SEND to others succeeds.
    All else needs a :meth:`reply`. A request whose fields are wrong fails as it does at a kernel; nothing is permitted,
    denied, audited or isolated here.

    Leaving it raises ``AssertionError`` if a call had no reply or a programmed function raised.
    """

    name: str = "agent"
    socket: str = field(init=False)  # path
    _directory: str = field(init=False)
    _programmed: list[Programmed] = field(factory=list, init=False)
    _calls: list[Call] = field(factory=list, init=False)
    _mail: deque[Fields] = field(factory=deque, init=False)
    _leased: set[int] = field(factory=set, init=False)  # ids of messages
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1), init=False)
    _trouble: list[str] = field(factory=list, init=False)
    _changed: threading.Condition = field(factory=threading.Condition, init=False)
    _server: Server = field(init=False)
    _programs: contextlib.ExitStack = field(factory=contextlib.ExitStack, init=False)

    def __enter__(self) -> Self:
        self._directory = tempfile.mkdtemp(prefix="agentos-")  # only for this user
        self.socket = f"{self._directory}/socket"
        self._server = Server(self.socket, self, AGENT_ID, self.name)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self._programs.close()
        finally:
            self._server.close()
            shutil.rmtree(self._directory)
        if kind is None and self._trouble:
            raise AssertionError("; ".join(dict.fromkeys(self._trouble)))

    # -- What it answers -------------------------------------------------------------------------------------------

    def reply(
        self,
        call: Op | str,
        reply: Reply = None,
        *,
        when: Fields | None = None,
        chunks: Sequence[Fields] = (),
        times: int | None = None,
    ) -> None:
        """Answer ``call`` (``"think"``) with ``reply``; of several replies that fit, the first is given.

        ``reply`` has the fields of the call's reply, and those that aren't given are empty; a ``CallError`` is the
        failure; a function gets the fields of the request and returns either. ``when``: only requests with these
        fields. ``chunks`` are sent first if the request asks for a stream; THINK's default is its whole content.
        ``times``: then the next fitting reply is given; None without limit. Raises ``ValueError`` if the kernel could
        not reply so.
        """
        op = replies.find_op(call)
        given = {} if reply is None else reply
        if not callable(given) and not isinstance(given, CallError):
            replies.encode_reply(op, given)
        with self._changed:
            self._programmed.append(Programmed(op, given, when or {}, chunks, times))

    def deliver(self, message: object, *, from_name: str = "test", from_id: int = SENDER_ID) -> None:
        """Put a message into the agent's mailbox, where RECV finds it."""
        sender = {"from_id": from_id, "from": from_id, "from_name": from_name, "from_kind": "agent"}
        with self._changed:
            numbered = {"id": next(self._numbers), "attempt": 1, **sender}
            self._mail.append({**numbered, "message": message, "sent_at": time.time(), "age_ms": 0})
            self._changed.notify_all()

    # -- What the agent did ----------------------------------------------------------------------------------------

    def calls(self, call: Op | str | None = None, **fields: object) -> list[Call]:
        """The calls so far, in order: all, or those of one name that have these fields with these values."""
        name = None if call is None else replies.find_op(call).name
        with self._changed:
            return [made for made in self._calls if name in (None, made.name) and has_fields(made.fields, fields)]

    def wait_for(self, call: Op | str, *, timeout: float = PATIENCE, **fields: object) -> Call:
        """The first call of that name with these fields; waits for it. ``AssertionError`` after ``timeout`` seconds."""
        with self._changed:
            found = self._changed.wait_for(partial(self.calls, call, **fields), timeout)
            if not found:
                raise AssertionError(f"not within {timeout:g} s: {self._say(call, fields)}")
        return found[0]

    def assert_called(self, call: Op | str, *, times: int | None = None, **fields: object) -> None:
        """``AssertionError`` unless the agent made that call with these fields, ``times`` times if that is given."""
        count = len(self.calls(call, **fields))
        if not count if times is None else count != times:
            expected = "at least 1" if times is None else times
            raise AssertionError(f"made {count} times, expected {expected}: {self._say(call, fields)}")

    def assert_not_called(self, call: Op | str, **fields: object) -> None:
        """``AssertionError`` if the agent made that call with these fields."""
        self.assert_called(call, times=0, **fields)

    def assert_used(self) -> None:
        """``AssertionError`` if a reply that was programmed a number of ``times`` was given less often."""
        with self._changed:
            unused = [str(each) for each in self._programmed if each.left]
        if unused:
            raise AssertionError(f"replies that the agent didn't ask for: {', '.join(unused)}")

    def _say(self, call: Op | str, fields: Fields) -> str:
        made = "".join(f"\n  {each}" for each in self.calls())
        return f"{Call(replies.find_op(call).name, fields)}; the agent's calls were:{made or ' none'}"

    # -- Agents ----------------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """The environment for an agent's program: ours, with the variables that a kernel sets."""
        known = {"AGENTOS_SOCKET": self.socket, "AGENTOS_AGENT_NAME": self.name}
        path = [str(Path(__file__).parents[1] / "in_sandbox"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, **known, "PYTHONPATH": os.pathsep.join(path)}

    def run(self, script: str | os.PathLike[str], *args: str, timeout: float = PATIENCE) -> "Finished":
        """Run an agent's script to its end; its exit status and output. ``subprocess.TimeoutExpired``: it goes on."""
        command = [sys.executable, os.fspath(script), *args]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout)

    def start(self, script: str | os.PathLike[str], *args: str) -> "subprocess.Popen[str]":
        """Start an agent's script, whose output is ours; it is killed when the kernel is left, if it still runs."""
        command = [sys.executable, os.fspath(script), *args]
        program = subprocess.Popen(command, env=self.environment, text=True)
        self._programs.callback(end, program)
        return program

    # -- The server's side -----------------------------------------------------------------------------------------

    def answer(
        self, op: int, body: bytes, send_chunk: Callable[[Fields], None] | None, is_cancelled: Callable[[], bool]
    ) -> bytes:
        """The body of the reply to a request; ``send_chunk`` is None where the connection can't stream."""
        call = Call(op_name(op), {})
        try:
            if op not in Op.__members__.values() or op == Op.CHUNK:
                raise UnknownCall(f"this kernel has no call {call.name}")
            call.fields = replies.read_request(Op(op), body)
            self._note(call)
            return self._reply(Op(op), call.fields, body, send_chunk, is_cancelled)
        except CallError as error:
            call.error = error
            self._note(call)
            return replies.encode_failure(op, error)

    def wake(self) -> None:
        """Make waiting calls look again whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()

    def _note(self, call: Call) -> None:
        with self._changed:
            if not any(call is noted for noted in reversed(self._calls)):
                self._calls.append(call)
            self._changed.notify_all()

    def _reply(
        self,
        op: Op,
        fields: Fields,
        body: bytes,
        send_chunk: Callable[[Fields], None] | None,
        is_cancelled: Callable[[], bool],
    ) -> bytes:
        programmed = self._take(op, fields)
        if programmed is None:
            return replies.encode_reply(op, self._built_in(op, fields, body, is_cancelled))
        try:
            given = programmed.reply(fields) if callable(programmed.reply) else programmed.reply
            if isinstance(given, CallError):
                raise given
            encoded = replies.encode_reply(op, given)
        except CallError:
            raise
        except Exception as error:
            with self._changed:
                self._trouble.append(f"the programmed reply to {op.name} raised {error!r}")
            raise Unavailable(f"the test's reply to {op.name} raised {error!r}") from error
        if send_chunk is not None and (fields.get("stream") or fields.get("follow")):
            for chunk in programmed.chunks or replies.default_chunks(op, given):
                send_chunk(chunk)
        return encoded

    def _take(self, op: Op, fields: Fields) -> Programmed | None:
        with self._changed:
            found = next((each for each in self._programmed if each.fits(op, fields)), None)
            if found is not None and found.left is not None:
                found.left -= 1
            return found

    def _built_in(self, op: Op, fields: Fields, body: bytes, is_cancelled: Callable[[], bool]) -> object:
        match op:
            case Op.NOOP:
                return body
            case Op.SEND:
                return self._send(fields)
            case Op.RECV:
                return self._receive(fields, is_cancelled)
            case Op.ACK:
                return self._acknowledge(fields)
        text = f"no reply to {Call(op.name, fields)} was programmed: FakeKernel.reply({op.name.lower()!r}, ...)"
        with self._changed:
            self._trouble.append(text)
        raise Unavailable(text)

    def _send(self, fields: Fields) -> object:
        """Deliver to the agent's own mailbox, or say that another agent's has it."""
        names = [name for key in ("to", "to_name") if (name := fields.get(key)) is not None]
        if len(names) != 1:
            raise BadRequest("to: expected exactly one of to (an id or a name) and to_name")
        [to] = names
        if to in (AGENT_ID, self.name):
            self.deliver(fields["message"], from_name=self.name, from_id=AGENT_ID)
            return {"delivered_to": AGENT_ID}
        return {"delivered_to": to if isinstance(to, int) else SENDER_ID}

    def _receive(self, fields: Fields, is_cancelled: Callable[[], bool]) -> object:
        request = codec.decode(Recv, fields)
        if request.max < 1:
            raise BadRequest(f"max: expected at least 1, got {request.max}")
        wait = min(request.timeout, threading.TIMEOUT_MAX) if request.wait else 0
        with self._changed:
            self._changed.wait_for(lambda: self._mail or is_cancelled(), wait)
            if is_cancelled():
                raise Cancelled("the request was withdrawn")
            messages = [self._mail.popleft() for _ in range(min(request.max, len(self._mail)))]
            if request.lease is not None:
                self._leased.update(message["id"] for message in messages)
        return {"count": len(messages), "messages": messages}

    def _acknowledge(self, fields: Fields) -> object:
        asked = codec.decode(Ack, fields).ids
        with self._changed:
            acked = self._leased.intersection(asked)
            self._leased -= acked
        if late := [number for number in asked if number not in acked]:
            raise NotFound(f"ids: no lease of {late} runs (any more)", acked=len(acked), ids=late)
        return {"acked": len(acked)}


Finished = subprocess.CompletedProcess[str]


def has_fields(fields: Fields, wanted: Fields) -> bool:
    """Whether ``fields`` has everything that is wanted."""
    return all(name in fields and fields[name] == value for name, value in wanted.items())


def end(program: "subprocess.Popen[str]") -> None:
    """Kill a program that still runs, and wait for its end."""
    program.kill()
    program.wait()
