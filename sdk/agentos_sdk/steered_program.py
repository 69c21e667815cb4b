"""Runs a program that takes messages on its standard input, in a jail: ``python3 -m agentos_sdk.steered_program``.

Its arguments are the form of the messages, the first message (empty: there is none) and the command. What the operator
sends to the agent goes to the program. In ``stream-json``, each message and each event of the program is a line of
JSON, and after its first answer the program is told that no more will come: what it was told until then it still does,
then it ends by itself. In ``lines``, a message is one line, and the program decides when it ends.
"""

# One thread waits for messages; the other owns the program's streams and never blocks on one of them, as a program
# that isn't read while it isn't reading would wait for ever. docs/decisions/0117.

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from .blocking import AgentOSClient
from .errors import AgentOSError
from .loop.engine.told import MAX_TEXT, STOP, as_text
from .loop.tools.tools import shorten

FORMS = ("lines", "stream-json")
MAX_WAITING = 1 << 20  # bytes for the program; further messages stay in the mailbox
MAX_LINE = 64 << 20  # bytes of an event
MAX_SHOWN = 2000  # characters of a tool's arguments or result
WAIT_SECONDS = 3600.0
READ_SIZE = 1 << 16


def encode_message(form: str, text: str) -> bytes:
    if form == "lines":
        return " ".join(text.split("\n")).encode(errors="replace") + b"\n"
    message = {"type": "user", "message": {"role": "user", "content": text}}
    return json.dumps(message).encode() + b"\n"


class Mail:
    """The operator's messages, received in a thread of its own; ``wake`` becomes readable with each."""

    def __init__(self) -> None:
        self.wake, self._write = os.pipe()
        os.set_blocking(self.wake, False)
        self.texts = SimpleQueue[str]()
        self.has_room = threading.Event()
        self.has_room.set()
        threading.Thread(target=self._receive, daemon=True).start()

    def take(self) -> Sequence[str]:
        try:
            count = len(os.read(self.wake, READ_SIZE))
        except BlockingIOError:
            return ()
        return [self.texts.get() for _ in range(count)]

    def _receive(self) -> None:
        try:
            with AgentOSClient() as client:
                while self.has_room.wait():
                    reply = client.recv_messages(1, WAIT_SECONDS)
                    if not reply["success"]:
                        report(f"messages can't be received: {reply['error']}")
                        return
                    for each in reply["messages"]:
                        if each["from_kind"] == "operator" and each["message"] != STOP:
                            self.texts.put(as_text(each["message"])[:MAX_TEXT])
                            os.write(self._write, b"\0")
        except AgentOSError as error:
            report(f"messages can't be received: {error}")


