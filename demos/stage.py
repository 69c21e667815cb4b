"""What the demos share: a kernel of their own, what it prints, and a narrator's voice."""

import argparse
import contextlib
import os
import pty
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from agentos.sandbox.report.doctor import kernel_cgroup
from agentos_sdk import AgentOSClient, AgentOSError

WIDTH = 96  # columns that a narrated line may take
START, STOP = 60.0, 60.0  # seconds a kernel may take to be ready, and to have stopped every agent
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class StageError(Exception):
    """The demo can't go on, or did not show what it promises."""


# -- The narrator ------------------------------------------------------------------------------------------------------


def title(text: str) -> None:
    click.secho(f"\n{text}\n{'=' * len(text)}", bold=True)


def act(text: str) -> None:
    """A heading within a demo."""
    click.secho(f"\n── {text}", fg="cyan", bold=True)


def say(text: str) -> None:
    click.echo(fill(text))


def notice(text: str) -> None:
    """One thing that the person watching should not miss."""
    click.secho(fill(text, "  >> ", "     "), fg="yellow")


def fill(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def check(fact: bool, promise: str) -> None:
    """A demo that doesn't keep its promise says so, and its exit status is 1."""
    if not fact:
        raise StageError(f"this demo promises that {promise}, and it was not so")


class Speaker:
    """A client that prints each call as it would be written in Python, with its reply."""

    def __init__(self, client: AgentOSClient, name: str = "kernel") -> None:
        self.client = client
        self.name = name
        self.born: list[int] = []  # ids of the agents that it spawned

    def __call__(self, method: str, *args: object, **named: object) -> Any:
        words = [*(repr(short(value)) for value in args), *(f"{key}={short(value)!r}" for key, value in named.items())]
        click.secho(f"{self.name}.{method}({', '.join(words)})", fg="green")
        reply = getattr(self.client, method)(*args, **named)
        if method == "spawn" and reply["success"]:
            self.born.append(reply["id"])
        for row in reply if isinstance(reply, list) else [reply]:
            click.echo(fill(brief(row), "    ", "      "))
        return reply


@contextlib.contextmanager
def speaker(socket: str) -> Iterator[Speaker]:
    """A :class:`Speaker` to the kernel there; whatever happens, no agent that it spawned is left."""
    with AgentOSClient(socket) as client:
        speaking = Speaker(client)
        try:
            yield speaking
        finally:
            for number in speaking.born:
                client.kill(agent_id=number)


def brief(value: object) -> str:
    """A reply on few lines: what is long is only named."""
    if not isinstance(value, dict):
        return repr(value)
    return "{" + ", ".join(f"{key!r}: {outline(key, part)}" for key, part in value.items()) + "}"


def outline(key: str, part: object) -> str:
    if key == "isolation" and isinstance(part, dict):
        return f"{{'level': {part['level']!r}, ...}}"
    return "[...]" if key == "stderr" else first_line(part)


def first_line(value: object) -> str:
    if isinstance(value, str) and "\n" in value:
        return repr(f"{short(value.splitlines()[0])} ...")
    return repr(short(value))


def short(value: object) -> object:
    """Paths of the demos as they are within the repository."""
    return value.replace(f"{HERE.parent}/", "") if isinstance(value, str) else value


# -- The kernel --------------------------------------------------------------------------------------------------------

HERE = Path(__file__).parent


@frozen
class Printed:
    """A line of the kernel's console: ``text`` as it was printed, ``plain`` without colours, ``at`` in seconds."""

    text: str
    plain: str
    at: float


class Kernel:
    """``agentos run`` in a process of its own, with a socket and a state directory of its own.

    What it prints is kept until it is requested: so the narrator and the kernel never talk at once. ``begin``
    is called in its process first.
    """

    def __init__(self, directory: str, config: Path | None, begin: Callable[[], None]) -> None:
        self.socket = f"{directory}/socket"
        command = [sys.executable, "-m", "agentos", "run", *([str(config)] if config else [])]
        command += ["--socket", self.socket, "--state-dir", f"{directory}/state"]
        self._printed: queue.SimpleQueue[Printed | None] = queue.SimpleQueue()
        # On a terminal the kernel gets one as well, and so prints in colours.
        reading, writing = pty.openpty() if sys.stdout.isatty() else os.pipe()
        # A session of its own: Ctrl-C is for the demo, which then stops the kernel in order.
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
            preexec_fn=begin,
        )
        os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def _read(self, source: int) -> None:
        with open(source, "rb") as console:
            try:
                for line in console:
                    text = line.decode(errors="replace").rstrip("\r\n")
                    self._printed.put(Printed(text, COLOUR.sub("", text), time.monotonic()))
            except OSError:
                pass  # EIO is how a terminal says that its last process has gone
        self._printed.put(None)

    def lines(self, seconds: float) -> Iterator[Printed]:
        """Its console line by line as they come; :class:`StageError` after ``seconds``, ends when the kernel ends."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise StageError(f"what should come next did not come within {seconds:g} s") from None
            if line is None:
                return
            yield line

    def until(self, pattern: str, seconds: float, show: bool = True) -> Printed:
        """Show its console up to the line that has ``pattern`` in it."""
        missed: list[str] = []
        for line in self.lines(seconds):
            if show:
                click.echo(line.text)
            missed.append(line.plain)
            if re.search(pattern, line.plain):
                return line
        raise StageError("the kernel has ended: " + "\n".join(missed[-5:]))

    def stop(self, show: bool = False) -> None:
        """SIGTERM, and see it out; :class:`StageError` if that isn't clean."""
        self.process.send_signal(signal.SIGTERM)
        for line in self.lines(STOP):
            if show:
                click.echo(line.text)
        if (status := self.process.wait(STOP)) != 0:
            raise StageError(f"the kernel stopped with exit status {status}")

    def end(self) -> None:
        """However it stands: afterwards it is gone, and its agents with it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)


@contextlib.contextmanager
def kernel(config: Path | None = None, show: bool = False) -> Iterator[Kernel]:
    """A kernel that is ready, and is gone afterwards whatever happens."""
    directory = tempfile.mkdtemp(prefix="aos-demo-")
    try:
        with kernel_cgroup() as begin:  # in the control group that is ours it would be with us
            running = Kernel(directory, config, begin)
            try:
                running.until(r"kernel \| ready, ", START, show)
                yield running
            finally:
                running.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def agentos(socket: str, *words: str) -> None:
    """Run a command of ``agentos`` as a person would, and show it."""
    click.secho(f"$ agentos {' '.join(words)}", bold=True)
    command = [sys.executable, "-m", "agentos", *words, "--socket", socket]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        raise StageError(f"agentos {' '.join(words)} failed")


# -- A demo ------------------------------------------------------------------------------------------------------------


def play(demo: Callable[[], None]) -> None:
    """Run a demo: whatever ends it, its kernel is stopped, and what went wrong is told in one line."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        demo()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (StageError, AgentOSError) as error:
        click.secho(f"\n{error}", fg="red", err=True)
        sys.exit(1)


def leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def play_with_kernel(demo: Callable[[str], None], description: str) -> None:
    """Run a demo that talks to the kernel at a socket: ``--socket PATH``, or one that is started for it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--socket", metavar="PATH", help="of a kernel that runs already; default: one is started")
    given: str | None = parser.parse_args().socket

    def run() -> None:
        title(description)
        if given is not None:
            demo(given)
            return
        with kernel() as running:
            say(f"A kernel was started for this demo (agentos run, pid {running.process.pid}).")
            demo(running.socket)
            running.stop()
            click.echo()
            say("The kernel was stopped, and with it every agent that was left.")

    play(run)
