"""RunningKernel: ``agentos run`` in a process of its own, for tests."""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from agentos_sdk import AgentOSClient

START_SECONDS, STOP_SECONDS, PATIENCE = 60.0, 30.0, 30.0
# Ends the kernel when its standard input does, with us, also if we are killed; then removes its directory.
GUARD_SCRIPT = """
read -r _; kill "$1"
seconds=0
while kill -0 "$1" && [ "$seconds" -lt "$3" ]; do sleep 1; seconds=$((seconds + 1)); done
[ "$seconds" -lt "$3" ] || kill -9 "$1"
rm -rf -- "$2"
"""
GUARD = ("sh", "-c", GUARD_SCRIPT, "sh")
OFFLINE = '[llm]\nprovider = "offline"\n'


class KernelFailed(AssertionError):
    """The kernel did not start, or ended with another exit status than 0; the text has its output."""


class RunningKernel:
    """A real kernel from its ready line to its end, with a socket and a state directory of its own. A context manager.

    ``config`` is the path of an ``agentos.toml``, run where it is; ``toml`` the text of one instead. Without both the
    kernel has no agents and the offline model. ``environment`` is added to ours. ``cassette`` is a file of recorded
    answers of the model, ``cassette_mode`` as in ``agentos run --cassette-mode``. Its agents are jailed as always:
    where a host can't do that, it doesn't start them, and ``agentos doctor`` says why.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | None = None,
        *,
        toml: str | None = None,
        environment: Mapping[str, str] | None = None,
        cassette: str | os.PathLike[str] | None = None,
        cassette_mode: str = "replay",
    ) -> None:
        if config is not None and toml is not None:
            raise TypeError("RunningKernel: expected config or toml, got both")
        if importlib.util.find_spec("agentos.boot.kernel") is None:
            raise KernelFailed(
                f"agentos-kernel isn't installed for {sys.executable}: pip install . in AgentOS's repository"
            )
        self._config, self._toml = config, toml
        self._environment = environment or {}
        self._cassette = () if cassette is None else ("--cassette", str(cassette), "--cassette-mode", cassette_mode)
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._is_closed = False

    def __enter__(self) -> Self:
        self._directory = tempfile.mkdtemp(prefix="agentos-")
        self.socket = f"{self._directory}/socket"
        config = Path(self._config or f"{self._directory}/agentos.toml").absolute()
        if self._config is None:
            config.write_text(OFFLINE if self._toml is None else f"{self._toml}\n")
        command = [sys.executable, "-P", "-m", "agentos", "run", str(config), "--socket", self.socket]
        self.process = subprocess.Popen(
            [*command, "--state-dir", f"{self._directory}/state", *self._cassette],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C interrupts the tests, which then stop the kernel in order
        )
        guard = [*GUARD, str(self.process.pid), self._directory, str(int(STOP_SECONDS))]
        self._guard = subprocess.Popen(
            guard, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.wait_for_line(r" kernel \| ready, ", START_SECONDS)
        except AssertionError as error:
            self._end()
            raise KernelFailed(str(error)) from None
        except BaseException:  # also Ctrl-C
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        status = self._end()
        if kind is None and status != 0:
            raise KernelFailed(f"the kernel ended with exit status {status}:\n{self.output}")

    @property
    def output(self) -> str:
        """What the kernel and its agents have printed."""
        with self._changed:
            return "\n".join(self._lines)

    def client(self, timeout: float | None = PATIENCE) -> AgentOSClient:
        """A blocking client with the operator's rights, to be used in ``with``. ``timeout`` is its own, in seconds."""
        return AgentOSClient(self.socket, timeout)

    def wait_for_line(self, pattern: str, timeout: float = PATIENCE) -> str:
        """The first line printed so far, or within ``timeout`` seconds, in which the regular expression is found.

        ``AssertionError`` if there is none, or the kernel ends before.
        """
        deadline = time.monotonic() + timeout
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    if re.search(pattern, line):
                        return line
                seen = len(self._lines)
                left = deadline - time.monotonic()
                if self._is_closed or left <= 0:
                    why = "the kernel has ended" if self._is_closed else f"not within {timeout:g} s"
                    raise AssertionError(f"no line with {pattern!r}, {why}:\n" + "\n".join(self._lines))
                self._changed.wait(left)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _end(self) -> int:
        """Stop it in order, by SIGKILL if that takes too long; its exit status."""
        self._guard.kill()
        self._guard.communicate()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        return status
