"""READ and WRITE as deputies: paths by which an agent or a guest must not get what it may not have."""

import contextlib
import ctypes
import json
import os
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row
from tests.support.wire import HELLO, PATIENCE, Wire
from tests.system.agents import SLEEPER, ask, relay, up, write

SECRET = "the secret that nobody may have"
MIB = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def place() -> Iterator[Path]:
    """A place on the host that isn't in /tmp, since that is another one for a jailed agent; a secret is in it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="aos-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "granted").mkdir()
        (directory / "secret").write_text(SECRET)
        (directory / "secret").chmod(0o600)
        yield directory


@pytest.fixture
def agent(kernel: Kernel, client: AgentOSClient) -> int:
    """A jailed agent that makes calls for us, and does what it is told; it has no grant on the host."""
    return relay(kernel, client, "a")


@pytest.fixture
def granted(kernel: Kernel, client: AgentOSClient, place: Path) -> int:
    """One that may read and write one directory of the host's."""
    rules = [f"{place}/granted/**"]
    permissions = {"level": "sandboxed", "allow": {"read": rules, "write": rules}}
    return relay(kernel, client, "granted", permissions=permissions)


def refused(reply: dict[str, Any], *codes: str) -> None:
    assert reply.get("code") in (codes or ("permission_denied",)), reply
    assert SECRET not in json.dumps(reply)
    assert "root:x:" not in json.dumps(reply)


# -- Names -------------------------------------------------------------------------------------------------------------

HOSTS = (
    *("/etc/passwd", "/etc/shadow", "//etc//passwd", "/./etc/passwd", "/../etc/passwd", "../etc/passwd"),
    *("../../../../../../etc/passwd", "/workspace/../etc/passwd", "/agent/../etc/passwd", "./../etc/passwd"),
    *("/proc/self/environ", "/proc/1/environ", "/proc/self/root/etc/passwd", "/proc/self/cwd/agentos.toml"),
    *("/proc/self/fd/0", "/proc/self/fd/3", "/dev/fd/3", "/dev/stdin", "/dev/zero", "/dev/mem"),
    *("/run/agentos.sock", "/sdk/agentos_sdk/__init__.py", "/tmp/x", "/workspaces/x", "/workspacex", "/none/such"),
    *("~/.bashrc", "~/../etc/passwd", "~", "/usr/bin/python3", "/", "/workspace/.."),
)


@each_row("path", HOSTS)
def test_no_name_leads_out_of_a_jail(client: AgentOSClient, agent: int, path: str) -> None:
    refused(ask(client, agent, "request", op=Op.READ, fields={"path": path}))
    refused(ask(client, agent, "request", op=Op.WRITE, fields={"path": path, "content": "x"}))
    refused(ask(client, agent, "request", op=Op.WRITE, fields={"path": path, "content": "x", "mode": "append"}))


@each_row("path", ["file:///etc/passwd", "%2e%2e/etc", "..\\..\\etc\\passwd", "./~/x", "\u2025/etc"])
def test_a_name_is_nothing_but_a_name(client: AgentOSClient, agent: int, path: str) -> None:
    refused(ask(client, agent, "request", op=Op.READ, fields={"path": path}), "not_found")


@each_row(
    ("path", "codes"),
    [
        ("a\0/../../etc/passwd", ("bad_request",)),
        ("/etc/passwd\0", ("bad_request",)),
        ("\ud800", ("bad_request",)),
        ("x/" * 50_000, ("bad_request",)),
        ("../" * 50_000 + "etc/passwd", ("bad_request",)),
        ("/" * 100_000 + "etc/passwd", ("bad_request",)),
        ("../" * 1_300 + "etc/passwd", ("permission_denied",)),
        ("d/../" * 800 + "x", ("not_found",)),
    ],
)
def test_an_odd_name_is_refused(client: AgentOSClient, agent: int, path: str, codes: tuple[str, ...]) -> None:
    refused(ask(client, agent, "request", op=Op.READ, fields={"path": path}), *codes)
    refused(ask(client, agent, "request", op=Op.WRITE, fields={"path": path, "content": ""}), *codes)


