"""The processes of a measurement: started on one CPU, watched until they are ready, ended by their pid."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.speed.proc import family, kill_all
from tests.support.kernel import GUARD

ROOT = Path(__file__).parents[2]
READY = re.compile(r"\bready\b", re.IGNORECASE)
STOP_TIMEOUT = 20.0  # seconds that a server may take to stop after SIGTERM


class MeasurementError(Exception):
    """Something did not run or answered wrongly: there is no number, which is not the same as a bad one."""


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """What is started within inherits the one CPU; ``None`` leaves it free."""
    before = os.sched_getaffinity(0)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def elsewhere(cpu: int) -> Iterator[None]:
    """What is started within, threads too, uses the other CPUs, if there are any."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - {cpu} or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def give_way() -> None:
    """Let this thread, and all that it starts from here on, run only while nothing else wants their CPU.

    For what keeps the kernel busy while others are measured: these would wait for it up to a time slice, 3 ms.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def allow_open_files(wanted: int) -> None:
    """Raise the limit of open files, which what is started inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise MeasurementError(f"{wanted} open files are needed; the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def finish(measuring: "subprocess.Popen[str]") -> dict[str, float]:
    """What a process that measures prints at its end, a JSON object."""
    out, _ = measuring.communicate(timeout=60)
    if measuring.returncode != 0:
        raise MeasurementError(f"{measuring.args!r} has failed")
    numbers: dict[str, float] = json.loads(out)
    return numbers


class Server:
    """A server in the foreground that prints a line with the word ``ready`` when it can be talked to."""

    def __init__(self, argv: Sequence[str], socket: Path, cpu: int | None) -> None:
        self.socket = socket
        self.errors = socket.with_suffix(".stderr")
        self.ready_at = 0.0
        self._ready = threading.Event()
        with pinned(cpu), self.errors.open("wb") as errors:
            self.started_at = time.monotonic()
            # A session of its own: a ^C in the terminal is ours, and we end what we started in order.
            self.process = subprocess.Popen(
                argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        # Kills it if we are killed.
        self._guard = subprocess.Popen([*GUARD, str(self.pid)], stdin=subprocess.PIPE, start_new_session=True)
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read_output(self) -> None:
        """To the end, not just to the ready line: a full pipe would block the server."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not self.ready_at and READY.search(line.decode(errors="replace")):
                self.ready_at = time.monotonic()
                self._ready.set()
        self._ready.set()

    def wait_ready(self, timeout: float) -> None:
        self._ready.wait(timeout)
        if not self.ready_at:
            raise MeasurementError(f"{self.process.args!r} was not ready within {timeout:g} s: {self.last_words()}")

    def last_words(self) -> str:
        text = self.errors.read_text(errors="replace").strip()
        return text[-500:] or "it said nothing on stderr"

    def stop(self) -> float:
        """SIGTERM, then the seconds until it had ended, which must be with status 0."""
        begin = time.monotonic()
        self._guard.kill()  # while its server's pid is no other process's
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"the server did not stop within {STOP_TIMEOUT:g} s of SIGTERM") from None
        if status != 0:
            raise MeasurementError(f"the server stopped with status {status}: {self.last_words()}")
        return time.monotonic() - begin

    def end(self) -> None:
        """However it stands, and what it started; does nothing to one that was stopped."""
        self._guard.kill()
        self._guard.communicate()
        if self.process.poll() is None:
            started = family(self.pid)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                started |= family(self.pid)
                self.process.kill()
                self.process.wait()
            kill_all(started | family(self.pid))  # it may have started more meanwhile
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def serving(server: Server, timeout: float) -> Iterator[Server]:
    """From its ready line to its end; a server that fell over in between did not serve."""
    try:
        server.wait_ready(timeout)
        yield server
        if server.process.poll() not in (None, 0):
            raise MeasurementError(f"the server ended by itself: {server.last_words()}")
    finally:
        server.end()
