"""Rulesets by ABI: against the kernel's header, and against the kernel, under every ABI that it has."""

import ctypes
import errno
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.filters import landlock
from agentos.sandbox.filters.landlock import (
    ALL_FILES,
    READ,
    FileRights,
    HandledRights,
    PathRule,
    PortRights,
    Scope,
    build_ruleset,
    probe_abi,
    rights_known_to,
)
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

EVERYTHING = HandledRights(ALL_FILES, PortRights(3), Scope(3))
ABIS = range(1, 12)
HERE = probe_abi()
needs_landlock = pytest.mark.skipif(
    HERE == 0 and "AGENTOS_MUST_SANDBOX" not in os.environ, reason="this kernel has no Landlock, or it is switched off"
)

files = st.builds(FileRights, st.integers(0, ALL_FILES))
walls = st.builds(HandledRights, files, st.builds(PortRights, st.integers(0, 3)), st.builds(Scope, st.integers(0, 3)))


@each_row(
    ("abi", "known"),
    [
        (0, (0, 0, 0)),
        (1, (0x1FFF, 0, 0)),
        (2, (0x3FFF, 0, 0)),
        (3, (0x7FFF, 0, 0)),
        (4, (0x7FFF, 3, 0)),
        (5, (0xFFFF, 3, 0)),
        (6, (0xFFFF, 3, 3)),
        (7, (0xFFFF, 3, 3)),
        (8, (0xFFFF, 3, 3)),
        (9, (0x1FFFF, 3, 3)),
        (99, (0x1FFFF, 3, 3)),
    ],
)
def test_each_abi_knows_its_rights(abi: int, known: tuple[int, int, int]) -> None:
    assert rights_known_to(abi) == HandledRights(FileRights(known[0]), PortRights(known[1]), Scope(known[2]))


@given(walls, st.sampled_from(ABIS))
def test_a_ruleset_never_handles_what_its_abi_lacks_and_says_what_it_lacks(asked: HandledRights, abi: int) -> None:
    try:
        made = build_ruleset(abi, asked)
    except ValueError:
        assert asked.known_to(abi) == HandledRights()
        return

    assert made.walls == made.walls.known_to(abi)
    assert made.walls.ports | made.missing.ports == asked.ports
    assert made.walls.scope | made.missing.scope == asked.scope
    assert (made.walls.files | made.missing.files) ^ asked.files in (FileRights(0), FileRights.REFER)


@given(files, files, st.booleans(), st.sampled_from(ABIS))
def test_a_rule_only_allows_what_is_handled(
    handled: FileRights, allowed: FileRights, directory: bool, abi: int
) -> None:
    made = HandledRights(files=handled).known_to(abi)
    rule = PathRule("/x", allowed, directory)

    packed, fd = struct.unpack("=Qi", rule.pack(7, made))

    assert fd == 7
    assert packed & ~(allowed & made.files) == 0
    assert directory or packed & (FileRights.READ_DIR | FileRights.REFER | landlock.MAKE | landlock.REMOVE) == 0


@each_row(("abi", "size"), [(1, 8), (3, 8), (4, 16), (5, 16), (6, 24), (9, 24)])
def test_the_structure_is_as_long_as_the_abi_knows_it(abi: int, size: int) -> None:
    packed = build_ruleset(abi, EVERYTHING).pack()

    assert len(packed) == size
    values = rights_known_to(abi)
    assert packed == struct.pack("=3Q", values.files, values.ports, values.scope)[:size]


def test_a_ruleset_names_what_cannot_be_denied() -> None:
    assert build_ruleset(3, EVERYTHING).missing.names() == (
        *("ioctl_dev", "resolve_unix"),
        *("bind_tcp", "connect_tcp", "abstract_unix_socket", "signal"),
    )
    assert build_ruleset(9, EVERYTHING).missing == HandledRights()


def test_moving_between_directories_is_never_missing_because_abi_1_always_denies_it() -> None:
    assert FileRights.REFER not in build_ruleset(1, EVERYTHING).missing.files


