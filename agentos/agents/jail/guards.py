"""Periodic checks that kill jails which can no longer be contained; Linux sends no event for these cases."""

import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import trio
from attrs import frozen

from agentos.agents.workspaces.protected_files import find_lost
from agentos.images.store import is_free
from agentos.sandbox.cgroups.discover import Group
from agentos.sandbox.cgroups.values import CgroupError
from agentos.sandbox.errors import EXHAUSTED

if TYPE_CHECKING:
    from agentos.agents.workspaces.workspace import Workspace

    from .jail import Jail

log = logging.getLogger(__name__)

T = TypeVar("T")
CHECK_INTERVAL = 1.0  # seconds between two checks


@frozen
class Unprotected:
    """The host has replaced protected names in a workspace, so the agent can write to them now."""

    names: Collection[str]

    def __str__(self) -> str:
        return f"{', '.join(sorted(self.names))} in its workspace, replaced by the host, is not protected any more"


async def kill_unprotected(living: Mapping[str, "Jail"]) -> NoReturn:
    """Kill agents that have gained write access to a protected name."""
    while True:
        await trio.sleep(CHECK_INTERVAL)
        names = {key: (jail.sandbox.program, jail.protected) for key, jail in living.items() if jail.protected}
        found = await _look("protected names", partial(find_unprotected, names)) if names else None
        for key, gone in (found or {}).items():
            if (jail := living.get(key)) is not None and jail.sandbox.program == names[key][0]:
                jail.exceeded(gone)


@frozen
class Left:
    """The build that has started the jail has ended without it: its root is garbage."""

    def __str__(self) -> str:
        return "the build of its image has ended"


async def kill_left(living: Mapping[str, "Jail"]) -> NoReturn:
    """Kill the programs of builds that were killed: they would have no end."""
    while True:
        await trio.sleep(CHECK_INTERVAL)
        for jail in [*living.values()]:
            image = jail.parts.policy.image if jail.parts.policy is not None else None
            if image is None or not image.upper:
                continue
            if await _look("images that are built", partial(is_free, Path(image.upper).parent)):
                jail.exceeded(Left())


async def remove_planted(
    living: Mapping[str, "Jail"], take: Callable[["Workspace"], Awaitable[Sequence[str]]]
) -> NoReturn:
    """Take files out of workspaces that host programs would run by their name, and tell."""
    while True:
        await trio.sleep(CHECK_INTERVAL)
        for jail in [*living.values()]:
            if (workspace := jail.parts.workspace) is None or workspace.kind != "host":
                continue
            try:
                planted = await take(workspace)
            except OSError as error:  # no descriptor, no room
                log.warning("planted files could not be looked for: %s", error)
                continue
            for text in planted:
                log.warning("%s", text)
                jail.parts.agent.output.add("kernel", text)


def find_writers(living: Collection["Jail"], leads_by: Callable[[str], Collection[str]]) -> list[str]:
    """The names of agents that can write to a file that the host has replaced. Blocks: it reads /proc.

    ``leads_by`` returns the names in a workspace that lead to the file.
    """
    found = []
    for jail in living:
        workspace = jail.parts.workspace
        if workspace is None or workspace.kind != "host" or workspace.watched is None:
            continue
        names = set(leads_by(workspace.watched)).intersection(jail.protected)
        with contextlib.suppress(OSError):  # the program has ended
            if names and find_lost(jail.sandbox.program, names):
                found.append(jail.parts.agent.name)
    return found


async def kill_after_oom(living: Mapping[str, "Jail"]) -> NoReturn:
    """Kill the rest of an agent after an OOM kill: cgroup v1 kills only the biggest process of a group."""
    while True:
        await trio.sleep(CHECK_INTERVAL)
        groups = {key: jail.group for key, jail in living.items() if jail.group is not None}
        for key in await _look("control groups", partial(find_out_of_memory, groups)) or ():
            if (jail := living.get(key)) is not None and jail.group is groups[key]:
                jail.sandbox.signal(signal.SIGKILL)


async def _look(what: str, find: Callable[[], T]) -> T | None:
    try:
        return await trio.to_thread.run_sync(find)
    except EXHAUSTED as error:
        log.warning("%s could not be looked at: %s", what, error)
        return None


def find_unprotected(names: Mapping[str, tuple[int, Sequence[str]]]) -> Mapping[str, Unprotected]:
    """The jails that have lost protected names, by the pid of their program. Blocks: it reads /proc."""
    found = {}
    for key, (pid, protected) in names.items():
        with contextlib.suppress(OSError):  # the program has ended
            if gone := find_lost(pid, protected):
                found[key] = Unprotected(gone)
    return found


def find_out_of_memory(groups: Mapping[str, Group]) -> Sequence[str]:
    """The keys of cgroups in which processes were killed for their own memory limit. Blocks: it reads files."""
    found = []
    for key, group in groups.items():
        with contextlib.suppress(CgroupError):
            if group.evidence().out_of_memory:
                found.append(key)
    return found
