"""``agentos approvals --watch``: shows the calls that wait for a person one after the other, and takes keys."""

import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

import click
from attrs import define, field

from agentos.userland.cli.columns import cut_middle
from agentos.userland.cli.common import (
    REPLY_MARGIN,
    Failed,
    check_reply,
    kernel,
    print_json_line,
    printable,
    socket_path,
)
from agentos.userland.cli.terminal import single_keys
from agentos_sdk import AgentOSClient, AgentOSError

from .approvals import (
    REMEMBERED,
    Remember,
    changeable_lines,
    describe_request,
    is_terminal,
    line_rows,
    print_styled,
    request_lines,
    wrap_line,
)
from .desk import KEYS, Answer, Desk, Request

RETRY_SECONDS = 0.5  # until the kernel is tried again
ROWS_BESIDE = 3  # of the terminal, beside those of a request that is shown in part
HELP = "y allow  n deny  a always  d details  s next  q quit"


@define(eq=False)
class Follower:
    """Follows what waits, in a thread; ``wake`` becomes readable after each change."""

    socket: str | None
    wake: int
    _write: int
    pending: Sequence[Request] = ()
    error: str | None = None
    over: bool = False

    @classmethod
    @contextmanager
    def started(cls, socket: str | None) -> "Iterator[Follower]":
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        follower = cls(socket, read, write)
        threading.Thread(target=follower._run, daemon=True).start()
        try:
            yield follower
        finally:
            follower.over = True

    def _run(self) -> None:
        while not self.over:
            try:
                with AgentOSClient(socket_path(self.socket)).follow_approvals() as lists:
                    for pending in lists:
                        self._note(pending, None)
            except (AgentOSError, OSError) as error:
                self._note((), str(error))
            time.sleep(RETRY_SECONDS)

    def _note(self, pending: Sequence[Request], error: str | None) -> None:
        if (pending, error) != (self.pending, self.error):
            self.pending, self.error = pending, error
            with suppress(BlockingIOError):
                os.write(self._write, b"\0")


def print_new_requests(path: str | None) -> None:
    """Print each request once, as JSON in a line, until Ctrl-C."""
    seen: set[int] = set()
    try:
        with kernel(path) as client:
            for pending in client.follow_approvals():
                for request in pending:
                    if request["id"] not in seen:
                        print_json_line(request)
                sys.stdout.flush()
                seen = {request["id"] for request in pending}
    except KeyboardInterrupt:
        sys.exit(130)


def watch_requests(path: str | None) -> None:
    """Show requests and obey keys until the user ends it; the terminal is restored in every case."""
    if not is_terminal():
        raise Failed("--watch needs a terminal, as it takes keys: use `agentos approvals`, or --watch --json")
    with kernel(path) as client:
        check_reply(client.approvals())
    with single_keys(), Follower.started(path) as follower, suppress(KeyboardInterrupt):
        Watch(path, follower).serve()
    click.echo()


