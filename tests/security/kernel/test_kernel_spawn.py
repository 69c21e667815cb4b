"""An agent asks the kernel to start others: for more than it has, by paths that trick it, in places that it swaps."""

import os
from pathlib import Path
from typing import Any

import pytest

from agentos.protected_names import STUBS
from agentos_sdk import AgentOSClient
from tests.security.hostile import attack, begin, told
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import info, lines, up, write

SLEEP = {"command": ["sleep", "1000"]}
MORE = (
    *({"sandboxed": False, **SLEEP}, {"isolation": "none", **SLEEP}, {"network": True, **SLEEP}),
    *({"workspace": "/", **SLEEP}, {"workspace": "/workspace", **SLEEP}, {"workspace": "..", **SLEEP}),
    *({"code": "/", **SLEEP}, {"code": "/workspace", **SLEEP}, {"cwd": "/etc", **SLEEP}, {"cwd": "../..", **SLEEP}),
    *({"runtime": "fast", "script": "/agent/greedy.py"}, {"python": "/bin/sh", "script": "/agent/greedy.py"}),
    *({"env": {"AGENTOS_SOCKET": "/tmp/agentos.sock"}, **SLEEP}, {"env": {"A=B": "C"}, **SLEEP}),
    *({"permissions": {"level": "unrestricted"}, **SLEEP}, {"parent": 0, **SLEEP}, {"uid": 0, **SLEEP}),
)


@pytest.mark.usefixtures("any_user")
def test_no_agent_gets_a_child_with_more_rights_than_its_own(kernel: Kernel, client: AgentOSClient) -> None:
    code = f"say([ask(SPAWN, dict(fields, name='child')) for fields in {MORE!r}])"

    replies = attack(kernel, client, "greedy", code)

    granted = [asked for asked, reply in zip(MORE, replies, strict=True) if reply["success"]]
    assert granted == []
    assert {reply["code"] for reply in replies} <= {"permission_denied", "bad_request", "unavailable"}
    assert [agent["name"] for agent in client.list_agents(all=True) if agent["name"] == "too-much"] == []


@pytest.mark.usefixtures("any_user")
def test_a_child_has_no_more_of_anything_than_its_parent(kernel: Kernel, client: AgentOSClient) -> None:
    limits = {"memory": "96M", "max_pids": 20, "open_files": 100, "file_size": "1M", "disk": "2M", "tmp": "1M"}
    wanted = {"memory": "1T", "max_pids": 4000, "open_files": 10**6, "file_size": "1T", "disk": "1T", "tmp": "1T"}
    child = """
import json, os, resource
names = ("NOFILE", "FSIZE", "NPROC")
size = lambda place: os.statvfs(place).f_frsize * os.statvfs(place).f_blocks
print(json.dumps([resource.getrlimit(getattr(resource, f"RLIMIT_{n}")) for n in names] + [[size("/workspace"), size("/tmp")]]))
import time; time.sleep(1000)
"""  # noqa: E501
    code = f"open('/workspace/child.py', 'w').write({child!r})\n"
    code += f"say(ask(SPAWN, dict(name='child', script='child.py', limits={wanted!r})))"

    assert attack(kernel, client, "greedy", code, limits=limits)["success"]

    (files, _), (size, _), (processes, _), (disk, tmp) = told(client, "child")
    assert (files, size, disk, tmp) == (100, 1 << 20, 2 << 20, 1 << 20)
    assert processes <= 20 + 10


TRICKS = """
os.mkfifo("fifo.py"); os.mkdir("directory.py"); os.symlink("/etc/passwd", "link.py")
os.symlink("/proc/self/root/etc", "etc"); os.symlink("/dev/zero", "zero.py")
with open("large.py", "wb") as file: file.truncate(200 << 20)
paths = ["/etc/passwd", "../etc/passwd", "/workspace/../etc/shadow", "link.py", "etc/passwd", "zero.py", "fifo.py",
  "directory.py", "/proc/self/root/etc/passwd", "/proc/1/environ", "/proc/self/fd/0", "/dev/zero", "file:///etc/passwd",
  "nul\\x00.py", "/run/agentos.sock", "large.py", "", ".", "/", "x" * 5000 + ".py", "\\ud800.py"]
say([ask(SPAWN, dict(name="child", script=path)) for path in paths])
"""


