"""RUN of a Dockerfile, in jails of a kernel: what it changes is kept, what fails is told, and what does harm ends."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.images.importer import import_image
from agentos.images.store import Images
from agentos.userland.cli.main import cli
from tests.support.images import copy_programs, make_root, tar_root
from tests.support.kernel import Kernel, environment, running, until

from .test_images import agentos

TOML = '[[agents]]\nname = "idle"\ncommand = ["sleep", "infinity"]\n'


@pytest.fixture(scope="module")
def builder(kernels: None) -> Iterator[Kernel]:
    """A kernel with an image ``tiny``, which has a shell."""
    with tempfile.TemporaryDirectory(prefix="aos-build-", dir="/var/tmp") as place, running(TOML) as kernel:
        (Path(place) / "root").mkdir()
        copy_programs(Path(place) / "root", "ln", "chown", "mkfifo")
        Path(place, "tiny.tar").write_bytes(tar_root(make_root(Path(place) / "root")))
        import_image(Images(kernel.state_dir), f"{place}/tiny.tar", "tiny")
        yield kernel


def build(kernel: Kernel, place: Path, text: str, *options: str, status: int = 0) -> str:
    (place / "Dockerfile").write_text(text)
    where = ("--state-dir", str(kernel.state_dir))
    return agentos(kernel, "image", "build", str(place), "-t", "made", *where, *options, status=status)


def changes(kernel: Kernel) -> Mapping[str, str]:
    """What the image has that ``tiny`` hasn't or has otherwise, by path: its mode and content; "" for what it lacks."""
    trees = []
    for name in ("tiny", "made"):
        opened = Images(kernel.state_dir).open(name)
        top = Path(opened.path)
        trees.append({str(path.relative_to(top)): _describe(path) for path in top.rglob("*")})
        opened.close()
    before, after = trees
    return {path: after.get(path, "") for path in {*before, *after} if before.get(path) != after.get(path)}


def running_agents(kernel: Kernel) -> list[str]:
    with kernel.client() as client:
        return [one["name"] for one in client.list_agents() if one["state"] == "running"]


def _describe(path: Path) -> str:
    status = path.lstat()
    assert (status.st_uid, os.listxattr(path, follow_symlinks=False)) == (os.geteuid(), [])
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    return f"{'d' if path.is_dir() else ''}{status.st_mode & 0o7777:o}" + ("" if path.is_dir() else _read(path))


def _read(path: Path) -> str:
    return " " + path.read_text() if path.stat().st_size < 1000 else " ..."


RUNS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "files are made, changed and removed": (
        "RUN echo a > /srv/a; echo more >> /srv/name; rm /srv/data/file; chmod 700 /srv/data",
        {"srv/a": "644 a\n", "srv/name": "644 tiny\nmore\n", "srv/data/file": "", "srv/data": "d700"},
    ),
    "a directory is replaced by a file, and one of the same name has nothing of the former": (
        "RUN rm -r /srv/data; echo x > /srv/data\nRUN rm /srv/data; mkdir /srv/data; echo n > /srv/data/new",
        {"srv/data/file": "", "srv/data/new": "644 n\n"},
    ),
    "directories at the top, and /tmp for the next RUN": (
        "RUN mkdir -p /opt/x /tmp; echo t > /tmp/t; chmod 500 /opt/x\nRUN cat /tmp/t > /opt/t",
        {
            "opt": "d755",
            "opt/x": "d500" if os.geteuid() == 0 else "d700",
            "opt/t": "644 t\n",
            "tmp": "d1777",
            "tmp/t": "644 t\n",
        },
    ),
    "both forms, directory, variables and arguments": (
        'ARG V=1\nENV E="two words"\nWORKDIR /w\nRUN echo $V "$E" > one\nRUN ["sh", "-c", "echo $V; pwd > $0", "two"]',
        {"w": "d755", "w/one": "644 1 two words\n", "w/two": "644 /w\n"},
    ),
    "another shell": ('SHELL ["/bin/sh", "-ec"]\nRUN echo $0 > /srv/s; true', {"srv/s": "644 /bin/sh\n"}),
    "heredocs as a script, as input and with a program of their own": (
        "RUN <<EOF\nset -e\necho $HOME > /srv/1\nEOF\nRUN cat <<A <<'B' > /srv/2\nno\nA\n$HOME\nB\n"
        "RUN <<EOF\n#!/bin/cat\nshown\nEOF",
        {"srv/1": "644 /root\n", "srv/2": "644 $HOME\n"},
    ),
    "nothing of the jail's own": (
        "RUN echo x > /etc/hosts; mkdir -p /run/mine; echo x > /dev/shm/x; echo y > /workspace/y; id > /dev/null",
        {"run/mine": "d755"},
    ),
    "names that lead elsewhere": (
        "RUN <<EOF\nmkdir -p /l/d\ncd /l/d\necho x > 'new\nline'\nln -s /etc/passwd link\nchmod 000 .\nEOF",
        {
            "l": "d755",
            "l/d": "d0" if os.geteuid() == 0 else "d700",
            "l/d/new\nline": "644 x\n",
            "l/d/link": "-> /etc/passwd",
        },
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_what_a_run_changes_is_in_the_image(case: str, builder: Kernel, tmp_path: Path) -> None:
    text, expected = RUNS[case]

    build(builder, tmp_path, f"FROM tiny\n{text}\n")

    assert changes(builder) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="a kernel without root pretends other owners")
