"""``agentos cp`` into a jail and out of it, also where the agent lies about what it has."""

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.services.files.as_user import Identity, acting_as
from agentos.userland.cli.common import Failed
from agentos.userland.cli.files.copied import MAX_DEPTH, Copied
from agentos.userland.cli.files.copy_in import add_file, add_path
from agentos_sdk import AgentOSClient
from tests.cli.conftest import Agentos
from tests.support.commands import run_agentos_bytes
from tests.support.kernel import Kernel, environment

BINARY = bytes(range(256)) * 2000 + b"\x04\x03\n"
LONG = "/".join(["a-directory-whose-name-is-long"] * 5)


@pytest.fixture
def box(kernel: Kernel, agentos: Agentos) -> Iterator[AgentOSClient]:
    """A client; the agent is called box."""
    agentos("spawn", "box", "--", "sleep", "1000")
    with AgentOSClient(kernel.socket) as client:
        yield client


def cp(kernel: Kernel, *arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    words = ["cp", "--socket", kernel.socket, *arguments]
    return run_agentos_bytes(words, kernel.place, environment(kernel.place), given)


def shell(client: AgentOSClient, line: str) -> str:
    reply = client.exec(["sh", "-c", line], name="box")
    assert (reply["success"], reply.get("exit_code")) == (True, 0), reply
    return str(reply["stdout"])


def test_a_file_goes_in_and_comes_out_unchanged(kernel: Kernel, box: AgentOSClient, tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(BINARY)
    (tmp_path / "tool").chmod(0o750)

    assert cp(kernel, f"{tmp_path}/tool", "box:copy").stderr == b""
    assert shell(box, "stat -c %a /workspace/copy") == "750\n"
    assert cp(kernel, "box:/workspace/copy", str(tmp_path / "back")).stderr == b""

    assert (tmp_path / "back").read_bytes() == BINARY
    assert os.access(tmp_path / "back", os.X_OK)
    assert cp(kernel, "box:copy", str(tmp_path)).returncode == 0
    assert (tmp_path / "copy").read_bytes() == BINARY


def test_a_directory_goes_in_and_comes_out(kernel: Kernel, box: AgentOSClient, tmp_path: Path) -> None:
    (tmp_path / "src" / LONG).mkdir(parents=True)
    (tmp_path / "src" / LONG / "deep").write_text("deep")
    (tmp_path / "src" / "empty").mkdir()

    assert cp(kernel, f"{tmp_path}/src", "box:/workspace").stderr == b""  # it exists: a copy in it
    assert cp(kernel, f"{tmp_path}/src", "box:/workspace/named").stderr == b""
    assert shell(box, f"cat src/{LONG}/deep named/{LONG}/deep; ls") == "deepdeepnamed\nsrc\n"

    assert cp(kernel, "box:named", f"{tmp_path}/other").stderr == b""
    assert (tmp_path / "other" / LONG / "deep").read_text() == "deep"
    assert (tmp_path / "other" / "empty").is_dir()
    assert cp(kernel, "box:named", f"{tmp_path}/other").returncode == 0
    assert (tmp_path / "other" / "named" / "empty").is_dir()


def test_a_dash_is_stdin_or_stdout(kernel: Kernel, box: AgentOSClient) -> None:
    assert cp(kernel, "-", "box:in", given=BINARY).returncode == 0

    assert cp(kernel, "box:in", "-").stdout == BINARY
    assert cp(kernel, "box:/workspace", "-").stderr == b"agentos: -: expected a file as SRC, and not a directory\n"
    assert b"expected the path of a file" in cp(kernel, "-", "box:/workspace", given=b"x").stderr


def test_links_and_special_files_are_named_and_not_copied(kernel: Kernel, box: AgentOSClient, tmp_path: Path) -> None:
    shell(
        box,
        "mkdir d; cd d; ln -s /etc/passwd link; mkfifo pipe; echo a > a; ln a hard; touch \"$(printf 'x\\033[2J')\"",
    )

    done = cp(kernel, "box:d", str(tmp_path))

    told = sorted(done.stderr.decode().splitlines())
    assert done.returncode == 1
    assert told[-2:] == [
        r"agentos: not copied: d/pipe: neither a file nor a directory",
        r"agentos: not copied: d/x\x1b[2J: its name has characters that can't be printed",
    ]
    assert "agentos: not copied: d/link: a link" in told
    names = set(os.listdir(tmp_path / "d"))
    assert "link" not in names
    assert len(names & {"a", "hard"}) == 1
    (tmp_path / "out" / "in").mkdir(parents=True)
    (tmp_path / "out" / "secrets").symlink_to("/etc")
    (tmp_path / "out" / "secret").symlink_to("/etc/passwd")
    done = cp(kernel, str(tmp_path / "out"), "box:/workspace")
    assert (done.returncode, shell(box, "ls out")) == (1, "in\n")
    assert done.stderr.count(b": a link\n") == 2


def archive(*members: tuple[str, bytes, bytes | str]) -> bytes:
    """A tar archive of (name, type, data or a link's target)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as file:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(content, str):
                info.linkname, content = content, b""
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return data.getvalue()


def lying(client: AgentOSClient, data: bytes) -> None:
    """An agent in whose jail tar writes this."""
    path = "/workspace/bin:/usr/bin:/bin"
    assert client.spawn("liar", command=["sleep", "1000"], env={"PATH": path})["success"]
    code = "import sys; open('/workspace/archive', 'wb').write(bytes.fromhex(sys.stdin.read()))"
    assert client.exec(["python3", "-c", code], name="liar", stdin=data.hex())["exit_code"] == 0
    line = "mkdir bin; printf '#!/bin/sh\\ncat /workspace/archive\\n' > bin/tar; chmod +x bin/tar"
    assert client.exec(["sh", "-c", line], name="liar")["exit_code"] == 0


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", tarfile.REGTYPE, b"x")],
        [("/evil", tarfile.REGTYPE, b"x")],
        [("d/../../evil", tarfile.REGTYPE, b"x")],
        [("evil", tarfile.REGTYPE, b"x")],
        [("d", tarfile.SYMTYPE, ".."), ("d/evil", tarfile.REGTYPE, b"x")],
        [("d", tarfile.DIRTYPE, b""), ("d/up", tarfile.SYMTYPE, "../.."), ("d/up/evil", tarfile.REGTYPE, b"x")],
        [("d", tarfile.DIRTYPE, b""), ("d/evil", tarfile.LNKTYPE, "/etc/passwd")],
        [("d", tarfile.REGTYPE, b"x"), ("d/evil", tarfile.REGTYPE, b"x")],
        [("d/evil", tarfile.REGTYPE, b"x")],
    ],
)
def test_no_archive_writes_outside_of_the_target(
    kernel: Kernel, box: AgentOSClient, tmp_path: Path, members: list[tuple[str, bytes, bytes | str]]
) -> None:
    (tmp_path / "deep" / "target").mkdir(parents=True)
    lying(box, archive(*members))

    done = cp(kernel, "liar:/workspace/d", str(tmp_path / "deep" / "target"))

    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert {path.name for path in tmp_path.rglob("*")} <= {"deep", "target", "d"}


def test_a_path_that_no_program_opens_is_named_and_the_rest_copied(
    kernel: Kernel, box: AgentOSClient, tmp_path: Path
) -> None:
    """An agent may make any number of levels, more than a path or the limit of open files takes."""
    long = "/".join(["d", *["n" * 100] * 50, "x"])
    names = [long, "d/" + "e/" * 1900 + "x", "d/" + "f/" * 201 + "x"]
    lying(box, archive(("d", tarfile.DIRTYPE, b""), *((name, tarfile.REGTYPE, b"x") for name in (*names, "d/y"))))

    done = cp(kernel, "liar:/workspace/d", str(tmp_path))

    assert [line.rpartition(": ")[2] for line in done.stderr.decode().splitlines()] == [
        "its path is longer than Linux takes",
        *["it lies more than 200 directories deep"] * 2,
    ]
    assert (done.returncode, {path.name for path in tmp_path.rglob("*")}) == (1, {"d", "y"})


@pytest.mark.parametrize("data", [b"no archive at all" * 100, archive(("d", tarfile.REGTYPE, b"x" * 5000))[:1500], b""])
def test_what_is_no_archive_is_an_error(kernel: Kernel, box: AgentOSClient, tmp_path: Path, data: bytes) -> None:
    lying(box, data)

    done = cp(kernel, "liar:d", str(tmp_path))

    assert done.returncode == 1
    assert done.stderr.startswith(b"agentos: liar:/workspace/d: ")
    assert b"Traceback" not in done.stderr


def test_a_symlink_on_the_host_is_not_written_through(kernel: Kernel, box: AgentOSClient, tmp_path: Path) -> None:
    shell(box, "mkdir d; echo new > d/file")
    (tmp_path / "d").mkdir()
    (tmp_path / "elsewhere").write_text("old")
    (tmp_path / "d" / "file").symlink_to(tmp_path / "elsewhere")

    done = cp(kernel, "box:d", str(tmp_path))

    assert (done.returncode, (tmp_path / "elsewhere").read_text()) == (1, "old")
    assert b"d/file: it exists, and is no regular file" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("a", "b"), 2, "expected NAME:PATH"),
        (("box:a", "box:b"), 2, "expected NAME:PATH"),
        (("box:/", "."), 2, "expected the path of a file or a directory"),
        (("box:none", "."), 1, "none: "),
        (("none", "box:x"), 1, "none: No such file or directory"),
        (("nobody:x", "."), 1, "no agent is called 'nobody'"),
        (("box:.", "no/such/place"), 1, "no/such: No such file or directory"),
    ],
)
def test_mistakes_are_told(kernel: Kernel, box: AgentOSClient, words: tuple[str, ...], status: int, text: str) -> None:
    done = cp(kernel, *words)

    assert (done.returncode, text in done.stderr.decode()) == (status, True), done.stderr


def test_a_file_that_has_become_shorter_ends_the_copy() -> None:
    """What comes after it in the archive would be taken for its content."""
    copied = Copied()

    with tarfile.open(fileobj=io.BytesIO(), mode="w|") as file, pytest.raises(OSError, match="unexpected end of data"):
        add_file(file, "log", io.BytesIO(b"ab"), 3, 0o644, copied)

    assert (copied.files, copied.bytes) == (0, 0)


def test_a_directory_that_can_not_be_read_ends_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir(0)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)

    with (
        tarfile.open(fileobj=io.BytesIO(), mode="w|") as file,
        pytest.raises(Failed, match="closed: Permission denied"),
        acting_as(Identity(65534, 65534) if os.geteuid() == 0 else None),  # root reads all
    ):
        add_path(file, ".", "copy", Copied())


def test_what_lies_too_deep_is_told_and_the_rest_copied(tmp_path: Path) -> None:
    """An agent may have made any number of levels, more than Python's stack or the limit of open files takes."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "/".join("d" * (MAX_DEPTH + 2))).mkdir(parents=True)
    copied, out = Copied(), io.BytesIO()

    with tarfile.open(fileobj=out, mode="w|") as file:
        add_path(file, str(tmp_path), "copy", copied)

    assert copied.skipped == ["…/d: it lies more than 200 directories deep"]
    out.seek(0)
    with tarfile.open(fileobj=out) as file:
        names = file.getnames()
    assert (len(names), "copy/a.txt" in names) == (MAX_DEPTH + 2, True)


def test_a_full_jail_is_told(kernel: Kernel, agentos: Agentos, box: AgentOSClient, tmp_path: Path) -> None:
    assert box.spawn("small", command=["sleep", "1000"], limits={"disk": "1M"})["success"]
    (tmp_path / "large").write_bytes(bytes(3 << 20))

    done = cp(kernel, f"{tmp_path}/large", "small:large")

    assert done.returncode == 1
    assert done.stderr.startswith(b"agentos: small:/workspace/large: tar: ")