def test_rules_of_which_nothing_is_handled_are_left_out() -> None:
    paths = [
        PathRule("/a", READ),
        PathRule("/dev", FileRights.IOCTL_DEV),
        PathRule("/file", FileRights.READ_DIR, directory=False),
    ]

    made = build_ruleset(4, HandledRights(ALL_FILES), paths)

    assert made.paths == (PathRule("/a", READ),)


def test_a_ruleset_that_would_be_no_wall_is_refused() -> None:
    with pytest.raises(ValueError, match="ABI 0 handles nothing"):
        build_ruleset(0, EVERYTHING)
    with pytest.raises(ValueError, match="ABI 5 handles nothing"):
        build_ruleset(5, HandledRights(scope=Scope.SIGNAL))


def test_the_rights_have_the_numbers_of_the_header() -> None:
    header = Path("/usr/include/linux/landlock.h")
    if not header.exists():
        pytest.skip(f"no {header} (linux-libc-dev)")
    found = re.findall(r"#define LANDLOCK_(ACCESS_FS|ACCESS_NET|SCOPE)_(\w+)\s+\(1ULL << (\d+)\)", header.read_text())

    groups = {"ACCESS_FS": FileRights, "ACCESS_NET": PortRights, "SCOPE": Scope}
    assert len(found) >= 14
    assert all(groups[group][name] == 1 << int(bit) for group, name, bit in found)


# The kernel.

CHILD = """
import ctypes, json, os, signal, socket, sys
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from agentos.sandbox.filters.landlock import *
if job["uid"] is not None:
    os.setgroups([])
    os.setresgid(job["uid"], job["uid"], job["uid"])
    os.setresuid(job["uid"], job["uid"], job["uid"])
inside, outside, abi = job["inside"], job["outside"], job["abi"]
libc = ctypes.CDLL(None, use_errno=True)
def checked(number, *args):
    result = libc.syscall(number, *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"call {number}")
    return result
made = build_ruleset(
    abi,
    HandledRights(ALL_FILES, PortRights(3), Scope(3)),
    [PathRule("/", EXECUTE), PathRule(inside, READ | WRITE | FileRights.IOCTL_DEV),
     PathRule(outside + "/readable", READ, directory=False)],
)
packed = made.pack()
descriptor = os.open(outside + "/secret", os.O_RDONLY)
fd = checked(CREATE_RULESET, packed, ctypes.c_size_t(len(packed)), 0)
for rule in made.paths:
    where = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
    checked(ADD_RULE, fd, RULE_PATH_BENEATH, rule.pack(where, made.walls), 0)
assert libc.prctl(38, 1, 0, 0, 0) == 0
checked(RESTRICT_SELF, fd, 0)
def attempt(do):
    try:
        do()
    except OSError as error:
        return error.errno
    return 0
def connect(family, address):
    with socket.socket(family) as client:
        client.connect(address)
def bind(port):
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
def write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
def read(path):
    os.close(os.open(path, os.O_RDONLY))
answers = {
    "read": attempt(lambda: read(outside + "/secret")),
    "read over a link": attempt(lambda: read(inside + "/link")),
    "list": attempt(lambda: os.listdir(outside)),
    "write": attempt(lambda: write(outside + "/secret")),
    "create": attempt(lambda: write(outside + "/new")),
    "create a directory": attempt(lambda: os.mkdir(outside + "/new")),
    "remove": attempt(lambda: os.unlink(outside + "/secret")),
    "write what may be read": attempt(lambda: write(outside + "/readable")),
    "move out": attempt(lambda: os.rename(inside + "/file", outside + "/file")),
    "truncate": attempt(lambda: os.truncate(outside + "/secret", 0)),
    "bind a port": attempt(lambda: bind(job["free"])),
    "connect elsewhere": attempt(lambda: connect(socket.AF_INET, ("127.0.0.1", job["other"]))),
    "abstract socket": attempt(lambda: connect(socket.AF_UNIX, job["abstract"])),
    "signal": attempt(lambda: os.kill(job["victim"], 0)),
    "path socket": attempt(lambda: connect(socket.AF_UNIX, outside + "/socket")),
}
allowed = {
    "read": attempt(lambda: read(inside + "/file")),
    "create": attempt(lambda: write(inside + "/new")),
    "list": attempt(lambda: os.listdir(inside)),
    "truncate": attempt(lambda: os.truncate(inside + "/new", 0)),
    "read the readable": attempt(lambda: read(outside + "/readable")),
    "signal oneself": attempt(lambda: os.kill(os.getpid(), 0)),
    "what was open": attempt(lambda: os.read(descriptor, 1)),
}
os.mkdir(inside + "/folder")
moved = attempt(lambda: os.rename(inside + "/new", inside + "/folder/new"))
print(json.dumps([answers, allowed, moved]), flush=True)
os._exit(0)
"""
DENIED_SINCE = {
    **dict.fromkeys(("read", "read over a link", "list", "write", "create", "create a directory", "remove"), 1),
    "write what may be read": 1,
    "move out": 1,
    "truncate": 3,
    "bind a port": 4,
    "connect elsewhere": 4,
    "abstract socket": 6,
    "signal": 6,
    "path socket": 9,
}
ERRORS = {"move out": {errno.EXDEV, errno.EACCES}, "abstract socket": {errno.EPERM}, "signal": {errno.EPERM}}


