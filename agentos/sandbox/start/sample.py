"""Find the memory that programs write to on the way to their first call; waiting jails copy it ahead.

A process copies each page that it shares with the zygote when it first writes to it: a script some hundred times before
its first call, and nearly always the same pages. Those that :mod:`agentos.sandbox.start.sample_script` has copied tell
which.
"""

import logging
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import trio

from agentos.sandbox.errors import SandboxError
from agentos.sandbox.files.root_files import script_path
from agentos.sandbox.host import Host
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import BadPolicy, Policy, Program
from agentos.sandbox.report.probe import TRIAL_IDS
from agentos.sandbox.steps import Step
from agentos.threads import run_in_thread
from agentos_sdk.values import HostIds

from .handshake import close_all
from .spawner import Spawner

log = logging.getLogger(__name__)

TIMEOUT = 10.0  # seconds; it takes some hundredths
MAX_RANGES = 500  # of one process; a script has about 300
_SCRIPT = str(Path(__file__).with_name("sample_script.py"))
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PRESENT, _EXCLUSIVE = 1 << 63, 1 << 56  # in an entry of /proc/PID/pagemap

MemoryRange = tuple[int, int]  # address, and size in bytes


async def take_sample(spawner: Spawner, host: Host, sdk: str) -> None:
    """Have this zygote's children copy ahead what the script has written to; nothing if it fails, and never an error.

    ``sdk`` is the directory of the SDK's package.
    """
    zygote = spawner.zygote.pid
    found: Sequence[MemoryRange] = ()
    try:
        with trio.fail_after(TIMEOUT):
            found = await _run(spawner, await run_in_thread(_plan, host, sdk))
    except (SandboxError, BadPolicy, OSError, RuntimeError, trio.TooSlowError) as error:  # RuntimeError: no thread
        log.info("waiting jails copy no memory ahead: %s", str(error) or type(error).__name__)
    if spawner.zygote.pid == zygote:
        spawner.zygote.set_sample(found)


def _plan(host: Host, sdk: str) -> Sequence[Step]:
    policy = Policy(interpreter=host.interpreter, sdk=sdk, script=_SCRIPT)
    ids = TRIAL_IDS if host.uid == 0 else HostIds(host.uid, host.gid)
    return plan_sandbox(policy, Program((script_path(_SCRIPT),), fast=True), host, ids)


async def _run(spawner: Spawner, plan: Sequence[Step]) -> Sequence[MemoryRange]:
    """Run the script; returns what it has written to."""
    sandbox = await spawner.spawn(plan)
    try:
        await trio.lowlevel.wait_readable(sandbox.stdout)
        if not os.read(sandbox.stdout, 64):
            await trio.lowlevel.wait_readable(sandbox.stderr)
            why = os.read(sandbox.stderr, 4096).decode(errors="replace")
            raise SandboxError(f"the sample of a script failed: {why}")
        return await run_in_thread(read_written, sandbox.program)
    finally:
        await sandbox.kill()  # noqa: ASYNC102, ASYNC120 - it shields itself
        close_all(sandbox.stdout, sandbox.stderr)


def read_written(pid: int) -> Sequence[MemoryRange]:
    """The memory that a process shares with no other, up to :data:`MAX_RANGES`. ``OSError`` without the right."""
    found: list[MemoryRange] = []
    pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for row in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, *_ = row.split()
            if rights == "rw-p":
                begin, end = (int(address, 16) for address in where.split("-"))
                found += _join(begin, os.pread(pagemap, (end - begin) // _PAGE * 8, begin // _PAGE * 8))
    finally:
        os.close(pagemap)
    return found[:MAX_RANGES]


def _join(begin: int, entries: bytes) -> Iterator[MemoryRange]:
    """Yield the ranges of pages that are its own alone; ``entries`` are those of a mapping that begins there."""
    start = None
    for number, (entry,) in enumerate(struct.iter_unpack("=Q", entries + bytes(8))):
        is_own = entry & _PRESENT and entry & _EXCLUSIVE
        if is_own and start is None:
            start = number
        elif not is_own and start is not None:
            yield begin + start * _PAGE, (number - start) * _PAGE
            start = None
