"""READ and WRITE as they are judged: before anything is done, by the name of what was found, and nobody waits."""

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.agents.life.writes import Writes
from agentos.kernel.call import Call
from agentos.kernel.caller import MAX_BODY_BYTES, Caller
from agentos.kernel.ports import Decision, Effect, Entry, Right
from agentos.kernel.table import Table
from agentos.permissions.rule import describe_right
from agentos.services.files.resolve import PathRequest
from agentos.syscalls.files.files import Files, WriteRequest
from agentos_sdk.calls.host import Read
from agentos_sdk.encoding import codec
from agentos_sdk.errors import ApprovalRequired, CallError, NotFound, PermissionDenied, Unavailable
from agentos_sdk.opcodes import Op
from tests.support.wire import PATIENCE

from .places import hosts, own

MIB = 1 << 20


@define
class Book:
    """Allows what is in these directories, and writes everything down."""

    allowed: dict[str, Effect]
    entries: list[Entry] = field(factory=list)
    full: bool = False
    decided: int = 0

    def decide(self, caller: Caller, right: Right) -> Decision:
        self.decided += 1
        for directory, effect in self.allowed.items():
            if str(right.object).startswith(directory + "/"):
                return Decision(effect, f"{effect} {directory}", f"{describe_right(right)}: {effect}")
        return Decision("deny", "no rule", f"{describe_right(right)}: no rule allows it")

    async def intend(self, entry: Entry) -> int:
        if self.full:
            raise Unavailable("the audit log can't be written")
        self.entries.append(entry)
        return len(self.entries)

    def note(self, entry: Entry) -> None:
        self.entries.append(entry)


@define
class Somewhere:
    """Paths that begin with /workspace are one's own, all others are the host's."""

    directory: Path
    writes: Writes = field(factory=Writes)

    def writes_of(self, caller: Caller) -> Writes:
        return self.writes

    def path_request(self, caller: Caller, path: str) -> PathRequest:
        inside = path.removeprefix("/workspace/")
        return own(self.directory, inside) if inside != path else hosts(path, single_link=True)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted" / "notes").write_text("notes")
    (tmp_path / "granted" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("secret")
    return tmp_path


@pytest.fixture
def book(place: Path) -> Book:
    return Book({f"{place}/granted": "allow", "/workspace": "allow"})


def files(whose: Any) -> Table:
    return Table(Files(whose, MIB).syscalls())


def call(book: Book) -> Call:
    async def nowhere(chunk: bytes) -> None:
        raise AssertionError("nothing is streamed")

    return Call(Caller(7, "agent", "seven", Table(()), book, book), False, nowhere)


async def read(table: Table, book: Book, path: str) -> Any:
    return codec.parse(await table.perform(Op.READ, call(book), Read(path=path)))  # type: ignore[arg-type]


async def write(table: Table, book: Book, path: str, **more: Any) -> None:
    request = WriteRequest(**{"path": path, "mode": "write", "data": b"new", **more})
    await table.perform(Op.WRITE, call(book), request)


async def test_what_is_judged_is_what_was_found(place: Path, book: Book) -> None:
    (place / "inward").symlink_to(place / "granted")
    service = files(Somewhere(place))

    assert (await read(service, book, f"{place}/inward/notes"))["content"] == "notes"
    with pytest.raises(PermissionDenied) as caught:
        await read(service, book, f"{place}/granted/link")

    assert [(entry.about, entry.outcome) for entry in book.entries] == [
        (f"{place}/granted/notes", "ok"),
        (f"{place}/secret", "permission_denied"),
    ]
    assert "secret" not in str(caught.value)
    assert caught.value.details == {"rule": "no rule"}


async def test_nothing_is_written_before_the_intent_is(place: Path, book: Book) -> None:
    service = files(Somewhere(place))
    book.full = True

    for mode in ("write", "append"):
        for name in ("notes", "new"):
            with pytest.raises(Unavailable, match="audit log"):
                await write(service, book, f"{place}/granted/{name}", mode=mode)

    assert sorted(os.listdir(place / "granted")) == ["link", "notes"]
    assert (place / "granted" / "notes").read_text() == "notes"


@pytest.mark.parametrize("mode", ["write", "append"])
async def test_no_write_is_done_while_the_files_are_copied(place: Path, book: Book, mode: str) -> None:
    whose, target = Somewhere(place), place / "granted" / "new"

    async with trio.open_nursery() as nursery, whose.writes.hold():
        nursery.start_soon(partial(write, files(whose), book, "/workspace/granted/new", mode=mode))
        await wait_all_tasks_blocked()
        assert not target.exists()
        assert (await read(files(whose), book, "/workspace/granted/notes"))["content"] == "notes"
    assert target.read_text() == "new"


async def test_files_are_copied_when_the_writes_that_go_on_have_ended(autojump_clock: MockClock) -> None:
    writes, seen = Writes(), list[str]()

    async def write_for(seconds: float) -> None:
        async with writes:
            seen.append("begun")
            await trio.sleep(seconds)
            seen.append("ended")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_for, 1)
        nursery.start_soon(write_for, 2)
        await wait_all_tasks_blocked()
        with trio.move_on_after(1.5):  # a snapshot that is given up leaves nothing held
            async with writes.hold():
                seen.append("never copied")
        async with writes.hold():
            seen.append("copied")
            nursery.start_soon(write_for, 1)
            await trio.sleep(5)
    assert seen == ["begun", "begun", "ended", "ended", "copied", "begun", "ended"]


