"""Create a cgroup that a process is to enter, and remove one with all processes in it."""

import logging
from typing import TypeVar

import trio

from agentos.threads import Limiter, run_in_thread

from . import v1, v2
from .discover import Group
from .values import CgroupEntry, CgroupError, Limits

log = logging.getLogger(__name__)

AnyGroup = TypeVar("AnyGroup", v1.Group, v2.Group, Group)


def create(around: AnyGroup, name: str, limits: Limits) -> tuple[AnyGroup, CgroupEntry]:
    """Create a child of a cgroup, and open its entry, which the caller closes. Blocks: file writes.

    :class:`CgroupError` as for ``create_child``, ``OSError`` without a descriptor; nothing is left behind.
    """
    group = around.create_child(name, limits)
    try:
        return group, group.open_entry()
    except BaseException:
        if not group.remove_empty():  # needs no descriptor, of which there may be none
            group.remove()
        raise


async def remove(group: Group, threads: Limiter | None = None) -> None:
    """Kill all processes in a cgroup and remove it; not interrupted by cancellation."""

    def end() -> None:
        if not group.remove_empty():
            group.kill()
            group.remove()

    with trio.CancelScope(shield=True):
        try:
            await run_in_thread(end, limiter=threads)
        except (CgroupError, OSError, RuntimeError) as error:  # e.g. no thread; the kernel's end removes it
            log.warning("a control group stays: %s", error)