@pytest.fixture
def place() -> Iterator[Path]:
    """Two directories in which everybody may do everything."""
    folder = Path(tempfile.mkdtemp(prefix="aos-", dir="/tmp"))
    for path in (folder, folder / "inside", folder / "outside"):
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
    for path in (folder / "inside" / "file", folder / "outside" / "secret", folder / "outside" / "readable"):
        path.write_text("text")
        path.chmod(0o666)
    (folder / "inside" / "link").symlink_to(folder / "outside" / "secret")
    yield folder
    shutil.rmtree(folder)


def attack(place: Path, abi: int, uid: int | None) -> tuple[dict[str, int], dict[str, int], int]:
    """What a child under a ruleset of this ABI may do outside, and inside."""
    abstract = f"\0{place.name}"
    with (
        socket.create_server(("127.0.0.1", 0)) as allowed,
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.socket() as free,
        socket.socket(socket.AF_UNIX) as by_name,
        socket.socket(socket.AF_UNIX) as by_path,
        subprocess.Popen(["sleep", "60"], user=uid) as victim,
    ):
        free.bind(("127.0.0.1", 0))
        by_name.bind(abstract)
        by_name.listen()
        by_path.bind(str(place / "outside" / "socket"))
        by_path.listen()
        (place / "outside" / "socket").chmod(0o777)
        job = {
            "path": sys.path,
            "uid": uid,
            "abi": abi,
            "inside": str(place / "inside"),
            "outside": str(place / "outside"),
            "abstract": abstract,
            "victim": victim.pid,
            "free": free.getsockname()[1],
            "port": allowed.getsockname()[1],
            "other": other.getsockname()[1],
        }
        try:
            return run_child(job)
        finally:
            victim.kill()


def run_child(job: dict[str, object]) -> tuple[dict[str, int], dict[str, int], int]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", CHILD],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outside, inside, moved = json.loads(done.stdout)
    return outside, inside, moved


@needs_landlock
@pytest.mark.parametrize("abi", range(1, max(HERE, 1) + 1))
@pytest.mark.parametrize("uid", [None, 65534] if os.geteuid() == 0 else [None])
def test_nothing_outside_can_be_reached_that_the_abi_covers(place: Path, abi: int, uid: int | None) -> None:
    outside, inside, moved = attack(place, abi, uid)

    for what, error in outside.items():
        denied = DENIED_SINCE[what] <= abi
        assert (error in ERRORS.get(what, {errno.EACCES})) == denied, (what, error)
    assert set(inside.values()) == {0}, inside
    assert moved == (0 if abi >= 2 else errno.EXDEV)
    assert (place / "outside" / "secret").read_text() == ("text" if abi >= 3 else "")


@needs_landlock
def test_the_kernel_refuses_what_its_abi_lacks() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    unknown = struct.pack("=Q", 1 << 40)

    fd = libc.syscall(landlock.CREATE_RULESET, unknown, ctypes.c_size_t(len(unknown)), 0)

    assert (fd, ctypes.get_errno()) == (-1, errno.EINVAL)
