"""A process that has imported AgentOS and forks kernels and commands: three quarters of their start are imports.

A forked one is ``agentos``, or after ``-c`` a program's text, with its own arguments, environment, directory, session
and standard streams. It differs from one that was executed in /proc/PID/cmdline and /proc/PID/environ, which are the
server's, and frees no objects at its end, as that would copy the server's memory. The server has one thread, so a
kernel is bound to the server's life by its parent-death signal, and the server ends when the tests' end of its socket
is closed: no kernel outlives the tests, even if they are killed.

One message a request: JSON (argv, cwd, env, group, crippled) with four descriptors, the standard streams and a pipe to
which the server writes the exit status; the answer is the pid, with a pidfd.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NoReturn

from agentos.permissions.levels import default
from agentos.permissions.patterns.base import Names
from agentos.permissions.sets.examples import compile_set
from agentos.sandbox.filters.seccomp import build_filter

ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_REQUEST = 1 << 18  # bytes; an environment has some thousand
STATUS = struct.Struct("i")
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
PRELOADED = (
    "agentos.__main__",
    "agentos.userland.cli.main",
    "agentos.userland.cli.kernel.run",
    "agentos.userland.cli.console",
    "agentos.userland.cli.approvals.notify",
    "agentos.userland.cli.kernel.display",
    "agentos.boot.run",
    "agentos.boot.host",
    "agentos.config.load",
    "agentos.config.tables.dashboard",
    "agentos.llm.providers.offline",
    "agentos.userland.web.serve",
    "importlib.readers",
    "tests.tools.crippled",
)
# What is imported because of these words in a configuration or arguments: the first process pays for the others.
WANTED = {
    "mcp --": "agentos.userland.mcp.server",
    "tests.userland.mcp.stdio_server": "tests.userland.mcp.stdio_server",
    "[mcp.servers": "agentos.mcp.connection.client",
    "openai_endpoint = true": "agentos.gateways.endpoint",
    "[metrics]": "agentos.telemetry.metrics_endpoint",
    "demos.": "demos.stage",
}
# Each imports what it needs when it is called; the first that isn't "run" pays for the others.
COMMANDS = Path(__file__).parents[2] / "agentos" / "userland" / "cli"
# What a new interpreter would read at its start has no effect on a forked one.
START_VARIABLES = ("PYTHON", "LANG", "LC_", "MALLOC_", "LD_", "COVERAGE_")


class Forked:
    """A forked process, with the part of ``subprocess.Popen`` that tests use."""

    stdout: IO[str] | None = None  # of a kernel

    def __init__(self, pid: int, pidfd: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd, self._status = pidfd, status
        self._turn = threading.Lock()

    def fileno(self) -> int:
        """Of what becomes readable when it ends, until its status was read."""
        return self._status

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._read_status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status once it has ended. ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        status = self._read_status(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("agentos", timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _read_status(self, timeout: float | None) -> int | None:
        with self._turn:
            if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
                text = os.read(self._status, STATUS.size)
                assert text, f"the process that forked {self.pid} has ended"
                (self.returncode,) = STATUS.unpack(text)
                os.close(self._status)
                os.close(self._pidfd)
            return self.returncode


class ForkServer:
    """The server, seen from the tests."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # kernels' are pipes, too: text files look whether they can seek
                stderr=subprocess.STDOUT,
                pass_fds=[its.fileno()],
                start_new_session=True,
                cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
            )
        self._turn = threading.Lock()
        atexit.register(self.close)

    def start_kernel(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        group: str | None = None,
        crippled: Sequence[str] = (),
    ) -> Forked:
        """Fork ``agentos`` with these arguments; its ``stdout`` is a pipe for its output and its errors.

        ``group`` is the directory of a control group that it enters first. ``crippled`` are options of
        ``tests.tools.crippled``, which take something of the host away from it.
        """
        output, its_output = os.pipe()
        with open(os.devnull) as nothing, open(its_output) as its:
            kernel = self.fork(argv, cwd, env, [nothing.fileno(), its.fileno(), its.fileno()], group, crippled)
        kernel.stdout = os.fdopen(output, errors="backslashreplace")
        return kernel

    def run(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        given: bytes | None,
        timeout: float,
        crippled: Sequence[str] = (),
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run ``agentos``, or after ``-c`` a program's text, as ``subprocess.run`` does.

        ``given`` is on its standard input; None: /dev/null.
        """
        with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
            theirs, ours = zip(os.pipe(), *(os.pipe()[::-1] for _ in range(2)), strict=True)
            files = [stack.enter_context(open(fd, mode)) for fd, mode in zip(ours, ("wb", "rb", "rb"), strict=True)]
            with contextlib.ExitStack() as only_theirs:
                streams = [only_theirs.enter_context(open(fd, "rb", 0)).fileno() for fd in theirs]
                if given is None:
                    streams[0] = only_theirs.enter_context(open(os.devnull)).fileno()
                command = self.fork(argv, cwd, env, streams, crippled=crippled)
            feeding = pool.submit(feed, files[0], given or b"")
            printed = [pool.submit(file.read) for file in files[1:]]
            try:
                status = command.wait(timeout)
            except subprocess.TimeoutExpired:
                command.kill()
                raise
            feeding.result()
            return subprocess.CompletedProcess(["agentos", *argv], status, *(each.result() for each in printed))

    def fork(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        streams: Sequence[int],
        group: str | None = None,
        crippled: Sequence[str] = (),
    ) -> Forked:
        """Fork ``agentos`` with these arguments and standard streams, which stay open here."""
        status, its_status = os.pipe()
        try:
            asked = {"argv": list(argv), "cwd": cwd, "env": dict(env), "group": group, "crippled": list(crippled)}
            request = json.dumps(asked).encode()
            with self._turn:
                socket.send_fds(self._socket, [request], [*streams, its_status])
                answer, fds, _, _ = socket.recv_fds(self._socket, 64, 1)
        except ConnectionError:
            answer = b""
        finally:
            os.close(its_status)
        assert answer, f"the process that forks has ended: {self._process.communicate()[0].decode()}"
        return Forked(int(answer), fds[0], status)

    def close(self) -> None:
        """End the server, and with it the kernels that still run."""
        self._socket.close()
        self._process.communicate()


@functools.cache
def shared() -> ForkServer:
    """The server of this process of the tests, started at its first use."""
    return ForkServer()


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether a forked process obeys these variables."""
    return all(value == os.environ.get(name) for name, value in env.items() if name.startswith(START_VARIABLES))


def feed(pipe: IO[bytes], data: bytes) -> None:
    """Write all, as far as it is read, and close the pipe."""
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(data)


class Server:
    """The server in its own process."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.running: dict[int, int] = {}  # pid: the pipe for its exit status

    def serve(self) -> list[str]:
        """Fork for each request. Returns only in a forked process, with its arguments."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while True:
            ready, _, _ = select.select([self.channel.fileno(), woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                self._reap()
            if self.channel.fileno() in ready:
                request, fds, _, _ = socket.recv_fds(self.channel, MAX_REQUEST, 4)
                if not request:
                    self._end()
                asked = json.loads(request)
                if not asked["crippled"]:
                    import_wanted(asked["argv"], asked["cwd"])
                if asked["argv"][:1] not in (["run"], ["-c"]):
                    import_commands()
                # An interpreter forgets what it was sent before it knows that it is the child: until then signals wait.
                signal.pthread_sigmask(signal.SIG_BLOCK, ASKED_TO_END)
                pid = os.fork()
                if pid == 0:
                    if asked["group"] is not None:
                        enter_group(asked["group"])
                    become_program(asked["cwd"], asked["env"], fds[:3])
                    if asked["crippled"]:
                        sys.modules["tests.tools.crippled"].take_away(asked["crippled"])
                        die_with(os.getppid())  # a user namespace of its own has undone it
                    return list(asked["argv"])
                signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED_TO_END)
                for fd in fds[:3]:
                    os.close(fd)
                self.running[pid] = fds[3]
                pidfd = os.pidfd_open(pid)
                socket.send_fds(self.channel, [str(pid).encode()], [pidfd])
                os.close(pidfd)

    def _reap(self) -> None:
        for pid in list(self.running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                pipe = self.running.pop(pid)
                with contextlib.suppress(BrokenPipeError):
                    os.write(pipe, STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(pipe)

    def _end(self) -> NoReturn:
        """The tests have ended: what runs is killed, and what kernels leave ends with them."""
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        for pid in self.running:
            os.waitpid(pid, 0)
        os._exit(0)


def compute_ahead() -> None:
    """Compute what each kernel keeps in caches whatever its configuration: patterns of permissions, and a filter."""
    for jailed in (True, False):
        compile_set(default(jailed), Names("/"))
    build_filter("standard", os.uname().machine)


def import_wanted(argv: Sequence[str], place: str) -> None:
    """Import what these arguments want, and the configuration in this directory."""
    path = Path(place, "agentos.toml")
    try:
        configuration = path.read_text() if path.is_file() else ""  # a FIFO would be waited for
    except (OSError, ValueError):
        configuration = ""
    text = " ".join([*argv, configuration])
    if missing := {module for words, module in WANTED.items() if words in text} - sys.modules.keys():
        for name in missing:
            importlib.import_module(name)
        gc.freeze()


@functools.cache
def import_commands() -> None:
    """Import all modules of the command line."""
    for file in sorted(COMMANDS.rglob("[a-z]*.py")):
        importlib.import_module(module_name(file))
    gc.freeze()


def become_program(cwd: str, env: Mapping[str, str], streams: Sequence[int]) -> None:
    """What ``subprocess.Popen`` and the start of an interpreter do for one that is executed."""
    die_with(os.getppid())
    signal.set_wakeup_fd(-1)
    for handled in (signal.SIGCHLD, signal.SIGWINCH):  # readline, which the server has imported, handles the latter
        signal.signal(handled, signal.SIG_DFL)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # its controlling terminal
    if os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.closerange(3, 1 << 16)
    os.chdir(cwd)
    sys.path[0] = cwd
    os.environ.clear()
    for name in ("COLUMNS", "LINES"):  # readline has set both, which os.environ doesn't know
        os.unsetenv(name)
    os.environ.update(env)
    time.tzset()


def die_with(parent: int) -> None:
    """Be killed when the parent ends; be seen in /proc by our own user."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def enter_group(directory: str) -> None:
    """Enter a control group of version 2."""
    Path(directory, "cgroup.procs").write_text("0")


def module_name(file: Path) -> str:
    """The name of a module of the command line."""
    return ".".join(["agentos.userland.cli", *file.relative_to(COMMANDS).with_suffix("").parts])


def leave(status: int) -> None:
    """End a forked program as an interpreter ends, but without freeing its objects, which copies the server's memory.

    Output that can't be written is left to the interpreter's own end, which reports it.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            try:
                stream.flush()
            except (OSError, ValueError):
                sys.exit(status)
    os._exit(status)


def main() -> None:
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    compute_ahead()
    gc.freeze()
    gc.enable()
    argv = Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    module = sys.modules["agentos.__main__"]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED_TO_END)
        if argv[:1] == ["-c"]:
            sys.argv = ["-c", *argv[2:]]
            exec(argv[1], {"__name__": "__main__"})
        else:
            sys.argv = [str(module.__file__), *argv]
            module.main()
    except KeyboardInterrupt:
        leave(128 + signal.SIGINT)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        leave(end.code or 0)
    leave(0)


if __name__ == "__main__":
    main()
