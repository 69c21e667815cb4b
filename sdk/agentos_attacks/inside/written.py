"""Attacks that execute programs written by the agent; only the level ``strict`` forbids that."""

import os
import stat
from collections.abc import Callable
from functools import partial

from .frame import Check, Result, Targets, any_of, call

PROGRAM = "/bin/true"
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
MFD_CLOEXEC, MFD_NOEXEC_SEAL, MFD_EXEC = 0x1, 0x8, 0x10
AT_EMPTY_PATH = 0x1000
WRITABLE = ("/tmp", "/workspace", "/dev/shm")


def _run_program(become: Callable[[], object]) -> str:
    """Run ``become``, which executes :data:`PROGRAM`, in a child; raises ``OSError`` if that is refused."""
    failed, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            become()
        except OSError as error:
            os.write(tell, str(error.errno).encode())
        os._exit(126)
    os.close(tell)
    number = os.read(failed, 16)
    os.close(failed)
    _, how = os.waitpid(pid, 0)
    if number:
        raise OSError(int(number), os.strerror(int(number)))
    if os.waitstatus_to_exitcode(how):  # the dynamic linker could not map it
        raise PermissionError(1, "not run")
    return "it ran"


def _fill(fd: int) -> None:
    with open(PROGRAM, "rb") as program:
        os.write(fd, program.read())


def _memfd(flags: int, execute: Callable[[int], object]) -> str:
    fd = os.memfd_create("program", flags)
    try:
        _fill(fd)
        if not os.fstat(fd).st_mode & stat.S_IXUSR:
            os.fchmod(fd, 0o777)
        return _run_program(partial(execute, fd))
    finally:
        os.close(fd)


def memfd_exec(_: Targets) -> Result:
    """Execute a memory file, made with each of the flags that control execution, in each of three ways."""
    flags = {"none": 0, "MFD_EXEC": MFD_EXEC, "MFD_CLOEXEC": MFD_CLOEXEC, "MFD_NOEXEC_SEAL": MFD_NOEXEC_SEAL}
    ways: dict[str, Callable[[int], object]] = {
        "fexecve": lambda fd: os.execve(fd, ["program"], {}),
        "/proc/self/fd": lambda fd: os.execve(f"/proc/self/fd/{fd}", ["program"], {}),
        "execveat": lambda fd: call("execveat", fd, b"", None, None, AT_EMPTY_PATH),
    }
    return any_of(
        (f"{way}, flags {name}", partial(_memfd, value, execute))
        for name, value in flags.items()
        for way, execute in ways.items()
    )


def _run_stored_file(directory: str, loader: str | None) -> str:
    path = f"{directory}/program-{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o700)
    try:
        _fill(fd)
    finally:
        os.close(fd)
    try:
        return _run_program(partial(os.execve, loader or path, [PROGRAM, *([path] if loader else [])], {}))
    finally:
        os.unlink(path)


def _run_unnamed_file(directory: str) -> str:
    path = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o700)
    try:
        _fill(path)
        reopened = os.open(f"/proc/self/fd/{path}", os.O_RDONLY)
    finally:
        os.close(path)
    try:
        return _run_program(partial(os.execve, f"/proc/self/fd/{reopened}", ["program"], {}))
    finally:
        os.close(reopened)


def written_exec(_: Targets) -> Result:
    """Execute a file that was written: by its name, without a name (O_TMPFILE), and with the dynamic linker."""
    attempts: list[tuple[str, Callable[[], object]]] = []
    for directory in WRITABLE:
        attempts.append((directory, partial(_run_stored_file, directory, None)))
        attempts.append((f"{directory}, O_TMPFILE", partial(_run_unnamed_file, directory)))
        attempts += [
            (f"{directory}, {loader}", partial(_run_stored_file, directory, loader))
            for loader in LOADERS
            if os.path.exists(loader)
        ]
    return any_of(attempts)


CHECKS: tuple[Check, ...] = ()
FURTHER = (
    Check(
        "strict",
        memfd_exec,
        "execute a memory file where isolation is strict",
        "vm.memfd_noexec, or seccomp: MFD_NOEXEC_SEAL",
    ),
    Check("strict", written_exec, "execute a file that it wrote where isolation is strict", "noexec mounts, Landlock"),
)