class Events:
    """What a program of ``stream-json`` writes, as text: answers to stdout, what comes before them to stderr."""

    def __init__(self) -> None:
        self.has_answered = False
        self._line = bytearray()
        self._said = ""  # is shown unless it is the answer too
        self._tools = dict[str, str]()

    def feed(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._line += line
            self._show(bytes(self._line))
            self._line.clear()
        self._line += rest
        if len(self._line) > MAX_LINE:
            report(f"a line of more than {MAX_LINE >> 20} MiB is left out")
            self._line.clear()

    def finish(self) -> None:
        self.feed(b"\n")
        self._show_said()

    def _show(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        match event:
            case {"type": "assistant" | "user", "message": {"content": list(parts)}}:
                for part in parts:
                    self._show_part(part)
            case {"type": "result"}:
                self._show_result(event)
            case {"type": str()}:
                pass  # of its session
            case _:
                show(line.decode(errors="replace"))

    def _show_part(self, part: Any) -> None:
        match part:
            case {"type": "text", "text": str(text)} if text.strip():
                self._show_said()
                self._said = text
            case {"type": "tool_use", "id": str(number), "name": str(name), "input": given}:
                self._show_said()
                self._tools[number] = name
                report(f"{name} {shorten(json.dumps(given, ensure_ascii=False), MAX_SHOWN)}")
            case {"type": "tool_result", "tool_use_id": str(number), "content": content}:
                text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
                how = "failed" if part.get("is_error") else "returned"
                report(f"{self._tools.pop(number, 'tool')} {how}: {shorten(text, MAX_SHOWN)}")

    def _show_result(self, event: dict[str, Any]) -> None:
        answer = event.get("result")
        if self._said != answer:
            self._show_said()
        self._said = ""
        if isinstance(answer, str):
            show(answer)
        elif event.get("is_error"):
            report(f"it has failed: {event.get('subtype')}")
        self.has_answered = True

    def _show_said(self) -> None:
        if self._said:
            report(self._said)
        self._said = ""


def show(text: str) -> None:
    """Print it; half a surrogate pair, of a text that was cut, as ``?``."""
    if text.strip():
        print(text.encode(errors="replace").decode(), flush=True)


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class SteeredProgram:
    """The program, with what waits to be written to it."""

    def __init__(self, form: str, first: str, command: Sequence[str]) -> None:
        self.form, self.mail = form, Mail()
        self.events = Events() if form == "stream-json" else None
        stdout = subprocess.PIPE if self.events is not None else None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout)
        assert self.process.stdin is not None
        self._stdin: int | None = self.process.stdin.fileno()
        os.set_blocking(self._stdin, False)
        self._waiting = bytearray(encode_message(form, first) if first else b"")
        self._untold = list[str]()

    def run(self) -> int:
        """Run until the program has ended; returns its exit status, or 128 and more after a signal."""
        end = os.pidfd_open(self.process.pid)
        with selectors.DefaultSelector() as ready:
            ready.register(end, selectors.EVENT_READ)
            ready.register(self.mail.wake, selectors.EVENT_READ)
            if self.process.stdout is not None:
                os.set_blocking(self.process.stdout.fileno(), False)
                ready.register(self.process.stdout.fileno(), selectors.EVENT_READ)
            self._write(ready)
            while end not in (found := {key.fd for key, _ in ready.select()}):
                if self.mail.wake in found:
                    self._take_messages()
                if self.process.stdout is not None and self.process.stdout.fileno() in found and not self._read():
                    ready.unregister(self.process.stdout.fileno())
                self._write(ready)
            if self.process.stdout is not None:
                while self._read():
                    pass
        self._finish()
        status = self.process.wait()
        return status if status >= 0 else 128 - status

    def _take_messages(self) -> None:
        for text in self.mail.take():
            if self._stdin is None:
                self._untold.append(text)
            else:
                self._waiting += encode_message(self.form, text)

    def _read(self) -> bool:
        """Read what is there; False at the end, or where nothing is."""
        assert self.process.stdout is not None
        assert self.events is not None
        try:
            data = os.read(self.process.stdout.fileno(), READ_SIZE)
        except BlockingIOError:
            return False
        self.events.feed(data)
        return bool(data)

    def _write(self, ready: selectors.BaseSelector) -> None:
        """Write what the pipe takes; close it where no more is to come."""
        if self._stdin is None:
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(self._stdin, self._waiting[:READ_SIZE])]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._close(ready)
            return
        is_watched = self._stdin in ready.get_map()
        if self._waiting and not is_watched:
            ready.register(self._stdin, selectors.EVENT_WRITE)
        elif not self._waiting and is_watched:
            ready.unregister(self._stdin)
        if len(self._waiting) < MAX_WAITING:
            self.mail.has_room.set()
        else:
            self.mail.has_room.clear()
        if self.events is not None and self.events.has_answered and not self._waiting:
            self._close(ready)

    def _close(self, ready: selectors.BaseSelector) -> None:
        assert self._stdin is not None
        assert self.process.stdin is not None
        if self._stdin in ready.get_map():
            ready.unregister(self._stdin)
        self._stdin = None
        self.process.stdin.close()

    def _finish(self) -> None:
        if self.events is not None:
            self.events.finish()
        self._stdin = None
        self._take_messages()
        if self._waiting:
            report("it has ended before it took all that it was told")
        for text in self._untold:
            report(f"it has ended its work before it could be told: {text}")


if __name__ == "__main__":
    sys.exit(SteeredProgram(sys.argv[1], sys.argv[2], sys.argv[3:]).run())
