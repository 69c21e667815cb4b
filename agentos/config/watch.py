"""Watch: reloads the configuration file when it is saved, and restarts an agent when its script is, for development.

A thread compares the files' times twice a second. inotify would need watches on directories, because an editor that
saves by renaming replaces the file, and on the targets of symlinks; network file systems and some containers send it no
events. Checking a hundred files takes a millisecond.
"""

import ast
import logging
import os
from collections.abc import Collection, Iterator, Mapping

import trio
from attrs import define

from agentos.agents.jail import layout
from agentos.agents.life.lifecycle import AT_START, Step
from agentos.agents.registry import Agent
from agentos.agents.spec import AgentSpec, BadField
from agentos.sandbox.files.root_files import CODE
from agentos.services.files.foreign_files import read_regular
from agentos.threads import run_in_thread
from agentos_sdk.errors import CallError

from .reload import Reload

log = logging.getLogger("agentos.watch")

INTERVAL = 0.5  # seconds between two looks; a change counts once two looks in a row agree
MAX_SCRIPT = 4 << 20  # bytes of a script whose syntax is checked

Stamp = tuple[int, int, int]


@define(eq=False)
class Watch:
    """Watches the files of a running kernel."""

    reload: Reload

    async def serve(self) -> None:
        """Watch until cancelled."""
        known = before = await self._look()
        async with trio.open_nursery() as restarts:
            while True:
                await trio.sleep(INTERVAL)
                now = await self._look()
                known = {**now, **known}  # files that are watched from now on
                saved = {path for path, stamp in now.items() if stamp != known[path]}
                if saved and now == before:
                    known = {**known, **now}
                    await self._apply(saved, restarts)
                before = now

    async def _look(self) -> Mapping[str, Stamp]:
        return await run_in_thread(look, str(self.reload.config.file), self._specs())

    def _specs(self) -> Collection[AgentSpec]:
        return [*self.reload.config.root.agents()]

    async def _apply(self, saved: set[str], restarts: trio.Nursery) -> None:
        files = await run_in_thread(find_files, self._specs())  # those of the configuration before
        done = set[str]()
        if str(self.reload.config.file) in saved and (reloaded := await self.reload.request_and_log()) is not None:
            done = {change.name for change in reloaded.changes if change.kind != "updated"}
        for name, paths in files.items():
            if name not in done and paths & saved:
                restarts.start_soon(self._restart, name, sorted(paths & saved))

    async def _restart(self, name: str, saved: Collection[str]) -> None:
        supervision = self.reload.supervision
        for path in saved:
            if (mistake := await run_in_thread(find_syntax_error, path)) is not None:
                log.error("%s: %s; %s goes on with what it has", path, mistake, name)
                return
        agent: Agent | None = supervision.registry.find_by_name(name)
        if agent is None or not agent.declared or AT_START[agent.wanted] is not Step.BEGIN:
            return  # its next life begins with what was saved
        log.info("%s was saved: restarting %s", ", ".join(saved), name)
        try:
            await supervision.start_stop.restart_agent(agent)
        except CallError as error:
            log.warning("%s", error)


def look(config: str, specs: Collection[AgentSpec]) -> Mapping[str, Stamp]:
    """The inode, size and time of change of each file that exists. Blocks."""
    found = {}
    for path in {config}.union(*find_files(specs).values()):
        try:
            stat = os.stat(path)
        except OSError:
            continue  # it is about to be replaced, or isn't there
        found[path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


def find_files(specs: Collection[AgentSpec]) -> Mapping[str, set[str]]:
    """The files on the host that the agents' programs begin with, by agent. Blocks."""
    return {spec.name: set(_list_files(spec)) for spec in specs}


def _list_files(spec: AgentSpec) -> Iterator[str]:
    if spec.script is not None:
        yield spec.script
        return
    words = spec.command or ()
    if not spec.jailed:
        yield from filter(os.path.isfile, (os.path.join(spec.cwd or "/", word) for word in words))
        return
    if (program := layout.own_program(spec)) is not None:
        yield program
    try:
        contents = layout.find_contents(spec)
    except BadField:
        return  # its files aren't there: its start will say so
    for word in words:
        if word.startswith(f"{CODE}/") and (path := layout.path_on_host(word, contents)) is not None:
            yield path


def find_syntax_error(path: str) -> str | None:
    """Why a Python script can't be parsed, as one that is half written; None for other files. Blocks."""
    if not path.endswith(".py"):
        return None
    try:
        text = read_regular(path, MAX_SCRIPT + 1)
        if len(text) <= MAX_SCRIPT:
            ast.parse(text, path)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None
