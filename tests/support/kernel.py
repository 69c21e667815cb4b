"""A real kernel in a process of its own, watched from its first line to its last."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from agentos_sdk import AgentOSClient
from tests.support import fork_server
from tests.support.runs import costs
from tests.support.wire import LIST, NOOP, PATIENCE, SPAWN, Wire

PROGRAM = (sys.executable, "-m", "agentos", "run")
SCOPE: str | None = None  # a test runner's directory, in which each kernel gets a control group of its own
# Its standard input ends when we do, by SIGKILL too. Not a death signal: that follows a thread, not a process.
GUARD = ("sh", "-c", 'read -r _; kill -9 "$1"', "sh")
# Opens a terminal that nothing else uses; the first one that a session's leader opens becomes its controlling terminal.
IN_TERMINAL = (
    sys.executable,
    "-c",
    "import os, pty, signal, sys; ours, its = pty.openpty(); os.set_inheritable(ours, True); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # the tests may run under nohup
    "os.open(os.ttyname(its), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])",
)
LATER_FILES = 4  # that a kernel opens when they are needed first, and keeps
READY, PROBED = re.compile(r"\| ready, listening on"), re.compile(r"\| isolation ")


class Kernel:
    """``agentos run`` in a short temporary directory, with a socket, a state directory and a home of its own.

    ``toml`` is the text of its configuration, written to ``agentos.toml`` there; None = without one. ``options`` are
    further ones of ``agentos run``. With ``terminal`` it has a controlling terminal, which is not its output. ``group``
    is the directory of a cgroup that it enters first; ``crippled`` are options of ``tests.tools.crippled``, which take
    something of the host away from it. It is forked from a process that has imported its modules, unless
    one of these asks for a new interpreter, or ``execute`` does.
    """

    def __init__(
        self,
        toml: str | None = None,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        terminal: bool = False,
        group: str | None = None,
        execute: bool = False,
        crippled: Sequence[str] = (),
    ) -> None:
        # Short, because a socket's path has at most 107 bytes.
        self.place = Path(tempfile.mkdtemp(prefix="aos-", dir="/tmp"))
        self.socket = str(self.place / "s")
        self.state_dir = self.place / "state"
        self.lines: list[str] = []
        self._env, self.options, self._terminal, self._group = env or {}, options, terminal, group
        self._is_forked = not (execute or terminal) and fork_server.can_fork(self._env)
        assert self._is_forked or not crippled, "only a forked kernel can be crippled"
        self._crippled = crippled
        self.process: subprocess.Popen[str] | fork_server.Forked
        self._news = threading.Condition()
        self._closed = False
        if toml is not None:
            (self.place / "agentos.toml").write_text(toml)
        self._config = ["agentos.toml"] if toml is not None else []
        self._begin()

    def _begin(self) -> None:
        assert costs.may_start_kernels, "a test that starts a kernel uses the fixture kernel, own_kernel or kernels"
        self._closed = False
        self.is_over = False  # a test waited for its end
        self._left_nothing = False  # by its own stop
        self._first_lines = 0  # that it said until it was ready
        arguments = [*self._config, *self.options, "--socket", self.socket, "--state-dir", str(self.state_dir)]
        self._guard: subprocess.Popen[bytes] | None = None
        group = make_group(SCOPE) if SCOPE is not None else self._group
        if self._is_forked:
            env = {**environment(self.place), **self._env}
            argv, place = ["run", *arguments], str(self.place)
            self.process = fork_server.shared().start_kernel(argv, place, env, group, self._crippled)
        else:
            self._execute(arguments, group)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _execute(self, arguments: Sequence[str], group: str | None) -> None:
        """Start it as a program of its own, with a guard that kills it when the tests end."""
        self.process = subprocess.Popen(
            [*(IN_TERMINAL if self._terminal else ()), *PROGRAM, *arguments],
            cwd=self.place,
            env={**environment(self.place), **self._env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a ^C in the terminal is for the tests, which end it in order
            preexec_fn=None if group is None else partial(fork_server.enter_group, group),
        )
        self._guard = subprocess.Popen(
            [*GUARD, str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """Everything it printed so far."""
        with self._news:
            return "\n".join(self.lines)

    def wait_ready(self) -> None:
        """Until it is ready, has also tried which isolation it can give, and each agent is up or has failed."""
        self.wait_line(READY)
        self.wait_line(PROBED)
        with self.client() as client:
            until(lambda: not waiting(client.list_agents(all=True)), "each agent's first start has come out")
        self._first_lines = len(self.lines)

    def wait_line(self, pattern: str | re.Pattern[str], since: int = 0) -> str:
        """The first line from number ``since`` on that matches; fails when it ends or the deadline passes first."""
        found = re.compile(pattern)
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while True:
                for line in self.lines[since:]:
                    if found.search(line):
                        return line
                left = deadline - time.monotonic()
                if self._closed or left <= 0:
                    why = "ended" if self._closed else f"took more than {PATIENCE:g} s"
                    text = "\n".join(self.lines)
                    raise AssertionError(f"the kernel {why} before it said {found.pattern!r}:\n{text}")
                self._news.wait(left)

    def connect(self, timeout: float = PATIENCE) -> Wire:
        """A raw connection; close it, or use it in ``with``."""
        return Wire(self.socket, timeout)

    def client(self, timeout: float | None = PATIENCE) -> AgentOSClient:
        """The SDK's blocking client, to be used in ``with``."""
        return AgentOSClient(self.socket, timeout)

    def spawn(self, name: str, command: Sequence[str] = ("sleep", "1000"), **more: object) -> int:
        """An agent that runs ``command``; its id."""
        with self.connect() as wire:
            reply = wire.call(SPAWN, {"name": name, "command": list(command), **more})
        assert reply["success"], reply
        return int(reply["id"])

    def connect_as(self, agent: int, timeout: float = PATIENCE) -> Wire:
        """A raw connection to an agent's own socket: who comes in there is that agent."""
        return Wire(str(self.runtime / f"{agent}.sock"), timeout)

    @property
    def runtime(self) -> Path:
        """The directory of this run: of its agents' sockets, and of what is made for them."""
        return Path(self._run["directory"])

    @property
    def run_id(self) -> str:
        """What every process of this run carries in its environment as AGENTOS_RUN_ID."""
        return str(self._run["id"])

    @property
    def _run(self) -> dict[str, str]:
        note: dict[str, str] = json.loads((self.state_dir / "run.json").read_text())
        return note

    @property
    def family(self) -> "Sequence[Process]":
        """All that descends from it, in jails or not, but for the process that makes the jails, and one made ahead."""
        return [one for one in descendants(self.pid) if not is_zygote(one.pid)]

    def processes(self) -> Sequence[int]:
        """The pids of the processes that were started by this run's agents or as such; the kernel isn't among them."""
        return marked(f"AGENTOS_RUN_ID={self.run_id}")

    def processes_of_agent(self, agent_id: int) -> Sequence[int]:
        """The pids of the living processes of one of its agents; other kernels give out the same ids."""
        return marked(f"AGENTOS_RUN_ID={self.run_id}", f"AGENTOS_AGENT_ID={agent_id}")

    @property
    def rss(self) -> int:
        """Bytes of memory it holds now."""
        return proc_status(self.pid, "VmRSS") << 10

    @property
    def peak_rss(self) -> int:
        """Bytes of memory it held at most."""
        return proc_status(self.pid, "VmHWM") << 10

    @property
    def cpu_seconds(self) -> float:
        """Seconds of CPU time that all its threads have used: no other process makes them more."""
        return time.clock_gettime(~self.pid << 3 | 2)  # include/linux/posix-timers_types.h: a pid and CPUCLOCK_SCHED

    @property
    def open_files(self) -> int:
        """File descriptors it holds, but for the two of a process made ahead; Linux from 6.2 on tells that to all.

        Such a process is there shortly before its two descriptors: two counts in a row have to agree.
        """
        count, again = self._count_files(), -1
        for _ in range(20):
            time.sleep(0.02)
            count, again = self._count_files(), count
            if count == again:
                break
        return count

    @property
    def shows_files(self) -> bool:
        """Whether its descriptors can be counted: Linux before 6.2 hides their number from a user."""
        directory = f"/proc/{self.pid}/fd"
        return os.access(directory, os.R_OK) or os.stat(directory).st_size > 0

    def _count_files(self) -> int:
        ahead = max(0, sum(is_zygote(one.pid) for one in descendants(self.pid)) - 1)
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd")) - 2 * ahead
        except PermissionError:
            count = os.stat(f"/proc/{self.pid}/fd").st_size
            assert count, "this Linux is older than 6.2"
            return count - 2 * ahead

    @property
    def connections(self) -> int:
        """Connections to its operator's socket that it holds open, waiting for it to accept them or not."""
        with open("/proc/net/unix") as file:
            lines = [line.split() for line in file if line.rstrip().endswith(f" {self.socket}")]
        return sum(line[3] != "00010000" for line in lines)  # that flag: the listening socket itself

    def agents(self) -> set[str]:
        """The names of its agents that haven't ended."""
        with self.client() as client:
            return {agent["name"] for agent in client.list_agents() if agent["state"] not in ("exited", "failed")}

    def pending(self) -> Mapping[str, int]:
        """The lengths of its queues that aren't empty: questions, messages, approvals, entries of the audit."""
        with self.client() as client:
            waiting: Mapping[str, int] = client.metrics()["metrics"]["kernel"]["waiting"]
        return {name: length for name, length in waiting.items() if length}

    def forget_lines(self) -> None:
        """Forget what it said since it was ready: a test of several that share it looks at its own lines."""
        self._require_no_bug()
        with self._news:
            del self.lines[self._first_lines :]

    def _require_no_bug(self) -> None:
        found = re.search(r" kernel \| (?:  \| )?(Traceback|bug [0-9a-f]{8} in )", said := self.said)
        assert not found, f"a bug was logged:\n{said}"

    def stop(self) -> None:
        """SIGTERM; it must end with status 0 and leave no process, no socket and no runtime directory."""
        status = self.process.poll()
        assert status is None, f"the kernel ended by itself with status {status}:\n{self.said}"
        run_id, family = self.run_id, descendants(self.pid)
        self.process.send_signal(signal.SIGTERM)
        status = self.wait_end()
        assert status == 0, f"the kernel ended with status {status}:\n{self.said}"
        left = marked(f"AGENTOS_RUN_ID={run_id}")
        assert not left, f"processes that outlived their kernel: {left}"
        until(lambda: not any(one.lives for one in family), "nobody who descends from it is left")
        assert not os.path.exists(self.socket), "the socket is still there"
        runtime = [name for name in os.listdir(self.place) if name.startswith("agentos-")]
        assert not runtime, f"a runtime directory is still there: {runtime}"
        self._require_no_bug()
        self._left_nothing = True

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer would."""
        self.process.kill()
        self.wait_end()

    def start_again(self) -> None:
        """A new kernel in the same place, once the one before has ended."""
        assert self.process.poll() is not None, "it still runs"
        self._close()
        self.lines.clear()
        self._begin()
        self.wait_ready()

    def wait_end(self) -> int:
        """Its exit status, once it has ended, which a test that asks for it expects it to do."""
        self.is_over = True
        status = self.process.wait(PATIENCE)
        self._dismiss_guard()
        self._reader.join(PATIENCE)
        return status

    def clean_up(self) -> None:
        """However it stands: nothing of it stays on this machine."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        with contextlib.suppress(FileNotFoundError, ValueError):
            for pid in () if self._left_nothing else self.processes():  # to look takes 3 ms
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._close()
        shutil.rmtree(self.place, ignore_errors=True)

    def _dismiss_guard(self) -> None:
        """End the guard while the pid is still this kernel's."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait(PATIENCE)
            assert self._guard.stdin is not None
            self._guard.stdin.close()

    def _close(self) -> None:
        self._dismiss_guard()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def answers(self, within: float = 30.0) -> bool:
        """Whether somebody who comes in now is served, and promptly."""
        begin = time.monotonic()
        with self.connect() as wire:
            assert wire.ask(NOOP, b"are you there?").body == b"are you there?"
            assert isinstance(wire.call(LIST), list)
        return time.monotonic() - begin < within


def make_group(scope: str) -> str:
    """A new control group of version 2 in ``scope``, a directory."""
    return tempfile.mkdtemp(prefix="kernel-", dir=scope)


@contextlib.contextmanager
def running(
    toml: str | None = None,
    env: Mapping[str, str] | None = None,
    group: str | None = None,
    crippled: Sequence[str] = (),
) -> Iterator[Kernel]:
    """A kernel from its ready line to its clean stop, which is asserted unless the test has seen to its end."""
    kernel = Kernel(toml, env, group=group, crippled=crippled)
    try:
        kernel.wait_ready()
        yield kernel
        if not kernel.is_over:
            kernel.stop()
    finally:
        kernel.clean_up()


@contextlib.contextmanager
def shared(toml: str | None = None, env: Mapping[str, str] | None = None) -> Iterator[Kernel]:
    """A kernel for the tests of a module. At its end their agents are killed, and what they asked is denied.

    Then no agent, connection, pending call or descriptor may be left.
    """
    with running(toml, env) as kernel:
        declared = kernel.agents()
        files = kernel.open_files + LATER_FILES if kernel.shows_files else None
        yield kernel
        if not kernel.is_over:
            with kernel.client() as client:
                for name in kernel.agents() - declared:
                    client.kill(name=name, grace=0)
                for entry in client.approvals()["pending"]:
                    client.decide(entry["id"], False)
            until(lambda: kernel.agents() <= declared, "no agent is left", show=kernel.agents)
            until(lambda: not kernel.connections, "no connection is left", show=lambda: kernel.connections)
            # Messages may wait: only those to declared agents still do, which outlive a test's restart of the kernel.
            until(lambda: kernel.pending().keys() <= {"mailboxes"}, "no call is pending", show=kernel.pending)
            if files is not None:
                until(lambda: kernel.open_files <= files, f"{files} files", show=lambda: kernel.open_files)


@contextlib.contextmanager
def killing_new_agents(kernel: Kernel) -> Iterator[None]:
    """Kill the agents that were spawned meanwhile; the older ones serve other tests."""
    with kernel.client() as client:
        former = {agent["id"] for agent in client.list_agents()}
    yield
    with kernel.client() as client:
        for agent in client.list_agents():
            if agent["id"] not in former and agent["state"] not in ("exited", "failed"):
                client.kill(agent_id=agent["id"], grace=0)


def waiting(agents: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """The agents whose first start has yet to come out; members of a group where one failed may not begin at all."""
    failed = {agent["supervisor"] for agent in agents if agent["state"] in ("backing_off", "exited", "failed")}
    first = [agent for agent in agents if agent["state"] == "starting" and agent["restarts"] == 0]
    return [agent["name"] for agent in first if agent["supervisor"] not in failed - {"root"}]


def environment(home: Path) -> dict[str, str]:
    """Ours, without what says where a kernel is, and with all that is kept in a home under ``home``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOS_")}
    return {**kept, "HOME": str(home), "XDG_STATE_HOME": str(home / "xdg-state"), "XDG_RUNTIME_DIR": str(home)}