LINKS = (
    *("/etc/passwd", "/etc/shadow", "../etc/passwd", "/", "..", "/proc/self/environ", "/proc/self/root"),
    *("/proc/1/root", "/proc/self/cwd", "/proc/self/fd/0", "/dev/zero", "/dev/fd/3", "/run/agentos.sock"),
    *("/workspace/honest", "/agent/relay.py", "/tmp/x", "../agent/relay.py"),
)


@each_row("target", LINKS)
def test_no_link_in_a_workspace_leads_out_of_it(client: AgentOSClient, agent: int, target: str) -> None:
    code = "import os; open('honest', 'w').write('x'); os.path.lexists('link') and os.unlink('link')"
    assert ask(client, agent, "run", code=f"{code}; os.symlink({target!r}, 'link')") == "done"

    for path in ("link", "link/passwd", "link/etc/passwd", "/workspace/link"):
        refused(ask(client, agent, "read_file", path=path))
        refused(ask(client, agent, "write_file", path=path, content="x"))
        refused(ask(client, agent, "write_file", path=path, content="x", mode="append"))


def test_no_odd_name_in_a_workspace_confuses_what_is_judged(client: AgentOSClient, agent: int) -> None:
    code = (
        "import os; os.mkdir(b'\\xff'); open(b'\\xff/file', 'w').write('odd'); os.symlink(b'\\xff/file', 'link')\n"
        "open('x (deleted)', 'w').write('it is there'); open('a\\nb', 'w').write('two lines')"
    )
    assert ask(client, agent, "run", code=code) == "done"

    refused(ask(client, agent, "read_file", path="link"), "bad_request")
    refused(ask(client, agent, "write_file", path="link", content="x"), "bad_request")
    assert up(ask(client, agent, "read_file", path="x (deleted)"))["content"] == "it is there"
    assert up(ask(client, agent, "read_file", path="a\nb"))["content"] == "two lines"


def test_the_hosts_agent_directory_is_not_taken_for_ones_own(kernel: Kernel, client: AgentOSClient) -> None:
    """Both are called /agent, and a rule about one's own must not open the host's."""
    host = Path("/agent")
    if os.geteuid() != 0 or host.exists():
        pytest.skip("only root can make /agent, and only where there is none")
    host.mkdir()
    try:
        (host / "hosts").write_text(SECRET)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            (Path(name) / "link").symlink_to(host)
            permissions = {"level": "sandboxed", "allow": {"read": [f"{name}/**"]}}
            agent = relay(kernel, client, "veiled", permissions=permissions)
            for path in ("/agent/hosts", f"{name}/link/hosts", "/../agent/hosts", "~/../agent/hosts"):
                refused(ask(client, agent, "read_file", path=path), "permission_denied", "not_found")
            assert "recv_messages" in up(ask(client, agent, "read_file", path="/agent/relay.py"))["content"]
    finally:
        (host / "hosts").unlink()
        host.rmdir()


# -- What a grant opens, and what it doesn't ---------------------------------------------------------------------------


def test_a_grant_is_not_stretched_by_a_link(client: AgentOSClient, granted: int, place: Path) -> None:
    (place / "granted" / "honest").write_text("honest")
    (place / "granted" / "link").symlink_to(place / "secret")
    (place / "granted" / "up").symlink_to("..")
    (place / "inward").symlink_to(place / "granted")

    assert up(ask(client, granted, "read_file", path=f"{place}/granted/honest"))["content"] == "honest"
    assert up(ask(client, granted, "read_file", path=f"{place}/inward/honest"))["content"] == "honest"
    for path in ("granted/link", "granted/up/secret", "granted/../secret", "granted/up/up/etc/passwd", "secret"):
        refused(ask(client, granted, "read_file", path=f"{place}/{path}"))
        refused(ask(client, granted, "write_file", path=f"{place}/{path}", content="x"))
        refused(ask(client, granted, "write_file", path=f"{place}/{path}", content="x", mode="append"))
    assert (place / "secret").read_text() == SECRET