def test_a_run_is_root_inside_and_leaves_nothing_that_gives_rights_on_the_host(builder: Kernel, tmp_path: Path) -> None:
    text = (
        "FROM tiny\nRUN <<EOF\nset -e\nid -u\necho x > /srv/set\nchown 33:44 /srv/set\nchmod 6755 /srv/set\n"
        "mkdir /srv/d\nchown 33 /srv/d\nchmod 2777 /srv/d\nmkfifo /srv/fifo\nEOF\n"
        "RUN stat -c '%u %g %a' /srv/set /srv/d; echo >> /srv/d/new; chown 5 /srv/set\n"
        "RUN stat -c '%u %g %a' /srv/set; rm -r /srv/d; mkdir /srv/d\nRUN stat -c '%u %g' /srv/d\n"
    )

    said = build(builder, tmp_path, text)

    assert {"0", "33 44 6755", "33 0 2777", "5 44 755", "0 0"} <= {*said.splitlines()}
    assert changes(builder) == {"srv/set": "755 x\n", "srv/d": "d755"}
    assert "FIFOs, sockets and devices aren't taken: srv/fifo" in said
    assert "1000" in build(builder, tmp_path, "FROM tiny\nRUN id -u\n", "--no-root").splitlines()
    assert "1000" in build(builder, tmp_path, "FROM tiny\nUSER app\nRUN id -u\n").splitlines()


def test_a_step_is_done_again_only_if_something_that_it_depends_on_differs(builder: Kernel, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("1")
    text = "FROM tiny\nARG V=1\nRUN echo first > /srv/cached\nCOPY in /srv/\nRUN cat /srv/in; echo $V > /srv/v\n"

    def done(*options: str) -> list[bool]:
        said = [line.partition(": ")[2] for line in build(builder, tmp_path, text, *options).splitlines()]
        return [line.endswith("(done before)") for line in said if line.startswith("RUN")]

    assert done() == [False, False]
    assert done() == [True, True]
    assert done("--build-arg", "V=2") == [False, False]
    (tmp_path / "in").write_text("2")
    assert done() == [True, False]
    assert done("--no-cache") == [False, False]
    assert changes(builder)["srv/in"] == "644 2"


def test_a_run_that_fails_is_told_with_its_line_and_leaves_nothing(builder: Kernel, tmp_path: Path) -> None:
    build(builder, tmp_path, "FROM tiny\nRUN echo kept > /srv/x\n")
    trees = sorted(os.listdir(builder.state_dir / "images" / "trees"))

    said = build(builder, tmp_path, "FROM tiny\n\nRUN echo why >&2; exit 3\n", status=1)

    assert "why" in said
    assert "made wasn't made: line 3: RUN: exit status 3" in said
    assert sorted(os.listdir(builder.state_dir / "images" / "trees")) == trees
    assert changes(builder) == {"srv/x": "644 kept\n"}
    assert "build-" not in agentos(builder, "image", "ls")


def test_a_run_that_cannot_be_started_is_told_with_its_line(builder: Kernel, tmp_path: Path) -> None:
    said = build(builder, tmp_path, 'FROM tiny\nRUN ["no-such-program"]\n', status=1)

    assert "made wasn't made: line 2: RUN: " in said
    assert "no-such-program: not found" in said


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e308", "0"])
def test_the_time_of_a_run_is_a_number_within_bounds(seconds: str, tmp_path: Path) -> None:
    wrong = CliRunner().invoke(cli, ["image", "build", str(tmp_path), "-t", "made", "--timeout", seconds])

    assert (wrong.exit_code, "Invalid value for '--timeout'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("while :; do :; done", ("--timeout", "1"), "RUN: it was ended after 1 s: see --timeout"),
        ("f() { f | f & }; f; f; sleep 60", ("--limit", "max_pids=30", "--timeout", "3"), "RUN: "),
        ("while echo 0123456789abcdef; do :; done > /srv/endless", ("--limit", "disk=4M"), "RUN: exit status 137"),
        ("while echo 0123456789abcdef; do :; done > /srv/endless", ("--limit", "file_size=4M"), "RUN: exit status"),
        ("i=0; while i=$((i+1)); do : > /srv/$i; done", ("--limit", "inodes=500"), "RUN: exit status 137"),
    ],
)
def test_a_run_without_end_meets_its_limits(
    command: str, options: tuple[str, ...], expected: str, builder: Kernel, tmp_path: Path
) -> None:
    assert expected in build(builder, tmp_path, f"FROM tiny\nRUN {command}\n", *options, status=1)
    assert running_agents(builder) == ["idle"]