@define(eq=False)
class Watch:
    """What is on the terminal: the current request, and below it a line with the keys."""

    path: str | None
    follower: Follower
    desk: Desk = field(factory=Desk)
    answered: set[int] = field(factory=set)  # ids; a list that was asked for before may still have them
    unseen: int = 0  # rows of the current request that were not shown
    shown_width: int = 0  # columns of the terminal when it was shown
    sure: bool = False  # the warning about an answer that is remembered was shown: a second key does it

    def serve(self) -> None:
        self.show_status()
        keyboard = sys.stdin.fileno()
        while True:
            readable, _, _ = select.select([keyboard, self.follower.wake], [], [], 1.0)
            if self.follower.wake in readable:
                os.read(self.follower.wake, 4096)
            self.update()
            if keyboard in readable:
                typed = os.read(keyboard, 4096).decode(errors="replace")
                if not typed or not all(map(self.obey, typed)):
                    return
            self.show_status()

    def update(self) -> None:
        waiting = [one for one in self.follower.pending if self.is_waiting(one)]
        before = self.desk.current
        if self.desk.update(waiting, time.monotonic()):
            if before is not None and before["id"] not in self.answered:
                self.say(f"request {before['id']} waits no more: it was answered, or its time or its caller is over")
            self.show_current()
        elif self.desk.current is not None and self.width < self.shown_width:  # the terminal has broken its rows
            self.desk.settle_again(time.monotonic())
            self.show_current()

    def is_waiting(self, request: Request) -> bool:
        """Whether it is to be shown: its caller is there, and it wasn't answered here."""
        return request["caller_present"] and request["id"] not in self.answered

    def obey(self, key: str) -> bool:
        """Do what a key stands for; False ends the view. A key that comes too soon after a request does nothing."""
        if key == "q":
            return False
        now, request = time.monotonic(), self.desk.current
        if request is None or not self.desk.takes_key(now):
            return True
        if key == "d":
            self.show_current(whole=True)
            self.desk.settle_again(time.monotonic())
        elif key == "s":
            self.desk.skip(now)
            self.show_current()
        elif key in KEYS:
            self.answer(request, KEYS[key])
        return True

    def answer(self, request: Request, answer: Answer) -> None:
        if answer != "deny" and self.unseen:
            self.say(f"not allowed: {self.unseen} rows of it were not shown; d shows all", "yellow")
            return
        marks = changeable_lines(request)
        if answer == "always" and marks and not self.sure:
            self.sure = True
            self.desk.settle_again(time.monotonic())
            for row in (row for mark in marks for row in line_rows(mark, self.width, "")):
                self.say(row, "yellow")
            self.say(f"{REMEMBERED}; a again: always", "yellow")
            return
        try:
            with AgentOSClient(socket_path(self.path), REPLY_MARGIN) as client:
                remember: Remember = "always" if answer == "always" else "once"
                digest: str = request["digest"]  # of what is on the screen
                check_reply(client.decide(request["id"], answer != "deny", remember=remember, digest=digest))
        except AgentOSError as error:
            self.say(str(error), "red")
            return  # the request is still there
        except Failed as error:
            self.say(error.message, "red")
            if error.reply["code"] != "not_found":
                return
        else:
            done = {"allow": "allowed", "deny": "denied", "always": "allowed always"}[answer]
            self.say(f"{done}: {describe_request(request, self.width)}")
        self.answered.add(request["id"])
        self.update()

    # -- The terminal ----------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns

    def say(self, text: str, colour: str | None = None) -> None:
        """Write a line in place of the last one, the keys."""
        rows = "\n".join(wrap_line(printable(text), self.width, ""))
        click.echo(f"\r\x1b[K{click.style(rows, fg=colour)}")

    def show_current(self, whole: bool = False) -> None:
        """Show the request; a long one in part, but never without the line about files that the agent can change."""
        self.sure, self.unseen, self.shown_width = False, 0, self.width
        request = self.desk.current
        if request is None:
            return
        lines = request_lines(request, time.time(), self.width)
        self.say("")
        print_styled(islice(lines, None if whole else max(8, shutil.get_terminal_size().lines - ROWS_BESIDE)))
        if rest := list(lines):
            self.unseen = len(rest)
            click.echo(f"… {len(rest)} more rows: d shows all, and then it can be allowed")
            marks = (row for mark in changeable_lines(request) for row in line_rows(mark, self.width))
            print_styled(row for row in marks if row in rest)

    def show_status(self) -> None:
        """Write the last line anew: what waits, and the keys."""
        request, others = self.desk.current, len(self.desk.pending) - 1
        if self.follower.error is not None:
            text = printable(self.follower.error)
        elif request is None:
            text = "no call waits for approval; q quit"
        else:
            text = f"{request['id']}: {HELP}" + (f"  ({others} more)" if others else "")
        click.echo(f"\r\x1b[K{cut_middle(text, self.width - 1)}", nl=False)
        sys.stdout.flush()