async def test_what_a_person_has_to_allow_is_not_done(place: Path, book: Book) -> None:
    book.allowed = {f"{place}/granted": "ask"}
    service = files(Somewhere(place))

    with pytest.raises(ApprovalRequired):
        await write(service, book, f"{place}/granted/new")
    with pytest.raises(ApprovalRequired):
        await read(service, book, f"{place}/granted/none")

    assert sorted(os.listdir(place / "granted")) == ["link", "notes"]


async def test_a_caller_that_may_not_look_is_not_told_whether_there_is_a_file(place: Path, book: Book) -> None:
    service, describe_right = files(Somewhere(place)), []

    for name in ("secret", "gone!!", "secret/x", "granted/link", "granted/none"):
        with pytest.raises(CallError) as caught:
            await read(service, book, f"{place}/{name}")
        describe_right.append((str(caught.value), type(caught.value)))

    assert describe_right[0][0].replace("secret", "gone!!") == describe_right[1][0]
    assert [kind for _, kind in describe_right] == [*[PermissionDenied] * 4, NotFound]


@define
class SlowHost:
    """One's own files are at hand; the host's don't answer before ``answers``, as those of a dead server."""

    directory: Path
    answers: threading.Event = field(factory=threading.Event)
    asked: int = 0

    def writes_of(self, caller: Caller) -> Writes:
        return Writes()

    def path_request(self, caller: Caller, path: str) -> PathRequest:
        if path.startswith("/workspace/"):
            return own(self.directory, path.removeprefix("/workspace/"))
        return PathRequest(path, path, path, root=partial(self.opened))

    @contextmanager
    def opened(self) -> Iterator[int]:
        self.asked += 1
        assert self.answers.wait(PATIENCE)
        raise FileNotFoundError(errno.ENOENT, "nothing there")
        yield 0


async def test_a_file_system_that_doesnt_answer_holds_up_only_the_calls_to_it(place: Path, book: Book) -> None:
    """However many try, and with a grant or without one."""
    whose = SlowHost(place / "granted")
    service = files(whose)

    async def ask(path: str) -> None:
        with pytest.raises(NotFound):
            await read(service, book, path)

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(ask, "/dead/x")
        for _ in range(30):
            nursery.start_soon(ask, f"{place}/granted/dead")
        while whose.asked < 10:
            await trio.sleep(0.01)
        try:
            with trio.fail_after(PATIENCE):
                for _ in range(50):
                    assert (await read(service, book, "/workspace/notes"))["content"] == "notes"
                await write(service, book, "/workspace/new")
            assert whose.asked == 10  # the rest waits for a thread
        finally:
            whose.answers.set()