def test_no_path_makes_the_kernel_read_what_is_not_the_agents(kernel: Kernel, client: AgentOSClient) -> None:
    replies = attack(kernel, client, "tricky", TRICKS)

    assert [reply for reply in replies if reply["success"]] == []
    assert "root:" not in str(replies)
    assert kernel.answers()


RACE = """
os.mkdir("real"); open("real/s.py", "w").write("import sys; sys.exit('mine')")
os.symlink({target!r}, "link")
racer = os.fork()
if racer == 0:
    while True: exchange("/workspace/real", "/workspace/link")
replies, end = [], time.monotonic() + 4
while time.monotonic() < end or len(replies) <= 20:
    replies.append(ask(SPAWN, dict(name="child", script="real/s.py", ready="hello")))  # it ends before it says so
    time.sleep(0.02)
os.kill(racer, signal.SIGKILL)
texts = [" ".join(reply.get("stderr") or []) + reply["error"] for reply in replies]
kinds = ("the hosts", "can't be read", "mine", "no file")
say([next((kind for kind in kinds if kind in text), text[:60]) for text in texts])  # short: a line has 8 KiB
"""


@pytest.mark.usefixtures("long")
def test_no_race_between_a_file_and_a_link_is_won_against_the_kernel(kernel: Kernel, client: AgentOSClient) -> None:
    outside = kernel.place / "outside"
    outside.mkdir()
    (outside / "s.py").write_text("import sys; sys.exit('the hosts')")

    begin(kernel, client, "racer", RACE.format(target=str(outside)))
    said = told(client, "racer", 5 * PATIENCE)

    assert len(said) > 20
    assert "the hosts" not in said
    assert {"can't be read", "mine", "no file"} & set(said)


def _workspace(kernel: Kernel) -> Path:
    place = kernel.place / "shared"
    place.mkdir()
    place.chmod(0o777)
    kernel.place.chmod(0o755)
    return place


def test_no_file_that_others_obey_can_be_made_where_there_was_none(kernel: Kernel, client: AgentOSClient) -> None:
    place = _workspace(kernel)
    before = sorted(os.listdir(place))
    code = """
made = []
for name in NAMES:
    for attempt in (lambda: open(name, "w").write("evil"), lambda: os.unlink(name), lambda: os.rmdir(name),
        lambda: os.mkdir(name + "/evil"), lambda: os.rename(name, "away"), lambda: os.symlink("/tmp", name)):
        try: attempt()
        except OSError: continue
        made.append(name)
open("allowed", "w").write("harmless")
say(made)
"""

    made = attack(kernel, client, "planter", f"NAMES = {list(STUBS)!r}\n{code}", workspace=str(place))
    client.kill("planter", grace=0)

    assert made == []
    until(lambda: sorted(os.listdir(place)) == ["allowed", *before], f"nothing else is left: {os.listdir(place)}")


def test_a_workspace_that_another_agent_swaps_for_a_link_is_not_followed(kernel: Kernel, client: AgentOSClient) -> None:
    place = kernel.place / "around"
    secret = kernel.place / "secret"
    for directory in (place, place / "inner", secret):
        directory.mkdir()
        directory.chmod(0o777)
    kernel.place.chmod(0o755)
    marker = "import time; open('/workspace/was-here', 'a').write('x'); time.sleep(1); raise SystemExit(1)"
    up(
        client.spawn(
            "inmate",
            write(kernel, "inmate.py", marker),
            workspace=str(place / "inner"),
            restart="permanent",
            max_restarts=1000,
        )
    )
    swap = f"os.symlink({str(secret)!r}, 'link')\nsay([])\nwhile True: exchange('/workspace/inner', '/workspace/link')"

    begin(kernel, client, "swapper", swap, workspace=str(place))
    told(client, "swapper")
    until(lambda: info(client, "inmate")["restarts"] > 5 or info(client, "inmate")["state"] == "failed", "it came back")

    client.kill("swapper", grace=0)
    assert os.listdir(secret) == []
    assert not any("was-here" in line for line in lines(client, "inmate", "stderr"))


@pytest.mark.usefixtures("any_user")
@pytest.mark.parametrize("fields", [{"max_restarts": 10**9}, {"restart_window": -1}, {"shutdown": -1}], ids=str)
def test_no_child_escapes_its_supervision(kernel: Kernel, client: AgentOSClient, fields: dict[str, Any]) -> None:
    reply = attack(kernel, client, "unruly", f"say(ask(SPAWN, dict(name='child', **{ {**fields, **SLEEP}!r})))")

    assert (reply["success"], reply["code"]) == (False, "bad_request")
