"""Where and with what is measured: one directory, one CPU, the floor, the kernel and the load."""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.speed.processes import MeasurementError, Server, elsewhere, pinned, serving
from tests.speed.tools import Tools

Numbers = dict[str, float]  # the load's JSON line; "mode" is the one text in it

CONFIG = """\
[kernel]
log_level = "warning"
"""
RESTARTS = 'max_restarts = 1000\nbackoff = { min = 0, max = 0 }\nrequired = true\nstart_timeout = "10m"\n'


def config(children: Sequence[Mapping[str, Any]]) -> str:
    """A configuration file; strings, and arrays of them, are spelled alike in TOML and JSON."""
    blocks = ("".join(f"{key} = {json.dumps(value)}\n" for key, value in child.items()) for child in children)
    return CONFIG + "".join(f"\n[[supervisor.children]]\n{RESTARTS}{block}" for block in blocks)


@frozen
class Place:
    """``kernel`` is the argv to which the configuration is added; ``quick`` asks for fewer and shorter rounds."""

    directory: Path
    tools: Tools
    kernel: Sequence[str]
    cpu: int
    quick: bool = False

    def floor(self) -> contextlib.AbstractContextManager[Server]:
        socket = self.directory / "floor.sock"
        socket.unlink(missing_ok=True)
        return serving(Server([str(self.tools.floor), str(socket)], socket, self.cpu), 5)

    def serve(
        self,
        children: Sequence[Mapping[str, Any]] = (),
        *,
        files: Mapping[str, str] | None = None,
        free: bool = False,
        timeout: float = 15,
    ) -> contextlib.AbstractContextManager[Server]:
        """A kernel in a new directory with ``files`` beside its configuration; ``free``: on any CPU."""
        home = self.directory / f"kernel-{sum(1 for _ in self.directory.glob('kernel-*'))}"
        home.mkdir()
        for name, text in (files or {}).items():
            (home / name).write_text(text)
        (home / "kernel.toml").write_text(config(children))
        socket = home / "kernel.sock"
        argv = [*self.kernel, str(home / "kernel.toml"), "--socket", str(socket), "--state-dir", str(home / "state")]
        return serving(Server(argv, socket, None if free else self.cpu), timeout)

    @contextlib.contextmanager
    def loading(
        self, server: Server, mode: str, *options: object, apart: bool = False
    ) -> Iterator[Callable[[float], Numbers]]:
        """Starts the load; what is yielded waits so many seconds at most for its numbers.

        ``apart``: not on the server's CPU, if there is another; its clients would wait for it up to a time slice.
        """
        argv = [str(self.tools.load), *map(str, options), str(server.socket), *mode.split()]
        said = " ".join(["load", *argv[1:]])
        with elsewhere(self.cpu) if apart else pinned(self.cpu):
            process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def finish(timeout: float) -> Numbers:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                raise MeasurementError(f"`{said}` did not end within {timeout:g} s") from None
            if process.returncode != 0:
                raise MeasurementError(f"`{said}`: {err.strip()}")
            numbers: Numbers = json.loads(out)
            return numbers

        try:
            yield finish
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def load(self, server: Server, mode: str, *options: object, apart: bool = False) -> Numbers:
        """Runs the load to its end, which is within a few seconds or else the server stalled."""
        with self.loading(server, mode, *options, apart=apart) as finish:
            return finish(40)

    def p99_of_paced(self, server: Server, callers: int, seconds: float) -> float:
        """The p99 in ms of callers that take turns, one request each ms, from a CPU of their own."""
        return self.load(server, f"paced {callers}", "-w", 500, "-s", seconds, apart=True)["p99_us"] / 1000