def test_no_caller_learns_where_a_link_leads_or_what_is_there(client: AgentOSClient, granted: int, place: Path) -> None:
    """Links to what is and to what isn't there get the same answer, and so does a name without a link."""
    hidden = place / "hidden"
    hidden.mkdir()
    (hidden / "there").write_text(SECRET)
    (place / "granted" / "link").symlink_to(hidden)

    for method, more in (("read_file", {}), ("write_file", {"content": "x"})):
        for directory in (place / "granted" / "link", hidden):
            there, absent, deeper = (
                ask(client, granted, method, path=f"{directory}/{name}", **more)
                for name in ("there", "gone!", "no/such")
            )
            refused(there)
            assert there["error"].replace("there", "gone!", 1) == absent["error"].replace("there", "gone!", 1)
            assert deeper["code"] == "permission_denied"
            assert directory == hidden or "hidden" not in json.dumps((there, absent, deeper))


def test_a_second_name_of_a_secret_gives_nothing_away(client: AgentOSClient, granted: int, place: Path) -> None:
    os.link(place / "secret", place / "granted" / "innocent")

    refused(ask(client, granted, "read_file", path=f"{place}/granted/innocent"))
    refused(ask(client, granted, "write_file", path=f"{place}/granted/innocent", content="x", mode="append"))
    up(ask(client, granted, "write_file", path=f"{place}/granted/innocent", content="x"))  # becomes a file of its own
    assert (place / "secret").read_text() == SECRET


def test_a_second_name_in_a_workspace_of_the_hosts_gives_no_more_than_its_mode(
    kernel: Kernel, client: AgentOSClient, place: Path
) -> None:
    """The kernel reads there as the agent, which can't open it itself."""
    if os.geteuid() != 0:
        pytest.skip("without root an agent is our own user outside, and only root makes files of others")
    shared = place / "shared"
    shared.mkdir()
    os.link(place / "secret", shared / "innocent")
    os.chown(shared, 12345, 12345)
    agent = relay(kernel, client, "sharing", workspace=str(shared))
    assert ask(client, agent, "run", code="import os; assert not os.access('innocent', os.R_OK)") == "done"

    refused(ask(client, agent, "read_file", path="innocent"))
    refused(ask(client, agent, "write_file", path="innocent", content="x", mode="append"))
    assert (place / "secret").read_text() == SECRET


def test_a_guest_gets_what_it_was_left_and_nothing_by_a_second_name(kernel: Kernel, place: Path) -> None:
    (place / "granted" / "notes").write_text("notes")
    os.link(place / "secret", place / "granted" / "innocent")
    permissions = {"allow": {"read": [f"{place}/granted/**"]}}
    with kernel.connect() as wire:
        assert wire.call(HELLO, {"as": "visitor", "permissions": permissions})["success"]

        assert wire.call(Op.READ, {"path": f"{place}/granted/notes"})["content"] == "notes"
        for path in ("granted/innocent", "secret", "granted/../secret"):
            refused(wire.call(Op.READ, {"path": f"{place}/{path}"}))
        refused(wire.call(Op.WRITE, {"path": f"{place}/granted/notes", "content": "x"}))
    assert (place / "granted" / "notes").read_text() == "notes"


def test_what_an_agent_makes_on_the_host_is_not_roots(client: AgentOSClient, granted: int, place: Path) -> None:
    for name, mode in (("new", "write"), ("log", "append")):
        up(ask(client, granted, "write_file", path=f"{place}/granted/{name}", content="#!/bin/sh\n", mode=mode))

        status = os.stat(place / "granted" / name)
        assert stat.S_IMODE(status.st_mode) & 0o7133 == 0
        assert status.st_uid != 0


@each_row("name", [".env", ".ssh/id_ed25519", ".git-credentials", "deep/.aws/credentials"])
def test_credentials_are_denied_by_whatever_name_they_are_reached(
    client: AgentOSClient, granted: int, place: Path, name: str
) -> None:
    (place / "granted" / name).parent.mkdir(parents=True, exist_ok=True)
    (place / "granted" / name).write_text(SECRET)
    innocent = place / "granted" / "innocent"
    innocent.unlink(missing_ok=True)
    innocent.symlink_to(name)

    for path in (name, "innocent"):
        refused(ask(client, granted, "read_file", path=f"{place}/granted/{path}"))
    refused(client.read_file(str(innocent)))  # the operator's slip counts as well


