"""Shared by the demos: a kernel of their own, its console, and the narrator's text output."""

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
from agentos.userland.cli.kernel.demo import is_installed
from agentos_sdk import AgentOSClient, AgentOSError

PATIENCE = 120.0  # seconds that what a demo promises may take
WIDTH = 96  # columns that a narrated line may take, on a terminal that has so many
START_TIMEOUT, STOP_TIMEOUT = 120.0, 120.0  # seconds a kernel may take to be ready, and to have stopped every agent
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class DemoError(Exception):
    """The demo can't continue, or did not show what it promises."""


# -- The narrator ------------------------------------------------------------------------------------------------------


def title(text: str) -> None:
    click.secho(f"\n{text}\n{'=' * len(text)}", bold=True)


def heading(text: str) -> None:
    """A heading within a demo."""
    click.secho(f"\n── {text}", fg="cyan", bold=True)


def say(text: str) -> None:
    """Print a remark. If it begins with spaces, its further lines are indented by two more."""
    words = text.lstrip(" ")
    indent = " " * (len(text) - len(words))
    click.echo(fill(words, indent, indent and indent + "  "))


def notice(text: str) -> None:
    """Print a highlighted remark."""
    click.secho(fill(text, "  >> ", "     "), fg="yellow")


def fill(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        text, columns(), initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def columns() -> int:
    """The columns that a narrated line may take here."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def check(fact: bool, promise: str) -> None:
    """End the demo with exit status 1 and this promise in the error if ``fact`` is false."""
    if not fact:
        raise DemoError(f"this demo promises that {promise}, which was false")


def require_extra(name: str) -> None:
    """:class:`DemoError` if an extra of AgentOS isn't installed; ``name`` is also that of its package."""
    if not is_installed(name):
        raise DemoError(f"this demo needs the package {name}: pip install '.[{name}]' in AgentOS's repository")


def until(condition: Callable[[], object], promise: str) -> None:
    """Wait until the condition holds; :class:`DemoError` if it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        check(time.monotonic() < deadline, promise)
        time.sleep(0.05)


def said(client: AgentOSClient, name: str) -> list[str]:
    """What an agent has printed."""
    return [line["text"] for line in client.logs(name)["lines"] if line["stream"] == "stdout"]


# -- The kernel --------------------------------------------------------------------------------------------------------

HERE = Path(__file__).parent


@frozen
class ConsoleLine:
    """A line of the kernel's console: ``text`` as it was printed, ``plain`` without colours, ``at`` in seconds."""

    text: str
    plain: str
    at: float


class Kernel:
    """``agentos run`` in a process of its own, with a socket and a state directory of its own.

    Its output is kept until it is requested, so that it isn't mixed with the narrator's text. ``begin`` is called in
    its process first.
    """

    def __init__(self, directory: str, config: Path | None, begin: Callable[[], None]) -> None:
        self.socket = f"{directory}/socket"
        command = [sys.executable, "-P", "-m", "agentos", "run", *([str(config)] if config else [])]
        command += ["--socket", self.socket, "--state-dir", f"{directory}/state"]
        self._printed: queue.SimpleQueue[ConsoleLine | None] = queue.SimpleQueue()
        # On a terminal the kernel gets a terminal as well, so it prints in colours.
        reading, writing = pty.openpty() if sys.stdout.isatty() else os.pipe()
        # A session of its own: Ctrl-C goes only to the demo, which then stops the kernel in order.
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
                    self._printed.put(ConsoleLine(text, COLOUR.sub("", text), time.monotonic()))
            except OSError:
                pass  # EIO: the terminal's last process has ended
        self._printed.put(None)

    def lines(self, seconds: float) -> Iterator[ConsoleLine]:
        """The lines of its console as they come, until the kernel ends; :class:`DemoError` after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise DemoError(f"the kernel's next line did not come within {seconds:g} s") from None
            if line is None:
                return
            yield line

    def wait_for_line(self, pattern: str, seconds: float, show: bool = True) -> ConsoleLine:
        """Show its console up to the first line that matches ``pattern``."""
        missed: list[str] = []
        for line in self.lines(seconds):
            if show:
                click.echo(line.text)
            missed.append(line.plain)
            if re.search(pattern, line.plain):
                return line
        raise DemoError("the kernel has ended: " + "\n".join(missed[-5:]))

    def stop(self, show: bool = False) -> None:
        """Send SIGTERM and wait for its end; :class:`DemoError` if its exit status isn't 0."""
        self.process.send_signal(signal.SIGTERM)
        for line in self.lines(STOP_TIMEOUT):
            if show:
                click.echo(line.text)
        if (status := self.process.wait(STOP_TIMEOUT)) != 0:
            raise DemoError(f"the kernel stopped with exit status {status}")

    def ensure_stopped(self) -> None:
        """Stop it if it still runs, by SIGKILL if needed; its agents end with it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)


@contextlib.contextmanager
def stopped_with_this_process() -> Iterator[Callable[[], None]]:
    """Yields what a new process calls before its exec: it gets SIGTERM if this process ends, also by SIGKILL."""
    # Not a parent-death signal: it follows the thread that forks, not the process.
    guard = subprocess.Popen(
        ["sh", "-c", 'read -r pid; read -r _; test -z "$pid" || kill "$pid"'],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
    pipe = guard.stdin.fileno()

    def register() -> None:
        os.write(pipe, f"{os.getpid()}\n".encode())  # by itself: its parent may be killed right after the fork

    try:
        yield register
    finally:
        guard.kill()
        guard.communicate()


@contextlib.contextmanager
def kernel(config: Path | None = None, show: bool = False, state_of: str | None = None) -> Iterator[Kernel]:
    """A kernel that is ready; it is stopped at the end in any case. ``state_of``: a directory that outlives it."""
    directory = state_of or tempfile.mkdtemp(prefix="aos-demo-")
    try:
        with kernel_cgroup() as group, stopped_with_this_process() as register:

            def begin() -> None:
                register()
                if group is not None:  # otherwise it would share this process's control group
                    Path(group, "cgroup.procs").write_text("0")

            running = Kernel(directory, config, begin)
            try:
                running.wait_for_line(r"kernel \| ready, ", START_TIMEOUT, show)
                yield running
            finally:
                running.ensure_stopped()
    finally:
        if state_of is None:
            shutil.rmtree(directory, ignore_errors=True)


def agentos(socket: str, *words: str) -> None:
    """Run an ``agentos`` command and print it with its output."""
    click.secho(f"$ agentos {' '.join(words)}", bold=True)
    command = [sys.executable, "-P", "-m", "agentos", *words, "--socket", socket]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        raise DemoError(f"agentos {' '.join(words)} failed")


@contextlib.contextmanager
def shared_directory() -> Iterator[Path]:
    """A directory that agents may write as their workspace, whatever their uid is; removed at the end."""
    place = Path(tempfile.mkdtemp(prefix="aos-demo-"))
    try:
        place.chmod(0o777)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def ask_agent(client: AgentOSClient, name: str, message: object) -> Any:
    """What an agent answers to a message; :class:`DemoError` if it doesn't."""
    sent = client.send_message(message, to_name=name)
    check(sent["success"], f"{name} can be asked: {sent.get('error')}")
    came = client.recv_messages(max_messages=1, timeout=PATIENCE)["messages"]
    check(bool(came), f"{name} answers")
    return came[0]["message"]


def audited(client: AgentOSClient, category: str, least: int = 1, **fields: object) -> list[dict[str, Any]]:
    """The entries of the audit log in one category that have these fields, the oldest first.

    Waits for ``least`` of them: outcomes are written a moment after their calls.
    """
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        entries = client.get_audit_log(category=category, limit=1000)["entries"]  # type: ignore[arg-type]
        found[:] = [entry for entry in entries if all(entry.get(name) == value for name, value in fields.items())]
        return len(found) >= least

    until(is_there, f"the audit log has {least} entries of {fields}")
    return found


# -- A demo ------------------------------------------------------------------------------------------------------------


def run_demo(demo: Callable[[], None]) -> None:
    """Run a demo: its kernel is stopped in any case, and an error is one line."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    try:
        demo()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (DemoError, AgentOSError) as error:  # some of which are an OSError
        click.secho(f"\n{error}", fg="red", err=True)
        sys.exit(1)
    except OSError as error:
        if error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as `head` does
            sys.exit(128 + signal.SIGPIPE)
        sys.exit(f"the output: {error.strerror}")


def exit_on_signal(number: int, _: object) -> None:
    sys.exit(128 + number)


KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")


def run_demo_with_model(demo: Callable[[Path | None], None], config: Path, description: str) -> None:
    """Run a demo with the configuration of scripted answers, or with ``--real`` without one: a real model answers."""
    parser = argparse.ArgumentParser(prog=f"agentos demo {config.parent.name}", description=description)
    parser.add_argument("--real", action="store_true", help=f"ask a real model: set one of {', '.join(KEYS)}")
    is_real: bool = parser.parse_args().real

    def run() -> None:
        title(description)
        if is_real:
            check_key()
            say("A real model answers: the one with a key in your environment.")
        else:
            say("No model is called: the answers are rules about the question (rules.toml). --real calls one.")
        demo(None if is_real else config)

    run_demo(run)


def check_key() -> None:
    """Raise :class:`DemoError` if no real model can be asked."""
    if not any(os.environ.get(key) for key in KEYS):
        raise DemoError(f"--real asks a real model: set its key, {', '.join(KEYS[:-1])} or {KEYS[-1]}")


def run_demo_with_kernel(demo: Callable[[str], None], description: str) -> None:
    """Run a demo against the kernel at ``--socket PATH``, or against one that is started for it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--socket", metavar="PATH", help="socket of a running kernel; default: start one")
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
            say("The kernel was stopped, and with it all remaining agents.")

    run_demo(run)