async def test_one_that_asks_for_much_waits_behind_itself(place: Path, book: Book) -> None:
    whose = SlowHost(place / "granted")
    service = files(whose)
    greedy = call(book)

    async def ask() -> None:
        with pytest.raises(NotFound):
            await service.perform(Op.READ, greedy, Read(path=f"{place}/granted/dead"))

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(ask)
        while whose.asked < 4:
            await trio.sleep(0.01)
        for _ in range(100):
            await trio.lowlevel.checkpoint()

        assert whose.asked == 4
        whose.answers.set()


async def test_a_file_that_rules_deny_is_not_opened(place: Path, book: Book) -> None:
    """The kernel's own databases are such: closing a descriptor of theirs would release the locks of this process."""
    table = files(Somewhere(place))
    read_syscall, secret = table.syscalls[Op.READ], place / "secret"
    with open(secret, "r+b") as file:  # noqa: ASYNC230
        fcntl.lockf(file, fcntl.LOCK_EX)
        for path in (str(secret), f"{place}/granted/link"):
            with pytest.raises(PermissionDenied):
                await read(table, book, path)
            async with read_syscall.preview(call(book).caller, Read(path=path)):
                pass

        lock = f"import fcntl; fcntl.lockf(open({str(secret)!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        other = await trio.run_process([sys.executable, "-c", lock], check=False, capture_stderr=True)
        assert b"BlockingIOError" in other.stderr


async def test_a_small_file_is_read_in_the_thread_that_resolves_its_path(
    place: Path, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, threads = trio.lowlevel.start_thread_soon, 0

    def count(*args: Any) -> None:
        nonlocal threads
        threads += 1
        start(*args)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", count)

    assert (await read(files(Somewhere(place)), book, f"{place}/granted/notes"))["content"] == "notes"
    assert threads == 1


async def test_what_has_been_read_is_not_given_out_if_the_right_is_revoked_meanwhile(place: Path) -> None:
    @define
    class Revoked(Book):
        """Denies everything after the first decision."""

        def decide(self, caller: Caller, right: Right) -> Decision:
            decision = super().decide(caller, right)
            self.allowed = {}
            return decision

    book = Revoked({"/workspace": "allow"})
    (place / "notes").write_text("notes")

    with pytest.raises(PermissionDenied, match="no rule allows it"):
        await read(files(Somewhere(place)), book, "/workspace/notes")

    assert [(entry.about, entry.outcome) for entry in book.entries] == [("/workspace/notes", "permission_denied")]


async def test_no_descriptor_is_left_of_a_call_that_is_refused_or_explained(place: Path, book: Book) -> None:
    service = files(Somewhere(place))
    caller = call(book).caller
    with pytest.raises(PermissionDenied):
        await read(service, book, f"{place}/secret")
    before = len(os.listdir("/proc/self/fd"))

    for name in ("secret", "granted/link", "secret"):
        with pytest.raises(PermissionDenied):
            await read(service, book, f"{place}/{name}")
        for op, request in (
            (Op.READ, Read(path=f"{place}/{name}")),
            (Op.WRITE, WriteRequest(f"{place}/{name}", "write", b"")),
        ):
            async with service.syscalls[op].preview(caller, request) as prepared:
                assert prepared.rights[0].object == f"{place}/secret"

    assert len(os.listdir("/proc/self/fd")) == before
    assert (place / "secret").read_text() == "secret"


async def test_a_caller_that_does_not_read_its_replies_gets_no_more_of_them(place: Path, book: Book) -> None:
    asked, got = call(book), list[Any]()
    asked.caller.allowance.take(replies=MAX_BODY_BYTES)

    async def ask() -> None:
        got.append(await files(Somewhere(place)).perform(Op.READ, asked, Read(path=f"{place}/granted/notes")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while not book.decided:
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert not got
        asked.caller.allowance.give_back(replies=1)
    content: Any = codec.parse(got[0])
    assert content["content"] == "notes"
