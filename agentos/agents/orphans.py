"""Processes that outlive their agent: found by a mark in their environment, and ended.

An agent's descendants can leave its process group and survive it, or the kernel. What they can't easily shed is the
environment they were started with. Between processes of one uid that finds the careless, not the malicious.
"""

import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import trio
from attrs import asdict, define, field, frozen

from agentos.private_files import check_parents, read_file, replace_file
from agentos.sandbox.errors import EXHAUSTED

log = logging.getLogger(__name__)

RUN_VARIABLE = "AGENTOS_RUN_ID"
ID_VARIABLE = "AGENTOS_AGENT_ID"
LIFE_VARIABLE = "AGENTOS_LIFE"  # ID.NUMBER: what one life leaves behind must not be taken for the next one's
ROOM = 107 - len("/agentos-12345678/4294967295.sock")  # bytes that a directory's name may have, for sockets to fit
PAUSE = 0.05  # seconds between two looks for what ended agents left


@frozen
class Run:
    """One run of a kernel: the id that its agents carry, and the directory of their sockets."""

    id: str
    directory: str

    @classmethod
    def begin(cls, state_dir: Path) -> "Run":
        """Note a new run in ``state_dir``, having ended what an earlier one left that was killed.

        ``OSError`` where the note, or the directory for sockets, is one that others may change.
        """
        note = state_dir / "run.json"
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            cls(**json.loads(read_file(note))).end()
        base = runtime_base()
        check_parents(Path(base, "agentos"))
        run = cls(secrets.token_hex(8), tempfile.mkdtemp(prefix="agentos-", dir=base))  # mode 0700
        replace_file(note, json.dumps(asdict(run)))
        return run

    def end(self) -> Sequence[int]:
        """SIGKILL every process of this run that is left, and remove its directory; gives the pids."""
        killed = kill_marked(self.id, None)
        shutil.rmtree(self.directory, ignore_errors=True)
        return killed


@define(eq=False)
class Sweeper:
    """Ends what lives of agents left behind, soon after. However many end at once, it is one look at /proc."""

    run: Run
    _lives: set[str] = field(factory=set)
    _due: trio.Event = field(factory=trio.Event)

    def add(self, agent: int, life: int) -> None:
        """The life of that number of the agent with that id is over."""
        self._lives.add(f"{agent}.{life}")
        self._due.set()

    async def serve(self) -> None:
        while True:
            await self._due.wait()
            await trio.sleep(PAUSE)
            lives, self._lives, self._due = self._lives, set(), trio.Event()
            try:
                left = await trio.to_thread.run_sync(kill_marked, self.run.id, lives)
            except EXHAUSTED as error:
                log.warning("what ended agents left could not be looked for: %s", error)
                self._lives |= lives
                self._due.set()
                continue
            if left:
                log.warning("ended agents left processes behind, which were killed: %s", ", ".join(map(str, left)))


def runtime_base() -> str:
    """The first directory that is there for us and whose name is short enough for the sockets of agents."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(os.fsencode(base)) <= ROOM and os.access(base, os.W_OK | os.X_OK):
            return os.path.abspath(base)
    return "/tmp"


def kill_marked(run: str, lives: Container[str] | None) -> Sequence[int]:
    """SIGKILL every process of a run, or of some lives in it, again until none is found; gives the pids."""
    killed: list[int] = []
    while found := [pid for pid in processes() if pid not in killed and belongs(pid, run, lives)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def processes() -> Iterator[int]:
    """The pids of all processes but our own."""
    own = os.getpid()
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own)


def belongs(pid: int, run: str, lives: Container[str] | None) -> bool:
    """Whether a living process was started, at whatever remove, by an agent of that run (and one of these lives)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return False
    if os.fsencode(run) not in data:
        return False
    variables = dict(item.partition("=")[::2] for item in os.fsdecode(data).split("\0"))
    return variables.get(RUN_VARIABLE) == run and (lives is None or variables.get(LIFE_VARIABLE) in lives)


def parent_of(pid: int) -> int | None:
    """The pid of a process's parent; None when it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