ITSELF = ("environ", "mem", "maps", "root/etc/passwd", "cwd/agentos.toml", "fd/0", "task/{pid}/environ")


@each_row("file", ITSELF)
def test_the_kernel_gives_no_caller_its_own_memory(kernel: Kernel, client: AgentOSClient, file: str) -> None:
    for pid in (str(kernel.pid), "self", "thread-self"):
        refused(client.read_file(f"/proc/{pid}/{file.format(pid=kernel.pid)}"), "permission_denied", "not_found")


# -- Special files -----------------------------------------------------------------------------------------------------

SPECIAL = {
    "a FIFO": "os.mkfifo('odd')",
    "a socket": "import socket; socket.socket(socket.AF_UNIX).bind('odd')",
    "a directory": "os.mkdir('odd')",
    "a link to a FIFO": "os.mkfifo('fifo'); os.symlink('fifo', 'odd')",
}


@each_row("kind", SPECIAL)
def test_no_special_file_makes_the_kernel_wait(kernel: Kernel, client: AgentOSClient, agent: int, kind: str) -> None:
    make = f"import os; os.mkdir({kind!r}); os.chdir({kind!r}); {SPECIAL[kind]}; os.chdir('..')"
    assert ask(client, agent, "run", code=make) == "done"

    path = f"{kind}/odd"
    refused(ask(client, agent, "read_file", path=path), "bad_request")
    refused(ask(client, agent, "write_file", path=path, content="x"), "bad_request")
    refused(ask(client, agent, "write_file", path=path, content="x", mode="append"), "bad_request")
    assert kernel.answers()


