"""Runs git in a repository that an agent may have written, so that git can start no other program.

A repository names programs in many places: filters, hooks, a file system monitor, transports and their helpers, and the
same again in a submodule. Options switch off those that are known. A seccomp filter makes fork fail in git, so that the
others can't start either. Its time, its memory and what it writes are limited.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO

from agentos.sandbox.confined import Unconfinable, confine

SECONDS = 20.0  # for one command
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
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as told:
        try:
            done = subprocess.run(
                argv,
                cwd=directory,
                env={**inherited, **fixed, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=told,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise GitError(f"git {command[0]} took more than {SECONDS:g} s") from None
        except (OSError, subprocess.SubprocessError) as error:
            raise GitError(f"git {command[0]} can't be run: {error}") from None
        if -done.returncode == signal.SIGXFSZ:
            raise GitError(f"git {command[0]} says more than {MAX_OUTPUT >> 20} MiB")
        return subprocess.CompletedProcess(argv, done.returncode, _content(out), _content(told))


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
