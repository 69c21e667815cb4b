"""Runs git in a repository that an agent may have written, so that git can start no other program.

A repository names programs in many places: filters, hooks, a file system monitor, transports and their helpers, and the
same again in a submodule. Options switch off those that are known. A seccomp filter makes fork fail in git, so that the
others can't start either. Its time, its memory and what it writes are limited.
"""

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import IO

from agentos.sandbox.confined import Unconfinable, confine

SECONDS = 20.0  # for one command
LOOK_SECONDS = 0.2  # between two looks at whether git waits for a FIFO, which anything may have made in the directory
OPENAT = MappingProxyType({"x86_64": 257, "aarch64": 56})  # numbers of the call
AT_FDCWD = -100  # include/uapi/linux/fcntl.h
MAX_MEMORY = 512 << 20  # bytes that git may allocate; the files that it maps to read them aren't part of it
MAX_OUTPUT = 16 << 20  # bytes that one command may say, and as many about errors
MAX_FILTERS = 100  # whose programs are switched off by name; the others only fail to start
OPTIONS = (
    "--no-optional-locks",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "safe.bareRepository=explicit"),
)
# Submodules have configurations of their own, which git would obey.
STATUS = ("status", "--porcelain=v1", "-z", "--ignore-submodules=all", "--", ".")
FILTERS = ("config", "--null", "--name-only", "--get-regexp", r"^filter\.")
NO_FILTER = {"clean": "", "smudge": "", "process": "", "required": "false"}


class GitError(Exception):
    """git can't be run, or has failed; the text says why."""


def read_status(directory: str) -> list[str]:
    """The lines of ``git status --porcelain`` for a directory, without its submodules; raises :class:`GitError`."""
    listed = _run(directory, FILTERS, {})  # fails if there is none
    settings = [setting for name in _filter_names(listed.stdout)[:MAX_FILTERS] for setting in _without_filter(name)]
    done = _run(directory, STATUS, _as_environment(settings))
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {done.returncode}"]
        raise GitError(next((line for line in told if line.startswith("fatal: ")), told[-1]))
    return [each for each in done.stdout.decode(errors="replace").split("\0") if each[2:3] == " "]


def _run(
    directory: str, command: tuple[str, ...], environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    fixed = {"LC_ALL": "C", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        argv = confine((_find_git(), *OPTIONS, *command), MAX_MEMORY, MAX_OUTPUT)
    except Unconfinable as error:
        raise GitError(f"git isn't run: {error}") from None
    environment = {**inherited, **fixed, **environment}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as told:
        try:
            git = subprocess.Popen(
                argv, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=told
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise GitError(f"git {command[0]} can't be run: {error}") from None
        with git:
            try:
                _wait(git, command[0])
            finally:
                git.kill()  # nothing, where it has ended
        if -git.returncode == signal.SIGXFSZ:
            raise GitError(f"git {command[0]} says more than {MAX_OUTPUT >> 20} MiB")
        return subprocess.CompletedProcess(argv, git.returncode, _content(out), _content(told))


def _wait(git: "subprocess.Popen[bytes]", command: str) -> None:
    """Wait for its end. Raises :class:`GitError` after :data:`SECONDS`, and where it waits for a FIFO's writer."""
    ends = time.monotonic() + SECONDS
    while True:
        try:
            git.wait(LOOK_SECONDS)
            return
        except subprocess.TimeoutExpired:
            waits = _waits_for_partner(git.pid)  # looked at first: it may come to the FIFO meanwhile
            if (fifo := _find_fifo(git.pid)) is not None:
                raise GitError(f"git {command} reads {fifo}, which is a FIFO and not a file: remove it") from None
            if waits:
                raise GitError(f"git {command} reads a FIFO in place of a file, and this host hides which") from None
            if time.monotonic() > ends:
                raise GitError(f"git {command} took more than {SECONDS:g} s") from None


def _find_fifo(pid: int) -> str | None:
    """The FIFO that a process of this user is about to open, which nothing has opened for writing."""
    try:
        with open(f"/proc/{pid}/syscall") as file:
            number, *arguments = file.read().split()
        if number != str(OPENAT.get(os.uname().machine)):  # or it is running
            return None
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(int(arguments[1], 16))
            path = os.fsdecode(memory.read(os.pathconf("/", "PC_PATH_MAX")).partition(b"\0")[0])
        base = (
            f"/proc/{pid}/cwd"
            if (at := ctypes.c_int(int(arguments[0], 16)).value) == AT_FDCWD
            else f"/proc/{pid}/fd/{at}"
        )
        return path if stat.S_ISFIFO(os.stat(os.path.join(base, path)).st_mode) else None
    except OSError:  # it has ended, or this host shows no such thing: its time is limited
        return None


def _waits_for_partner(pid: int) -> bool:
    """Whether a process opens a FIFO without another end; also seen where ptrace of others is forbidden (yama)."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            return file.read() == "wait_for_partner"  # fs/pipe.c
    except OSError:
        return False


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _find_git() -> str:
    """The path of git. A relative entry of PATH is left out: in the agent's directory it would name an agent's file."""
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]
    found = shutil.which("git", path=os.pathsep.join(places))
    if found is None:
        raise GitError("git isn't installed")
    return found


def _filter_names(listed: bytes) -> list[str]:
    """The names of filters in the output of ``git config``, whose keys are ``filter.NAME.VARIABLE``."""
    keys = [key.split(".", 1)[1] for key in os.fsdecode(listed).split("\0") if "." in key]
    return list(dict.fromkeys(key.rpartition(".")[0] for key in keys if "." in key))


def _without_filter(name: str) -> Iterator[tuple[str, str]]:
    for variable, value in NO_FILTER.items():
        yield f"filter.{name}.{variable}", value


def _as_environment(settings: list[tuple[str, str]]) -> dict[str, str]:
    """Settings that override those of every file, as git reads them from its environment."""
    pairs = {
        f"GIT_CONFIG_{kind}_{at}": each[kind == "VALUE"]
        for at, each in enumerate(settings)
        for kind in ("KEY", "VALUE")
    }
    return {"GIT_CONFIG_COUNT": str(len(settings)), **pairs}
