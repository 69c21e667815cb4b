"""Two terminals for a page: one where its commands are typed, one where its kernel runs."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tests.support import fork_server
from tests.support.fork_server import Forked
from tests.support.wire import PATIENCE


class Output:
    """What a process prints on one of its streams, read as it comes."""

    def __init__(self, stream: IO[Any] | None) -> None:
        assert stream is not None
        self._fd = stream.fileno()
        self.text = ""

    def more(self, deadline: float) -> bool:
        """Wait for more; False at the end, or at the deadline."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(self._fd, 65536) if ready else b""
        self.text += data.decode(errors="replace")
        return bool(data)


class Shell:
    """One bash for all commands of a page, so that ``cd`` and ``export`` last."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=env,
            start_new_session=True,
        )
        self._streams = Output(self._process.stdout), Output(self._process.stderr)
        self._script = Path(env["XDG_RUNTIME_DIR"], "command")
        self._mark = f"--{os.urandom(8).hex()}--"

    def run(self, command: str) -> tuple[int, list[str], list[str]]:
        """Exit status of a command, the lines that it wrote to stdout, and those that it wrote to stderr."""
        self._script.write_text(command + "\n")
        mark = f"printf '\\n{self._mark}%d\\n' $?"
        assert self._process.stdin is not None
        self._process.stdin.write(f". {self._script} </dev/null\n{mark} | tee /dev/stderr\n".encode())
        self._process.stdin.flush()
        deadline = time.monotonic() + PATIENCE
        (status, out), (_, err) = [self._until_mark(stream, command, deadline) for stream in self._streams]
        return status, out, err

    def _until_mark(self, stream: Output, command: str, deadline: float) -> tuple[int, list[str]]:
        """The status in the mark that ends a command's output, and the lines before it."""
        stream.text = ""
        while not (found := stream.text.rpartition(f"\n{self._mark}"))[1] or not found[2].endswith("\n"):
            assert stream.more(deadline), f"{command}: no end in sight, so far:\n{stream.text}"
        return int(found[2]), found[0].rstrip("\n").split("\n") if found[0].strip() else []

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class Kernel:
    """``agentos run`` in the foreground of its own terminal: executed, or forked as the kernels of other tests are."""

    def __init__(self, words: list[str], directory: str, env: dict[str, str], execute: bool) -> None:
        self._process: subprocess.Popen[str] | Forked
        if execute:
            self._process = subprocess.Popen(
                ["agentos", "run", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=env,
                text=True,
            )
        else:
            self._process = fork_server.shared().start_kernel(["run", *words], directory, env, None)
        self._output = Output(self._process.stdout)
        self._read = 0

    def fresh(self) -> str:
        """What it has printed since it was last asked whether something had come."""
        return self._output.text[self._read :]

    def until(self, satisfied: Callable[[str], bool]) -> bool:
        """Whether its fresh output comes to satisfy; then that counts as read."""
        deadline = time.monotonic() + PATIENCE
        while not satisfied(self.fresh()):
            if not self._output.more(deadline):
                return False
        self._read = len(self._output.text)
        return True

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """End it if it runs; what it keeps ends with it."""
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self.interrupt()
            deadline = time.monotonic() + PATIENCE
            while self._output.more(deadline):
                pass
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()
