"""Host setup before the event loop runs: hardening, zygote, state directory lock, run directory, cgroup, uids, SDK."""

import contextlib
import ctypes
import fcntl
import logging
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

import agentos_sdk
from agentos.agents.life.leftover_processes import RUN_VARIABLE, Run
from agentos.agents.workspaces.workspace import list_kept
from agentos.config.schema import KernelSettings, UidRange
from agentos.private_files import check_file, check_parents, describe_error, display_path, hold_directory, open_file
from agentos.sandbox.cgroups import discover
from agentos.sandbox.cgroups.discover import Cgroups
from agentos.sandbox.cgroups.values import CgroupError
from agentos.sandbox.errors import SandboxError
from agentos.sandbox.files import interpreter_prefixes
from agentos.sandbox.host_id_registry import REGISTRY, HostIdError, HostIdRegistry
from agentos.sandbox.host_ids import BLOCK_COUNT, BLOCK_STEP, FIRST_BLOCK, HostIdPool
from agentos.sandbox.inside.janitor import Cleanup
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner

log = logging.getLogger("agentos.kernel")

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
M_TRIM_THRESHOLD = -1  # malloc.h
FREE_MEMORY = 128 << 10  # bytes that an arena may keep after a free
MIN_CONNECTIONS = 128
SWITCH = 0.0005  # seconds after which a computing thread yields the GIL; Python's default is ten times that


class BootError(Exception):
    """The kernel can't start here; the text says why and what to do."""


@frozen
class Host:
    """What the kernel holds of its host, until it ends.

    ``state_dir`` is a path through the directory's file descriptor (:mod:`agentos.private_files`). ``outer_ids`` and
    ``blocks``, the ids of agents with root inside, are None without root. ``sdk`` is the SDK's package, ``sdk_alone`` a
    directory that holds only the package.
    """

    run: Run
    spawner: Spawner
    cgroups: Cgroups
    outer_ids: HostIdPool | None
    blocks: HostIdPool | None
    state_dir: Path
    sdk_alone: str
    sdk: str


@contextlib.contextmanager
def open_host(settings: KernelSettings, socket: str, state_dir: Path) -> Iterator[Host]:
    """Prepare the process, and take what a kernel needs of its host; raises :class:`BootError`."""
    harden()
    limit_free_memory()
    sys.setswitchinterval(SWITCH)
    with contextlib.ExitStack() as undo:
        try:
            # First: the zygote must not inherit anything that is opened or read from here on.
            spawner = Spawner.start(settings.zygote_timeout)
            undo.callback(spawner.close)
            interpreter_prefixes.validate_interpreter(probe.own_interpreter())
            check_parents(Path(socket))
            state_dir = undo.enter_context(lock_state_directory(state_dir))
            check_file(state_dir / "stubs.json")  # read later, when the kernel runs
            run = Run.begin(state_dir)
            undo.callback(run.end)
            cgroups = undo.enter_context(own_cgroup())
            spawner.zygote.set_cleanup(plan_cleanup(run, cgroups))
            outer_ids, blocks = None, None
            if is_root():
                outer_ids, blocks = undo.enter_context(open_host_ids(state_dir, settings.uids))
            sdk_alone, sdk = lay_out_sdk(run)
        except OSError as error:
            raise BootError(describe_error(error, state_dir)) from None
        except (SandboxError, HostIdError) as error:
            raise BootError(str(error)) from None
        yield Host(run, spawner, cgroups, outer_ids, blocks, state_dir, sdk_alone, sdk)


def harden() -> None:
    """Forbid memory access by processes of the same uid, become the subreaper of orphans, raise the file limit."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_DUMPABLE, 0), (PR_SET_CHILD_SUBREAPER, 1)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise BootError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit_free_memory() -> None:
    """Return freed memory to the host, but for 128 KiB of each arena.

    glibc keeps twice as much as the largest block that was ever freed (up to 64 MiB), unless the limit is set: clients
    choose the size of their messages, so they would choose that too.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc; musl has no such limit, and keeps less
        libc.mallopt(M_TRIM_THRESHOLD, FREE_MEMORY)


