"""``agentos`` commands of tests: forked from a process that has imported them, or executed where that differs."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import fork_server
from tests.support.wire import PATIENCE


def run_agentos(words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run ``agentos`` in this whole environment, with an empty standard input."""
    done = run_agentos_bytes(words, cwd, env)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_agentos_bytes(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], given: bytes | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """The same with bytes, and with ``given`` in a pipe as its standard input."""
    if fork_server.can_fork(env):
        return fork_server.shared().run(words, str(cwd), env, given, PATIENCE)
    with subprocess.Popen(
        [sys.executable, "-m", "agentos", *words],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        printed, errors = command.communicate(given, PATIENCE)
    return subprocess.CompletedProcess(command.args, command.returncode, printed, errors)


def run_crippled(
    options: Sequence[str], words: Sequence[str], cwd: Path, env: Mapping[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    """Run ``agentos``, or after ``-c`` a program's text, where these options of ``crippled`` take something away."""
    return fork_server.shared().run(words, str(cwd), env, None, PATIENCE, crippled=options)
