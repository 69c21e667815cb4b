"""Shows a task while it runs. On a terminal it takes keys: answers to approvals, and lines for the model."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from attrs import define, field

from agentos.userland.cli.approvals.approvals import describe_object, is_terminal
from agentos.userland.cli.approvals.desk import KEYS, Request
from agentos.userland.cli.approvals.watch import Follower, Watch
from agentos.userland.cli.columns import text_width
from agentos.userland.cli.common import print_json_line, printable
from agentos.userland.cli.terminal import raise_on_signals, single_keys
from agentos.userland.task.attempts import Attempts
from agentos.userland.task.running import RunningTask
from agentos_sdk import AgentOSError

from .lines import describe_use, fit, step_lines

CAUSE_SECONDS = 0.3  # that a request waits for the step that it belongs to
ERASE, CLEAR_LINE = ("\x7f", "\b"), "\x15"
ACTIVITY = {
    "thought": "thinks",
    **dict.fromkeys(("result", "told"), "asks the model"),
    **dict.fromkeys(("asked", "output"), "works"),
    "check": "is checked",
}
STOPS, ENDED = "it stops after this step; Ctrl-C again ends it now", "it is ended"
APPROVAL_KEYS = "y allow  n deny  a always  d details  s next"


@contextmanager
def interruptible(task: RunningTask | Attempts) -> "Iterator[list[int]]":
    """Ctrl-C asks the task to stop after its step, a second one ends it; the list has an item for each."""
    pressed: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        pressed.append(number)
        task.notify()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def show_task(task: RunningTask | Attempts, path: str | None, as_json: bool, quiet: bool) -> Request | None:
    """Show a task until it is over; returns a request that waits for approval, if this command can't take an answer.

    Of attempts, and of programs that can't be resumed, none is returned: what waits is said once.
    """
    with raise_on_signals(), Follower.started(path) as follower, interruptible(task) as pressed:
        task.start()
        if is_terminal() and not as_json and not quiet:
            with single_keys():
                TaskScreen(path=path, follower=follower, task=task, pressed=pressed).serve()
            return None
        return print_task(task, follower, pressed, as_json, quiet)


def print_task(
    task: RunningTask | Attempts, follower: Follower, pressed: list[int], as_json: bool, quiet: bool
) -> Request | None:
    """Print each step, as lines or as JSON."""
    handled, told = 0, set[int]()
    while True:
        select.select([task.wake, follower.wake], [], [], 1.0)
        drain(follower)
        task.drain()
        is_over = task.is_over  # before its last steps are taken
        for step in task.take_steps():
            if as_json:
                print_json_line(step)
            elif not quiet:
                print_step(task, step, text_width())
        sys.stdout.flush()
        if is_over:
            return None
        while len(pressed) > handled:
            click.echo(f"agentos: {describe_interrupt(task, handled)}", err=True)
            obey_interrupt(task, is_first=not handled)
            handled += 1
        for request in follower.pending:
            if not request["caller_present"] or not task.concerns(request):
                continue
            if isinstance(task, RunningTask) and task.heeds_stop:
                return request  # a loop can be resumed
            if request["id"] not in told:
                told.add(request["id"])
                waits = f"{request['agent']} {describe_waiting_request(request)}: `agentos approve {request['id']}`"
                click.echo(f"agentos: {printable(waits)}", err=True)


def print_step(task: RunningTask | Attempts, step: Request, width: int) -> None:
    """Print the lines of a step, each behind the name of its attempt where there are several."""
    prefix = task.prefix(step)
    for line in step_lines(step, width - len(prefix)):
        click.echo(prefix + line)
    if prefix and step["kind"] == "end":
        text = " ".join(f"{step.get('status')}: {step.get('summary') or step.get('reason')}".split())
        click.echo(prefix + fit(printable(text), width - len(prefix)))


def describe_interrupt(task: RunningTask | Attempts, handled: int) -> str:
    return ENDED if handled or not task.heeds_stop else STOPS


def obey_interrupt(task: RunningTask | Attempts, is_first: bool) -> None:
    """Stop the task, or at the second Ctrl-C end it."""
    if is_first:
        task.stop()
    else:
        task.kill()


def drain(follower: Follower) -> None:
    if select.select([follower.wake], [], [], 0)[0]:
        os.read(follower.wake, 4096)


@define(eq=False, kw_only=True)
class TaskScreen(Watch):
    """A task on a terminal: its steps, a request that waits for approval, and a line with keys or what is typed.

    Keys answer a request only while nothing is typed; so no letter of a line is taken for an answer.
    """

    task: RunningTask | Attempts
    pressed: list[int]
    typed: str = ""
    began: float = field(factory=time.monotonic)
    steps: dict[str, int] = field(factory=dict)  # of each task
    tokens: int = 0
    cost: float | None = None
    activities: dict[str, str] = field(factory=dict)  # what each task does
    handled: int = 0

    def serve(self) -> None:
        keyboard = sys.stdin.fileno()
        while True:
            self.show_status()
            readable, _, _ = select.select([keyboard, self.follower.wake, self.task.wake], [], [], 1.0)
            drain(self.follower)
            self.task.drain()
            is_over = self.task.is_over
            self.show_steps(is_over)
            if is_over:
                self.erase_status()
                return
            while len(self.pressed) > self.handled:
                self.say(describe_interrupt(self.task, self.handled), "yellow")
                obey_interrupt(self.task, is_first=not self.handled)
                self.handled += 1
            self.show_cause()
            self.update()
            self.refuse_if_stopped()
            if keyboard in readable:
                for key in os.read(keyboard, 4096).decode(errors="replace"):
                    self.obey(key)
            self.show_steps()

    def is_waiting(self, request: Request) -> bool:
        return super().is_waiting(request) and self.task.concerns(request)

    def refuse_if_stopped(self) -> None:
        """A task that the user stops gets no approval any more: keys that follow aren't meant for its requests."""
        if self.handled and self.desk.current is not None:
            self.answer(self.desk.current, "deny")

    def show_cause(self) -> None:
        """Before a request appears: what the agent has said and begun. Its events may come a little later."""
        if self.desk.current is None and any(map(self.is_waiting, self.follower.pending)):
            select.select([self.task.wake], [], [], CAUSE_SECONDS)
            self.show_steps()

    def show_steps(self, all_of_them: bool = False) -> None:
        """Show what has come. Not below a request that waits: that has to be the last thing before its keys."""
        if self.desk.current is None or all_of_them:
            for step in self.task.take_steps():
                self.show_step(step)

    def show_step(self, step: Request) -> None:
        name = step["task"]
        match step:
            case {"kind": "thought" | "asked", "step": number, "tokens": tokens, "cost": cost}:
                self.steps[name], self.tokens = number, self.tokens + tokens
                self.cost = self.cost if cost is None else (self.cost or 0.0) + cost
            case {"kind": "call", "call": call}:
                self.activities[name] = f"runs {printable(str(call))}"
            case {"kind": "end", "status": status}:
                self.activities[name] = printable(str(status))
        if step["kind"] in ACTIVITY:
            self.activities[name] = ACTIVITY[step["kind"]]
        self.erase_status()
        print_step(self.task, step, self.width)

    def obey(self, key: str) -> bool:
        """Answer a request, or type a line for the model; always goes on."""
        if key in "\r\n":
            self.send_line()
        elif key in ERASE:
            self.typed = self.typed[:-1]
        elif key == CLEAR_LINE:
            self.typed = ""
        elif not self.typed and self.desk.current is not None and (key in KEYS or key in "ds"):
            super().obey(key)
        elif key.isprintable():
            self.typed += key
        return True

    def send_line(self) -> None:
        text, self.typed = self.typed.strip(), ""
        if not text:
            return
        try:
            self.task.tell(text)
        except AgentOSError as error:
            self.say(str(error), "red")
        else:
            self.say(f"it is told before its next step: {text}")

    def erase_status(self) -> None:
        click.echo("\r\x1b[K", nl=False)

    def show_status(self) -> None:
        request, others = self.desk.current, len(self.desk.pending) - 1
        if self.typed:
            text = f"> {self.typed}"[-(self.width - 1) :]
        elif self.follower.error is not None:
            text = printable(self.follower.error)
        elif request is not None:
            text = f"{request['id']}: {APPROVAL_KEYS}" + (f"  ({others} more)" if others else "")
        else:
            use = describe_use(sum(self.steps.values()), self.tokens, self.cost)
            doing = ", ".join(f"{name} {activity}" for name, activity in sorted(self.activities.items()))
            text = f"{doing or f'{self.task.name} starts'}  {time.monotonic() - self.began:.0f} s, {use}"
            text += "  (type to tell it more; Ctrl-C stops it)" if self.task.is_steered else "  (Ctrl-C ends it)"
        click.echo(f"\r\x1b[K{click.style(text[: self.width - 1], dim=not self.typed)}", nl=False)
        sys.stdout.flush()


def describe_waiting_request(request: Request) -> str:
    """What a task waits for, where no terminal is there to answer it."""
    return f"waits for approval of {request['call']} {describe_object(request, text_width())}"
