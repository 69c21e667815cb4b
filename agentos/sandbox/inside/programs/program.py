"""Final setup before exec: standard streams, working directory, the confined message, signals."""

import errno
import fcntl
import os
import signal
import socket
import termios
from typing import NoReturn

from agentos.sandbox import steps as s
from agentos.sandbox.inside import libc, messages

from . import script, shebang

# Python ignores two of them, and the kernel may inherit more (nohup): an exec'ed program would inherit that.
_IGNORED_SIGNALS = [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]


def exec_without_shim(step: s.Execute | s.RunScript, control: socket.socket, stdout: int, stderr: int) -> NoReturn:
    """Become the program without a PID 1; the session is its own already."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # if the kernel died before this, the control socket is closed
    libc.set_signal_mask(blocked=True)
    exec_program(step, control, stdout, stderr)


def exec_program(step: s.Execute | s.RunScript, control: socket.socket, stdout: int, stderr: int) -> NoReturn:
    """Report that the process is confined, wait for go, and become the program; all signals are blocked until then.

    Errors are raised, and for a script :class:`script.Ready`.
    """
    terminal = isinstance(step, s.Execute) and step.terminal is not None
    two_way = isinstance(step, s.Execute) and step.two_way
    os.dup2(stdout if terminal or two_way else open_stdin(step), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # we lead a new session; signals of the terminal go to that
    libc.keep_only(control.fileno())
    os.chdir(step.directory)
    if isinstance(step, s.RunScript):
        libc.prctl(libc.PR_SET_DUMPABLE, 1)  # as after an exec
    messages.send(control, messages.CONFINED)
    messages.wait_for_go(control)
    if isinstance(step, s.RunScript):
        ready = script.read_script(step)
        libc.set_title(os.path.basename(step.argv[0]), "python3", *step.argv)
        control.close()  # as an exec does: it tells the kernel that the program runs
        raise ready
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    libc.set_signal_mask(blocked=False)
    try:
        os.execvpe(step.argv[0], step.argv, dict(step.environment))
    except OSError as error:
        found = shebang.explain(error, find_program(step.argv[0], dict(step.environment)))
        if isinstance(found, FileNotFoundError) and not isinstance(found, shebang.CannotExecute):
            # It names the last file that was tried, and the argv may have named no file.
            found = FileNotFoundError(error.errno, error.strerror, step.argv[0])
        raise found from None


def find_program(name: str, environment: dict[str, str]) -> str:
    """The file that exec finds for a name, itself if it finds none."""
    places = [] if "/" in name else environment.get("PATH", os.defpath).split(":")
    paths = (os.path.join(place, name) for place in places)
    return next((path for path in paths if os.access(path, os.X_OK)), name)


def spawn(step: s.Execute, stdin: int, stdout: int, stderr: int) -> int:
    """Start the program in a child that shares our memory until its exec; returns its pid. Its directory is ours.

    It is searched for as ``os.execvpe`` does, and errors are raised as there.
    """
    name, environment = step.argv[0], dict(step.environment)
    streams = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((stdin, stdout, stderr))]
    missing: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    failure: OSError | None = None
    places = [""] if "/" in name else environment.get("PATH", os.defpath).split(":")
    for path in [os.path.join(place, name) for place in places]:
        try:
            os.stat(path)  # costs less than a child that finds no file
            return os.posix_spawn(
                path,
                step.argv,
                environment,
                file_actions=streams,
                setsid=True,
                setsigmask=(),
                setsigdef=_IGNORED_SIGNALS,
            )
        except FileNotFoundError as error:
            found = shebang.explain(error, path)
            if isinstance(found, shebang.CannotExecute):
                failure = failure or found
            missing = FileNotFoundError(error.errno, error.strerror, name)  # the argv may have named no file
        except NotADirectoryError as error:
            missing = error
        except OSError as error:
            failure = failure or shebang.explain(error, path)
    raise failure or missing


def open_stdin(step: s.Execute | s.RunScript) -> int:
    """Return a descriptor for standard input: its data in memory, which counts for the program's own limits."""
    if not isinstance(step, s.Execute) or not step.stdin:
        return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    except OSError:  # the filter denies memfds if no cgroup counts them
        fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with open(fd, "wb", closefd=False) as file:
        file.write(step.stdin)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
