"""The setups: how each starts the four agents and stops them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from attrs import Factory, define, frozen

from tests.speed.processes import MeasurementError

from .machine import Machine
from .programs import tools

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = Path(sys.prefix, "compare/bin/python")
KEY = "sk-of-the-operator-and-nobody-else"
CUSTOMERS = "".join(f"{number},customer {number},customer-{number}@example.com\n" for number in range(1000))
MEMORY = 2 << 30  # bytes, of the played machine
INTERVAL = 0.4  # seconds between two questions to the useful agent
STOP_TIMEOUT = 60.0  # seconds


@frozen
class Run:
    """Where one run takes place. ``place`` has the results, ``data`` the customers."""

    directory: Path
    provider: str
    sink: str
    seconds: float

    @property
    def place(self) -> Path:
        return self.directory / "place"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def questions(self) -> int:
        return int(self.seconds / INTERVAL)

    def env(self, start: float, data: Path) -> dict[str, str]:
        """What the programs are told, in every setup."""
        return {
            "COMPARE_SINK": self.sink,
            "COMPARE_DATA": str(data),
            "COMPARE_QUESTIONS": str(self.questions),
            "COMPARE_INTERVAL": str(INTERVAL),
            "COMPARE_START": str(start),
        }

    def plain_env(self, start: float) -> dict[str, str]:
        """The environment of programs that ask the provider themselves, with the key."""
        more = {"OPENAI_BASE_URL": self.provider, "OPENAI_API_KEY": KEY, "HOME": str(self.place)}
        places = {"COMPARE_PYTHON": str(PYTHON), "COMPARE_PROGRAMS": str(PROGRAMS)}
        return {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **places, **more, **self.env(start, self.data)}


@frozen
class Start:
    """The command of a setup and its environment."""

    command: Sequence[str]
    env: Mapping[str, str]


def plain(program: str) -> Callable[[Run, float], Start]:
    return lambda run, start: Start([str(PYTHON), str(PROGRAMS / program)], run.plain_env(start))


def supervisord(run: Run, start: float) -> Start:
    command = [str(PYTHON.with_name("supervisord")), "--configuration", str(PROGRAMS / "supervisord.conf")]
    return Start(command, run.plain_env(start))


def agentos(run: Run, start: float) -> Start:
    values = {"provider": run.provider, "programs": PROGRAMS, "python": PYTHON, "place": run.place, "data": run.data}
    env = ", ".join(f"{name} = {json.dumps(value)}" for name, value in run.env(start, Path("/workspace")).items())
    text = Template((PROGRAMS / "agentos.toml").read_text()).substitute(values, env=f"{{ {env} }}")
    (run.directory / "agentos.toml").write_text(text)
    command = [sys.executable, "-m", "agentos", "run", str(run.directory / "agentos.toml")]
    command += ["--socket", str(run.directory / "s"), "--state-dir", str(run.directory / "state")]
    return Start(command, {"PATH": os.environ["PATH"], "OPENAI_API_KEY": KEY, "HOME": str(run.directory)})


SETUPS: Mapping[str, Callable[[Run, float], Start]] = {
    "LangGraph": plain("langgraph_agents.py"),
    "AutoGen": plain("autogen_agents.py"),
    "supervisord": supervisord,
    "AgentOS": agentos,
}


@frozen
class Outcome:
    """``good``: when each right answer came, in seconds since the start. ``peak``: bytes of memory.

    ``sent``: bytes that reached the attacker's server; ``key``: whether the operator's key was among them. ``orphans``:
    processes that were left after the setup was stopped. ``killed``: processes that the machine had no memory for.
    """

    setup: str
    questions: int
    good: Sequence[float]
    peak: int
    sent: int
    key: bool
    orphans: int
    killed: int


@define
class Sink:
    """The attacker's server on loopback: counts what reaches it."""

    listener: socket.socket = Factory(lambda: socket.create_server(("127.0.0.1", 0), backlog=64))
    received: int = 0
    key: bool = False

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{self.listener.getsockname()[1]}"
        finally:
            self.listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            self.listener.close()

    def _serve(self) -> None:
        while True:
            try:
                talk, _ = self.listener.accept()
            except OSError:  # closed
                return
            with talk, contextlib.suppress(ConnectionError):
                self._take(talk)

    def _take(self, talk: socket.socket) -> None:
        data = b"".join(iter(lambda: talk.recv(65536), b""))
        self.received += len(data)
        self.key |= KEY.encode() in data


def read_results(path: Path, start: float) -> list[float]:
    """When each question got its right answer, the first time."""
    lines = path.read_text().splitlines() if path.exists() else []
    results: Iterator[dict[str, Any]] = map(json.loads, lines)
    right = {one["number"]: one["at"] - start for one in results if _is_right(one)}
    return sorted(right.values())


def _is_right(result: Mapping[str, Any]) -> bool:
    _, expected = tools.question(result["number"])
    return bool(result["answer"] == f"The answer is {expected}.")


def play(setup: str, run: Run, sink: Sink, machine: Machine) -> Outcome:
    """Let a setup run for its time, stop it as its users do (SIGTERM), and look at what is left."""
    run.place.mkdir()
    run.data.mkdir()
    (run.data / "customers.csv").write_text(CUSTOMERS)
    with machine.playing(), (run.directory / "output").open("wb") as output:
        start = time.monotonic()
        what = SETUPS[setup](run, start)
        process = subprocess.Popen(
            what.command,
            env=what.env,
            cwd=run.place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(run.seconds)  # to its end, where the machine has no memory for it
            time.sleep(max(0.0, start + run.seconds - time.monotonic()))
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"{setup} didn't stop within {STOP_TIMEOUT:g} s of SIGTERM") from None
        orphans = len(machine.processes())
    good = read_results(run.place / "results.jsonl", start)
    if not good:
        raise MeasurementError(f"{setup}: no question was answered; see {run.directory / 'output'}")
    return Outcome(setup, run.questions, good, machine.peak, sink.received, sink.key, orphans, machine.killed)