@contextlib.contextmanager
def lock_state_directory(state_dir: Path) -> Iterator[Path]:
    """Hold and lock the state directory; yields the path to open its files by (:mod:`agentos.private_files`).

    Raises :class:`BootError` while another kernel has the lock, ``OSError`` if other users can change the directory or
    the lock.
    """
    with contextlib.ExitStack() as undo:
        held = undo.enter_context(hold_directory(state_dir))
        lock = open_file(held / "lock", os.O_RDWR | os.O_CREAT)
        undo.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode() or "unknown"
            raise BootError(
                f"{display_path(held)}: another kernel (pid {holder}) uses it: "
                "stop that one or choose another with --state-dir"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield held


@contextlib.contextmanager
def open_host_ids(state_dir: Path, uids: UidRange) -> Iterator[tuple[HostIdPool, HostIdPool]]:
    """The uids of this kernel's agents, and its blocks, out of the registry that all kernels with root share."""
    end = FIRST_BLOCK + BLOCK_COUNT * BLOCK_STEP
    if uids.first < end and uids.first + uids.count > FIRST_BLOCK:
        raise HostIdError(f"uids: {FIRST_BLOCK} to {end - 1} are for agents with user = root: choose others")
    with contextlib.ExitStack() as undo:
        try:
            directory = undo.enter_context(hold_directory(REGISTRY, "give it to root"))
            registry = undo.enter_context(contextlib.closing(HostIdRegistry(directory, display_path(state_dir))))
        except OSError as error:
            place = display_path(error.filename or REGISTRY)
            why = "kernels with root register there which uids their agents have"
            raise BootError(f"{place}: {error.strerror}: {why}") from None
        path, kept = state_dir / "outer-ids.json", list_kept(state_dir / "workspaces")
        ids = HostIdPool(path, registry, uids.first, uids.count, kept)
        yield ids, HostIdPool(state_dir / "blocks.json", registry, FIRST_BLOCK + 1, BLOCK_COUNT - 2)


def affordable_connections() -> int:
    """Number of connections that leave enough file descriptors for the agents; each connection takes up to two."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(MIN_CONNECTIONS, files // 4)


def is_root() -> bool:
    return os.geteuid() == 0


@contextlib.contextmanager
def own_cgroup() -> Iterator[Cgroups]:
    """The cgroup around all agents, if this host permits one. Removes cgroups left by killed kernels."""
    found = discover.discover_here()
    try:
        discover.remove_stale_cgroups(found)
    except CgroupError as error:
        log.warning("a control group of an earlier kernel stays: %s", error)
    groups = discover.open_root(found)
    try:
        yield groups
    finally:
        if groups.root is not None:
            try:
                groups.root.kill()
                groups.root.remove()
            except CgroupError as error:
                log.warning("a control group stays: %s", error)


def plan_cleanup(this: Run, groups: Cgroups) -> Cleanup:
    """What the zygote removes if the kernel is killed: everything except the state that the next kernel needs."""
    paths = groups.root.paths if groups.root is not None else ()
    return Cleanup(groups=paths, directories=(this.directory,), mark=f"{RUN_VARIABLE}={this.id}")


def lay_out_sdk(launched: Run) -> tuple[str, str]:
    """Create a directory that holds only the SDK, for interpreters without it; also returns the package's directory."""
    directory = Path(launched.directory, "sdk")
    directory.mkdir()
    package = Path(agentos_sdk.__file__).resolve().parent
    (directory / "agentos_sdk").symlink_to(package)
    for name in ("agentos.py", "agentic.py"):
        (directory / name).symlink_to(package / "in_sandbox" / name)
    return str(directory), str(package)
