"""A machine of a given size, played for the processes of one setup, and what they use of it.

All that this process starts, and what is left of it, stays beneath it (a child subreaper). A thread adds up its memory;
beyond the machine's the largest process is killed, as Linux would. So a leak fills the played machine, not the host.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field

from tests.speed.proc import Identity, family, is_alive, kill_all, own_memory

PR_SET_CHILD_SUBREAPER = 36
INTERVAL = 0.2  # seconds between two looks


def adopt_orphans(adopt: bool) -> None:
    """Whether processes whose parent ends become children of this process, and not of the host's init."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def has_begun(pid: int) -> bool:
    """Whether a child executes a program of its own: until then it has this process's memory, and its command line."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes() != Path("/proc/self/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


@define
class Machine:
    """``memory``: its bytes. ``peak``: the most that was used. ``killed``: how many processes it had no room for."""

    memory: int
    others: set[int] = field(factory=set)  # pids that aren't the setup's
    peak: int = 0
    killed: int = 0
    _over: threading.Event = field(factory=threading.Event)

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Watch the memory; at the end, kill what is left."""
        adopt_orphans(True)
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._over.set()
            watch.join()
            self.clear()
            adopt_orphans(False)

    def processes(self) -> set[Identity]:
        """The setup's that live."""
        return {one for one in family(os.getpid()) if one.pid not in self.others and is_alive(one)}

    def clear(self) -> None:
        """Kill all processes of the setup, also those that appear meanwhile, and wait for those that are children."""
        while left := kill_all(self.processes()):
            for one in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(one.pid, 0)

    def measure(self) -> dict[Identity, int]:
        """What each process of the setup uses."""
        return {one: own_memory(one.pid) for one in self.processes() if has_begun(one.pid)}

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            sizes = self.measure()
            used = sum(sizes.values())
            self.peak = max(self.peak, used)
            if used > self.memory:
                self.killed += 1  # before its end can be seen
                kill_all([max(sizes, key=sizes.__getitem__)])