def test_links_that_a_run_has_made_lead_a_copy_nowhere_else(builder: Kernel, tmp_path: Path) -> None:
    target = tmp_path / "of the host"
    target.mkdir()
    (tmp_path / "a").write_text("a")
    text = (
        f"FROM tiny AS one\nRUN mkdir -p '{target}'; ln -s '{target}' /srv/up; ln -s /etc/shadow /srv/shadow\n"
        "FROM one\nCOPY a /srv/up/\nCOPY --from=one /srv/shadow /stolen\n"
    )
    said = build(builder, tmp_path, text, status=1)
    assert "line 5: COPY: /srv/shadow: No such file or directory" in said
    build(builder, tmp_path, text.rpartition("COPY")[0])
    assert os.listdir(target) == []
    assert changes(builder)[f"{target}/a".lstrip("/")] == "644 a"


def test_a_run_has_the_network_that_is_granted(builder: Kernel, tmp_path: Path) -> None:
    text = "FROM tiny\nRUN cat /proc/self/net/dev; cat /etc/resolv.conf || true\n"
    alone = build(builder, tmp_path, text)
    filtered = build(builder, tmp_path, text, "--domain", "pypi.org")
    hosts = build(builder, tmp_path, text, "--network")

    own = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    devices = {line.partition(":")[0].strip() for line in own}
    assert devices <= {line.partition(":")[0].strip() for line in hosts.splitlines()}
    for said in (alone, filtered):
        assert not (devices - {"lo"}) & {line.partition(":")[0].strip() for line in said.splitlines()}
    assert "nameserver 127.0.0.1" in filtered
    assert "nameserver" not in alone


def test_a_build_that_is_killed_leaves_nothing_to_the_next_one(builder: Kernel, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM tiny\nRUN echo begun; exec sleep 1000\n")
    trees = builder.state_dir / "images" / "trees"
    before = sorted(os.listdir(trees))
    command = [sys.executable, "-m", "agentos", "image", "build", str(tmp_path), "-t", "killed"]
    env = {**environment(builder.place), "AGENTOS_SOCKET": builder.socket}
    with subprocess.Popen(
        [*command, "--state-dir", str(builder.state_dir)], env=env, cwd=builder.place, stderr=subprocess.PIPE
    ) as started:
        assert started.stderr is not None
        assert b"begun\n" in iter(started.stderr.readline, b"")
        started.send_signal(signal.SIGKILL)

    until(lambda: running_agents(builder) == ["idle"], "its program ends")

    def is_collected() -> bool:
        Images(builder.state_dir).collect()
        return not [*trees.glob("*/upper")]

    until(is_collected, "its files are removed")
    assert sorted(os.listdir(trees)) == before
    assert not [path for path in os.listdir(builder.state_dir / "images") if path.startswith("build-")]


def test_an_interrupted_build_ends_its_program(builder: Kernel, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM tiny\nRUN echo begun; exec sleep 1000\n")
    command = [sys.executable, "-m", "agentos", "image", "build", str(tmp_path), "-t", "stopped"]
    env = {**environment(builder.place), "AGENTOS_SOCKET": builder.socket}
    with subprocess.Popen(
        [*command, "--state-dir", str(builder.state_dir)], env=env, cwd=builder.place, stderr=subprocess.PIPE
    ) as started:
        assert started.stderr is not None
        assert b"begun\n" in iter(started.stderr.readline, b"")
        started.send_signal(signal.SIGTERM)
        assert started.wait() == 1

    until(lambda: running_agents(builder) == ["idle"], "its program ends")


@pytest.mark.skipif(
    "CGROUP2_SCOPE" not in os.environ,
    reason="meant for the guest, where test_jail_guest.py runs it",
)
def test_before_linux_6_6_an_agent_in_an_image_is_told_what_it_needs(builder: Kernel) -> None:
    with builder.client() as client:
        error = client.spawn("writes", command=["true"], image="tiny")["error"]

    assert "image tiny: it can't be the root of a jail here: a tmpfs takes no attributes" in error
    assert 'say isolation = "strict"' in error


def test_an_image_that_was_built_runs_and_is_a_base(builder: Kernel, tmp_path: Path) -> None:
    build(builder, tmp_path, 'FROM tiny\nENV PATH=/bin\nRUN echo "echo hi" > /srv/s\nCMD ["sh", "/srv/s"]\n')
    assert agentos(builder, "spawn", "hi", "--image", "made", "--wait", "--", "sh", "/srv/s") == "hi\n"
    build(builder, tmp_path, "FROM made\nRUN sh /srv/s > /srv/out\n")
    assert changes(builder)["srv/out"] == "644 hi\n"
    shown = json.loads(agentos(builder, "image", "inspect", "made", "--json"))
    assert shown["config"]["cmd"] == ["sh", "/srv/s"]
    assert shown["format"] == "dockerfile"