def until(
    condition: Callable[[], object],
    what: str,
    seconds: float = PATIENCE,
    show: Callable[[], object] | None = None,
) -> None:
    """Return when ``condition()`` is true; fails with ``what``, and what ``show`` returns, if it isn't in time."""
    deadline = time.monotonic() + seconds
    delay = 0.002
    while not (last := condition()):
        if time.monotonic() >= deadline:
            seen = last if show is None else show()
            raise AssertionError(f"not within {seconds:g} s: {what}; the last value was {seen!r}")
        time.sleep(delay)
        delay = min(2 * delay, 0.05)  # many conditions ask the kernel, which costs both processes CPU time


def listens(path: str) -> bool:
    """Whether somebody accepts connections there: a socket's file exists a moment before it listens."""
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(path) == 0


class Process(NamedTuple):
    """``born`` (clock ticks since boot) tells it from a later one of the same number."""

    pid: int
    born: int

    @property
    def lives(self) -> bool:
        found = stat_of(self.pid)
        return found is not None and found[2] == self.born and found[0] != "Z"


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """State, parent and birth of a process, out of a file that is everybody's to read."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[1]), int(fields[19])
    return None


def descendants(pid: int) -> Sequence[Process]:
    """All that descend from a process now, zombies too."""
    found = {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := stat_of(int(name)))}
    line = [pid]
    for above in line:
        line += [below for below, (_, parent, _) in found.items() if parent == above]
    return [Process(one, found[one][2]) for one in line[1:]]


def is_zygote(pid: int) -> bool:
    """Whether this is what a kernel makes its jails with, or one that it has made ahead and that nobody has got yet."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path("/proc", str(pid), "comm").read_text() == "agentos-zygote\n"
    return False


def marked(*variables: str) -> Sequence[int]:
    """The pids of living processes that have all of ``NAME=value`` in the environment they were started with."""
    wanted = {variable.encode() for variable in variables}
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and wanted <= set(Path("/proc", name, "environ").read_bytes().split(b"\0")):
                found.append(int(name))
    return found


def proc_status(pid: int, field: str) -> int:
    """A number out of /proc/PID/status, which is everybody's to read: the kernel's other files are not."""
    for line in Path("/proc", str(pid), "status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0])
    raise AssertionError(f"/proc/{pid}/status has no {field}")
