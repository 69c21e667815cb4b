"""Snapshots with a real database, and a program that is killed at its calls while it takes, goes back or removes.

``taking.py PLACE seal|copy|back|remove EVERY`` prints how many calls that makes. A child is a process of its own:
nothing that is buffered or held by it survives.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import trio
from attrs import define

from agentos.database import open_database
from agentos.services import ids
from agentos.services.ids import open_ids
from agentos.services.mail import copies, rows
from agentos.services.mail.mailboxes import Mailboxes
from agentos.services.mail.store import MailStore
from agentos.services.snapshots.kept import Kept
from agentos.services.snapshots.overlays import Overlays
from agentos.services.snapshots.records import Snapshot
from agentos.services.snapshots.snapshots import Snapshots
from agentos.services.state.batch import Change, StateLimits
from agentos.services.state.rows import TABLES
from agentos.services.state.state import State

from .conftest import AGENT, Overlaid, fill

NAME = "w"
SCHEMAS = {"ids": ids.TABLES, "mail": rows.TABLES, "snapshot_mail": copies.TABLES, "state": TABLES}
CODE = ("snapshots", "private_files", "copies.py")  # parts of the names of files whose calls count


@define
class Taking:
    """An overlay with its snapshots."""

    overlaid: Overlaid
    snapshots: Snapshots
    state: State

    async def take(
        self, label: str = "", runs: bool = False, by_agent: bool = False, recorded: bool = False
    ) -> Snapshot:
        @asynccontextmanager
        async def hold_still() -> AsyncIterator[bool]:
            yield runs

        return await self.snapshots.take(self.overlaid.name, self.overlaid.name, label, hold_still, by_agent, recorded)

    async def go_back(self, moment: str, runs: bool = False) -> None:
        await self.snapshots.roll_back(await self.snapshots.find(self.overlaid.name, moment), runs=lambda: runs)

    async def store(self, key: str, value: str, account: str = NAME) -> None:
        done = trio.Event()
        change = Change(account, key, f'"{value}"'.encode(), account, None, None)
        self.state.begin_store(change, lambda _: done.set())
        await done.wait()

    async def keys(self) -> dict[str, str]:
        return {one.key: one.value.decode().strip('"') for one in await self.state.copy(NAME)}

    async def see(self) -> dict[str, str]:
        """What is changed, by path: content of files, or what was done to others."""
        found = (await self.overlaid.diff(texts=True)).changes
        return {one.path: one.content[:8] if one.kind == "file" and one.content else one.what for one in found}

    def list_layers(self) -> set[str]:
        place = self.overlaid.state / "layers"
        return {f"{path.parent.name}/{path.name}" for path in place.glob("*/l-*")}


@asynccontextmanager
async def open_taking(place: Path, state_dir: str = "state") -> AsyncIterator[Taking]:
    """What a kernel opens at its start, with the project and the state directory in ``place``."""
    overlays = Overlays(place / state_dir)
    async with (
        open_database(place / state_dir / "agentos.db", SCHEMAS) as database,
        open_ids(database, "messages", rows.GREATEST_ID) as numbers,
    ):
        state = await State.load(database, StateLimits(100, 1 << 20))
        mail = Mailboxes(store=MailStore(database, 1 << 20), numbers=numbers)
        await mail.load()
        assert await overlays.finish_all() == []
        overlaid = Overlaid(place / "project", place / state_dir, overlays, NAME)
        taking = Taking(overlaid, Snapshots(overlays, Kept(state, copies.MailCopies(mail))), state)
        await taking.snapshots.forget_lost()
        yield taking


async def prepare(place: Path) -> None:
    """A snapshot ``one``, and changes after it."""
    (place / "project").mkdir(parents=True)
    (place / "state").mkdir(mode=0o700)
    fill(place / "project")
    async with open_taking(place) as taking:
        await taking.overlaid.open()
        taking.overlaid.write("a.txt", "one\n")
        await taking.store("k", "one")
        await taking.take("one")
        await taking.overlaid.open()
        taking.overlaid.write("a.txt", "two\n")
        taking.overlaid.delete("sub/b.txt")
        await taking.store("k", "two")


async def act(place: Path, state_dir: str, verb: str) -> None:
    async with open_taking(place, state_dir) as taking:
        count.begin()
        if verb == "back":
            await taking.go_back("one")
        elif verb == "remove":
            await taking.snapshots.remove(await taking.snapshots.find(NAME, "one"))
        else:
            await taking.take("two", runs=verb == "copy")
        count.end()


class Count:
    """Counts calls and returns in our code, in all threads, and kills this process at one of them."""

    seen, stop_at, counting = 0, 0, False

    def begin(self) -> None:
        self.counting = True

    def end(self) -> None:
        self.counting = False

    def look(self, frame: FrameType, event: str, argument: object) -> None:
        if self.counting and any(part in frame.f_code.co_filename for part in CODE):
            self.seen += 1
            if self.seen == self.stop_at:
                os.kill(os.getpid(), signal.SIGKILL)


count = Count()


def run_counted(place: Path, state_dir: str, verb: str, stop_at: int) -> int:
    count.stop_at = stop_at
    threading.setprofile(count.look)
    sys.setprofile(count.look)
    with contextlib.ExitStack() as stack:
        stack.callback(sys.setprofile, None)
        trio.run(act, place, state_dir, verb)
    return count.seen


def run_child(place: Path, verb: str, stop_at: int) -> tuple[str, int]:
    """Do it in a process with a copy of the state directory; returns that, and how many calls were made."""
    state_dir = f"state-{verb}-{stop_at}"
    subprocess.run(["cp", "-a", place / "state", place / state_dir], check=True)
    came, went = os.pipe()
    if (child := os.fork()) == 0:
        os.write(went, str(run_counted(place, state_dir, verb, stop_at)).encode())
        os._exit(0)
    os.close(went)
    with open(came, "rb") as answer:
        seen = answer.read()
    os.waitpid(child, 0)
    return state_dir, int(seen or 0)


async def look(place: Path, state_dir: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """After a start: what is changed, the keys, and the labels; all that there is must be whole and needed."""
    async with open_taking(place, state_dir) as taking:
        if taking.overlaid.overlays.require(NAME).returning:  # its next life goes back first
            await taking.overlaid.open()
        found = await taking.snapshots.list()
        for one in found:
            taking.overlaid.overlays.store.check(one)
        record = taking.overlaid.overlays.require(NAME)
        named = {*record.sealed, *(layer for one in found for layer in one.layers)}
        assert taking.list_layers() == named | ({f"{NAME}/{record.layer}"} if record.layer else set())
        kept = {path.name for path in (place / state_dir / "snapshots").iterdir()}
        assert kept == {one.id for one in found}
        return await taking.see(), await taking.keys(), [one.label for one in found]


def check_each(place: Path, verb: str, every: int) -> int:
    trio.run(prepare, place)
    before = trio.run(look, place, "state")
    whole, total = run_child(place, verb, 0)
    after = trio.run(look, place, whole)
    assert before != after, "it has changed something"
    for number in range(1, total + 1, every):
        here, _ = run_child(place, verb, number)
        found = trio.run(look, place, here)
        assert found in (before, after), f"killed at {number}: {found}, not {before} or {after}"
    return total


if __name__ == "__main__":
    print(check_each(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))


__all__ = ["AGENT", "NAME", "Taking", "open_taking"]