def test_a_device_that_the_host_has_put_in_a_workspace_is_not_touched(
    kernel: Kernel, client: AgentOSClient, place: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a device")
    os.mknod(place / "granted" / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    agent = relay(kernel, client, "with-device", workspace=str(place / "granted"))

    refused(ask(client, agent, "read_file", path="zero"), "bad_request")
    refused(ask(client, agent, "write_file", path="zero", content="x", mode="append"), "bad_request")


def test_a_giant_of_holes_takes_none_of_the_kernels_memory(kernel: Kernel, client: AgentOSClient, agent: int) -> None:
    assert ask(client, agent, "run", code="open('giant', 'w').truncate(250 << 20)") == "done"
    before = kernel.peak_rss

    for fields in ({}, {"limit": 250 << 20}, {"offset": 1}, {"encoding": "base64"}):
        refused(ask(client, agent, "read_file", path="giant", **fields), "bad_request")
    assert up(ask(client, agent, "read_file", path="giant", offset=249 << 20, limit=5))["content"] == "\0" * 5

    assert kernel.peak_rss - before < 32 * MIB


def test_large_files_for_many_at_once_take_a_bounded_amount_of_memory(
    kernel: Kernel, client: AgentOSClient, agent: int
) -> None:
    """One that asks for a hundred files of 10 MiB, and reads no answer, holds up itself alone."""
    assert ask(client, agent, "run", code="open('large', 'w').write('x' * (10 << 20))") == "done"
    before = kernel.peak_rss
    with kernel.connect_as(agent) as wire:
        assert wire.call(HELLO, {"protocol": 2})["success"]
        for number in range(1, 101):
            wire.send(Op.READ, {"path": "large"}, number)
        until(lambda: kernel.peak_rss - before > 30 * MIB, "it answers", show=lambda: kernel.peak_rss - before)
        until(lambda: rests(kernel), "it has answered what it can")

        assert kernel.answers()
        assert kernel.peak_rss - before < 250 * MIB


def rests(kernel: Kernel) -> bool:
    """Whether its peak has not grown for as long as a read of 10 MiB takes ten times."""
    before = kernel.peak_rss
    time.sleep(1)
    return kernel.peak_rss == before


# -- What is written down ----------------------------------------------------------------------------------------------


def test_what_no_rule_had_to_refuse_is_written_down_too(client: AgentOSClient, agent: int) -> None:
    for path in ("../etc/passwd", "/tmp/x"):
        refused(ask(client, agent, "request", op=Op.READ, fields={"path": path}))
        refused(ask(client, agent, "request", op=Op.WRITE, fields={"path": path, "content": "x"}))

    def entries() -> list[tuple[str, str, str, str]]:
        found = up(client.get_audit_log(agent_id=agent))["entries"]
        return [(one["call"], one["about"], one["decision"], one["rule"]) for one in found if one["call"] != "NOOP"]

    expected = {
        (call, path, "deny", "paths of this kind of caller")
        for call in ("READ", "WRITE")
        for path in ("../etc/passwd", "/tmp/x")
    }
    until(lambda: expected <= set(entries()), f"{expected} are among {entries()}")


@each_row("path", ["honest", "secret", "granted/link", "granted/none", "granted/no/ne", "none"])
def test_what_is_explained_is_what_is_done(client: AgentOSClient, granted: int, place: Path, path: str) -> None:
    (place / "granted" / "honest").write_text("honest")
    for link, target in ((place / "honest", "granted/honest"), (place / "granted" / "link", place / "secret")):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    before = {name: os.stat(place / name).st_mtime_ns for name in ("granted", "secret", "granted/honest")}

    for call in ("READ", "WRITE"):
        explained = up(client.explain("granted", call, {"path": f"{place}/{path}"}))
        assert before == {name: os.stat(place / name).st_mtime_ns for name in before}
        more = {} if call == "READ" else {"content": "x"}
        done = ask(client, granted, "request", op=Op[call], fields={"path": f"{place}/{path}", **more})
        assert (explained["decision"] == "deny") == (done.get("code") == "permission_denied"), (explained, done)
        before = {name: os.stat(place / name).st_mtime_ns for name in before}


# -- Races -------------------------------------------------------------------------------------------------------------


def exchange(one: Path, other: Path) -> None:
    """Each takes the other's name, in one step."""
    assert _LIBC.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0, ctypes.get_errno()


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[Counter[str]]:
    """Another thread exchanges them as fast as it can."""
    over, count = threading.Event(), Counter[str]()

    def swap() -> None:
        while not over.is_set():
            exchange(one, other)
            count["swaps"] += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield count
    finally:
        over.set()
        thread.join()


BOTH = ("done", "permission_denied")


def raced(
    wire: Wire,
    op: Op,
    fields: dict[str, object],
    times: int,
    least: int,
    answers: Sequence[str] = BOTH,
    secret: str = SECRET,
) -> Counter[str]:
    """How often each answer came, in so many calls or until each of ``answers`` came more than ``least`` times."""
    outcomes, deadline = Counter[str](), time.monotonic() + PATIENCE
    while outcomes.total() < times or (
        any(outcomes[answer] <= least for answer in answers) and time.monotonic() < deadline
    ):
        reply = wire.call(op, fields)
        assert secret not in json.dumps(reply)
        outcomes[str(reply.get("code", "done"))] += 1
    return outcomes


def race_in(place: Path, what: str) -> tuple[Path, Path, str]:
    """Two names to exchange, of which one leads to what is granted and the other to the secret; and the path to ask."""
    inner, outer = place / "granted", place
    match what:
        case "a file and a link":
            (inner / "file").write_text("honest")
            (inner / "link").symlink_to(outer / "secret")
            return inner / "file", inner / "link", f"{inner}/file"
        case "a directory and a link":
            (inner / "d").mkdir()
            (inner / "d" / "secret").write_text("honest")
            (inner / "link").symlink_to(outer)
            return inner / "d", inner / "link", f"{inner}/d/secret"
    raise AssertionError(what)


@pytest.mark.parametrize("what", ["a file and a link", "a directory and a link"])
def test_no_race_makes_a_grant_give_a_secret_away(kernel: Kernel, granted: int, place: Path, what: str) -> None:
    one, other, path = race_in(place, what)
    with swapping(one, other) as count, kernel.connect_as(granted) as wire:
        outcomes = raced(wire, Op.READ, {"path": path}, rounds(100), 20)

    print(f"{what}: {outcomes} in {count['swaps']} swaps")
    assert outcomes["done"] > 20
    assert outcomes["permission_denied"] > 20
    assert set(outcomes) <= {"done", "permission_denied", "not_found", "busy"}


@pytest.mark.parametrize("mode", ["write", "append"])
@pytest.mark.parametrize("what", ["a file and a link", "a directory and a link"])
def test_no_race_makes_a_grant_write_elsewhere(kernel: Kernel, granted: int, place: Path, what: str, mode: str) -> None:
    one, other, path = race_in(place, what)
    before = sorted(os.listdir(place))
    # A file that is written takes the place of the link, which soon there is none any more.
    answers = BOTH[:1] if (what, mode) == ("a file and a link", "write") else BOTH
    with swapping(one, other) as count, kernel.connect_as(granted) as wire:
        outcomes = raced(wire, Op.WRITE, {"path": path, "content": "evil", "mode": mode}, rounds(100), 10, answers)

    print(f"{what}, {mode}: {outcomes} in {count['swaps']} swaps")
    assert (place / "secret").read_text() == SECRET
    assert sorted(os.listdir(place)) == before
    assert all(outcomes[answer] > 10 for answer in answers)
    assert [name for name in os.listdir(place / "granted") if name.startswith(".agentos-")] == []


SWAPPER = """
import ctypes, os, threading
libc = ctypes.CDLL(None)
os.mkdir("d"); open("d/passwd", "w").write("honest")
os.symlink("/etc", "link"); os.symlink("../../../../../../etc", "up")
def swap(other):
    while True:
        libc.renameat2(-100, b"d", -100, other, 2)
for other in (b"link", b"up"):
    threading.Thread(target=swap, args=(other,), daemon=True).start()
"""


@pytest.mark.usefixtures("long")
def test_no_race_in_its_workspace_leads_an_agent_out(kernel: Kernel, client: AgentOSClient, agent: int) -> None:
    passwd = Path("/etc/passwd").read_bytes()
    assert ask(client, agent, "run", code=SWAPPER) == "done"
    with kernel.connect_as(agent) as wire:
        read = raced(wire, Op.READ, {"path": "d/passwd"}, rounds(100), 10, secret="root:")
        written = raced(wire, Op.WRITE, {"path": "d/passwd", "content": "evil"}, rounds(100), 10)
        appended = raced(wire, Op.WRITE, {"path": "d/passwd", "content": "evil", "mode": "append"}, rounds(100), 10)

    print(f"read {read}, written {written}, appended {appended}")
    for outcomes in (read, written, appended):
        assert outcomes["done"] > 10
        assert outcomes["permission_denied"] > 10
        assert set(outcomes) <= {"done", "permission_denied", "not_found", "busy"}
    assert Path("/etc/passwd").read_bytes() == passwd


def test_refusals_leave_no_file_open(kernel: Kernel, client: AgentOSClient, granted: int, place: Path) -> None:
    os.mkfifo(place / "granted" / "fifo")
    (place / "granted" / "link").symlink_to(place / "secret")
    files = kernel.open_files
    with kernel.connect_as(granted) as wire:
        for _ in range(10):
            for path in ("fifo", "link", "none", "no/ne", "../secret", "x" * 300):
                for op, more in ((Op.READ, {}), (Op.WRITE, {"content": "x"})):
                    if path not in ("none", "x" * 300) or op == Op.READ:
                        assert not wire.call(op, {"path": f"{place}/granted/{path}", **more})["success"]

    until(lambda: kernel.open_files < files + 10, "no file is left open")  # fewer than were refused
    assert sorted(os.listdir(place / "granted")) == ["fifo", "link"]


def test_an_agent_that_has_ended_leaves_nothing_to_read(kernel: Kernel, client: AgentOSClient) -> None:
    """Its number may be somebody else's by now."""
    agent = int(up(client.spawn("brief", write(kernel, "sleeper.py", SLEEPER)))["id"])
    with kernel.connect_as(agent) as wire:
        up(wire.call(Op.WRITE, {"path": "x", "content": "x"}))
        client.kill("brief", grace=0)
        with contextlib.suppress(ConnectionError):
            refused(wire.call(Op.READ, {"path": "x"}), "unavailable")
