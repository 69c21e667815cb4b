"""kill -9 of the kernel at a random moment under load, again and again: nothing that it has acknowledged is lost.

State, audit, budgets and approvals at once. ``make proof-kills`` kills fifty times, at random.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from agentos.services.audit.verify import verify_log
from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import rounds
from tests.support.wire import DELETE, FETCH, GET_AUDIT_LOG, HELLO, STORE, THINK, WRITE, Wire
from tests.system.agents import info, up

KILLS = 5  # ten times as many by `make proof-kills`
CONFIG = """
[llm]
provider = "offline"

[[supervisor.children]]
name = "asks"
command = ["sleep", "1000"]
llm = { budget = [{ calls = 1000000, per = "31d" }] }
"""
STORERS, KEYS_EACH, ASKED_EACH_ROUND = 6, 12, 4
LONGEST = 0.7  # seconds of load, at most, once all of it goes on

Stored = tuple[object, int] | None  # a value with its version, or no such key


@define
class Books:
    """What was acknowledged, over all lives of the kernel, and what was asked and not answered when it was killed."""

    state: dict[str, Stored] = field(factory=dict)
    doubtful: dict[str, object] = field(factory=dict)  # keys, and the value that they may have since; None: deleted
    written: dict[Path, str] = field(factory=dict)
    thought: int = 0
    pending: dict[str, str] = field(factory=dict)  # of approvals: what was shown, by id
    never: list[Path] = field(factory=list)  # files that nobody was allowed to write
    audited: int = 0  # the last audit entry that was read
    announced: set[str] = field(factory=set)  # paths of WRITE intents

    @property
    def size(self) -> int:
        """How much was acknowledged; grows as long as the load goes on."""
        return len(self.written) + self.thought + sum(kept[1] for kept in list(self.state.values()) if kept)


def store_and_delete(kernel: Kernel, books: Books, number: int, chance: random.Random) -> None:
    with kernel.connect() as wire:
        while True:
            key = f"proof.{number}.{chance.randrange(KEYS_EACH)}"
            value = None if chance.random() < 0.2 else f"{chance.random()}"
            books.doubtful[key] = value
            if value is None:
                up(wire.call(DELETE, {"key": key, "scope": "global"}))
                books.state[key] = None
            else:
                version = up(wire.call(STORE, {"key": key, "value": value, "scope": "global"}))["version"]
                books.state[key] = value, version
            del books.doubtful[key]


def write_files(kernel: Kernel, books: Books, life: int) -> None:
    with kernel.connect() as wire:
        for number in range(1_000_000):
            path, text = kernel.place / f"written.{life}.{number}", f"{life} {number}"
            up(wire.call(WRITE, {"path": str(path), "content": text}))
            books.written[path] = text


def think(kernel: Kernel, books: Books) -> None:
    with kernel.client() as client:
        number = info(client, "asks")["id"]
    with kernel.connect_as(number) as wire:
        while True:
            up(wire.call(THINK, {"prompt": "how?"}))
            books.thought += 1


def ask(kernel: Kernel, client: AgentOSClient, books: Books, life: int) -> Wire:
    """A guest whose WRITEs wait for a person."""
    wire = kernel.connect()
    permissions = {"level": "standard", "ask": {"write": [f"{kernel.place}/**"]}}
    up(wire.call(HELLO, {"protocol": 2, "as": f"guest{life}", "permissions": permissions}))
    for number in range(1, ASKED_EACH_ROUND + 1):
        path = kernel.place / f"never.{life}.{number}"
        books.never.append(path)
        wire.send(WRITE, {"path": str(path), "content": "x"}, number)
    until(lambda: len(up(client.approvals())["pending"]) == len(books.never), "all are asked")
    books.pending = {one["id"]: one["shown"] for one in up(client.approvals())["pending"]}
    return wire


def load_until_killed(kernel: Kernel, books: Books, life: int, chance: random.Random) -> None:
    """Returns when the kernel was killed and all that was asked of it has failed."""

    def until_gone(work: Callable[..., None], *details: object) -> threading.Thread:
        def run() -> None:
            with contextlib.suppress(OSError):  # ConnectionError: the kernel is gone
                work(kernel, books, *details)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with kernel.client() as client, ask(kernel, client, books, life):
        before, thought, written = books.size, books.thought, len(books.written)
        threads = [
            *(until_gone(store_and_delete, number, random.Random(chance.random())) for number in range(STORERS)),
            until_gone(write_files, life),
            until_gone(think),
        ]
        until(lambda: books.thought > thought and len(books.written) > written and books.size > before, "all go on")
        time.sleep(chance.random() * LONGEST)  # not a wait for something: the moment of the kill is random
        kernel.kill()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def check(kernel: Kernel, books: Books) -> None:
    """Compare a new kernel with the books; what was in doubt is settled then."""
    with kernel.connect() as wire, kernel.client() as client:
        check_state(wire, books)
        read_intents(wire, books)
        missing = [path for path in books.written if str(path) not in books.announced]
        assert not missing, f"acknowledged and not in the audit log: {missing[:5]}"
        for path, text in books.written.items():
            assert path.read_text() == text
        [budget] = up(client.inspect("asks"))["llm"]["budgets"]
        # What the killed kernel had reserved stays reserved until the window ends.
        assert budget["used"] + budget["reserved"] >= books.thought, "a budget has forgotten questions"
        pending = {one["id"]: one["shown"] for one in up(client.approvals())["pending"]}
        assert pending == books.pending, "an approval was lost or decided"
        assert not [path for path in books.never if path.exists()]


def check_state(wire: Wire, books: Books) -> None:
    for key, kept in list(books.state.items()):
        reply = up(wire.call(FETCH, {"key": key, "scope": "global"}))
        now: Stored = (reply["value"], reply["version"]) if reply["exists"] else None
        if now != kept:
            assert key in books.doubtful, f"{key} is {now}, and {kept} was acknowledged"
            expected = books.doubtful[key]
            assert (now[0] if now else None) == expected
            assert now is None or kept is None or now[1] > kept[1]
            books.state[key] = now
    books.doubtful.clear()
    newest = max(kept[1] for kept in books.state.values() if kept)
    assert up(wire.call(STORE, {"key": "newest", "value": 1}))["version"] > newest


def read_intents(wire: Wire, books: Books) -> None:
    while True:
        query: dict[str, Any] = {"category": "files", "since_id": books.audited, "limit": 1000}
        entries = up(wire.call(GET_AUDIT_LOG, query))["entries"]
        books.announced |= {entry["about"] for entry in entries if entry["phase"] == "intent"}
        if not entries:
            return
        books.audited = entries[-1]["id"]


@pytest.mark.usefixtures("long")
def test_nothing_acknowledged_is_lost_when_the_kernel_is_killed_again_and_again(own_kernel: OwnKernel) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, books = random.Random(seed), Books()
    kernel = own_kernel(CONFIG)
    for life in range(rounds(KILLS)):
        load_until_killed(kernel, books, life, chance)
        kernel.start_again()
        check(kernel, books)

    kernel.stop()
    report = verify_log(kernel.state_dir / "audit")
    assert report.sound, report
    newest = max(kept[1] for kept in books.state.values() if kept)
    print(
        f"{rounds(KILLS)} kills: {newest} changes of state, {len(books.written)} files written, "
        f"{books.thought} questions, {len(books.pending)} approvals: nothing acknowledged is lost"
    )
