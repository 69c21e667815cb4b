"""Orphaned processes: finds processes that outlive their agent by an environment variable and kills them.

An agent's descendants can leave its process group and outlive it, or the kernel. They rarely lose the environment they
were started with. Between processes of one uid this finds careless programs, not malicious ones.
"""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import msgspec
import trio
from attrs import define, field
from msgspec import Struct

from agentos.kernel.wire.listener import MAX_PATH_BYTES
from agentos.private_files import check_parents, replace_file
from agentos.sandbox.errors import EXHAUSTED
from agentos.sandbox.watch.disk import read_tmpfs
from agentos.structs import read_json

log = logging.getLogger(__name__)

RUN_VARIABLE = "AGENTOS_RUN_ID"
ID_VARIABLE = "AGENTOS_AGENT_ID"
LIFE_VARIABLE = "AGENTOS_LIFE"  # processes left by one life must not be taken for those of the next
MAX_DIRECTORY_BYTES = MAX_PATH_BYTES - len("/agentos-12345678/4294967295.sock")  # so that socket paths fit
SCAN_DELAY_SECONDS = 0.05  # seconds between two scans for processes that ended agents left


class Run(Struct, frozen=True):
    """One run of a kernel: the id in its agents' environment and the directory of their sockets."""

    id: str
    directory: str

    @classmethod
    def begin(cls, state_dir: Path) -> "Run":
        """Record a new run in ``state_dir``, after killing what an earlier, killed run left behind.

        Raises ``OSError`` if other users can change the record or the directory for sockets.
        """
        note = state_dir / "run.json"
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            read_json(note, cls).end()
        base = runtime_base()
        check_parents(Path(base, "agentos"))
        run = cls(secrets.token_hex(8), tempfile.mkdtemp(prefix="agentos-", dir=base))  # mode 0700
        replace_file(note, msgspec.json.encode(run))
        return run

    def end(self) -> Sequence[int]:
        """SIGKILL all remaining processes of this run and remove its directory; returns the pids."""
        killed = kill_marked(self.id, None)
        shutil.rmtree(self.directory, ignore_errors=True)
        return killed


@define(eq=False)
class Sweeper:
    """Kills processes left by ended lives of agents, soon after. Lives that end together share one scan of /proc."""

    run: Run
    _lives: set[str] = field(factory=set)
    _due: trio.Event = field(factory=trio.Event)

    def add(self, agent: int, life: int) -> None:
        """Register that life number ``life`` of the agent with the id ``agent`` is over."""
        self._lives.add(name_life(agent, life))
        self._due.set()

    async def serve(self) -> None:
        while True:
            await self._due.wait()
            await trio.sleep(SCAN_DELAY_SECONDS)
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
    """The first accessible runtime directory with a name short enough for agents' socket paths.

    In memory where possible: to create and remove a socket takes 10 µs in a tmpfs, and 250 µs on ext4, which doesn't
    reuse an inode that was freed in the last seconds and skips these one by one.
    """
    named = (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"))
    in_memory = (place for place in ("/run", "/dev/shm") if read_tmpfs(os.getpid(), place) is not None)
    for base in (*named, *in_memory, tempfile.gettempdir(), "/tmp"):
        if base and len(os.fsencode(base)) <= MAX_DIRECTORY_BYTES and os.access(base, os.W_OK | os.X_OK):
            return os.path.abspath(base)
    return "/tmp"


def kill_marked(run: str, lives: Container[str] | None) -> Sequence[int]:
    """SIGKILL all processes of a run, or of some of its lives, until none is found; returns the pids."""
    killed: list[int] = []
    while found := [pid for pid in processes() if pid not in killed and belongs(pid, run, lives)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def processes() -> Iterator[int]:
    """The pids of all processes except this one."""
    own = os.getpid()
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own)


def belongs(pid: int, run: str, lives: Container[str] | None) -> bool:
    """Whether a process was started, directly or not, by an agent of this run (and of one of these lives)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return False
    if os.fsencode(run) not in data:
        return False
    variables = dict(item.partition("=")[::2] for item in os.fsdecode(data).split("\0"))
    return variables.get(RUN_VARIABLE) == run and (lives is None or variables.get(LIFE_VARIABLE) in lives)


def name_life(agent: int, life: int) -> str:
    """What :data:`LIFE_VARIABLE` has: no other life's, and nothing but what the built-in mask ``hex`` covers.

    So a replay of a program that shows its environment to the model finds its recorded answer.
    """
    return f"a{agent:08x}{life:08x}"


def parent_of(pid: int) -> int | None:
    """The parent pid of a process; None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
