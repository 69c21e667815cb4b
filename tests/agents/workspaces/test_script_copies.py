"""A script out of an agent's own jail: what its children run of it, and what nobody gets by it.

The agents here do what they are sent, in their jail; what became of it is looked at from outside.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, killing_new_agents, shared, until
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row
from tests.system.agents import TALKS, ask, info, lines, relay, up, written

SAYS = "import time\nprint('it is {word}', flush=True)\ntime.sleep(1000)\n"


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    """Its agents may spawn as fast as they can."""
    with shared("[kernel]\nspawn_rate = 10000\n") as started:
        yield started


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    with killing_new_agents(kernel), kernel.client() as connected:
        yield connected
    until(lambda: copies(kernel) == [], "no copy is left when its agent is over")


def copies(kernel: Kernel) -> list[Path]:
    return sorted(kernel.runtime.glob("script-*"))


def boss(kernel: Kernel, client: AgentOSClient, code: str, **more: Any) -> int:
    """An agent that has run this in its jail, and will spawn for us; its id."""
    agent = relay(kernel, client, "boss", **more)
    assert ask(client, agent, "run", code=code) == "done"
    return agent


def spawn(client: AgentOSClient, agent: int, script: str, name: str = "child", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = ask(client, agent, "spawn", name=name, script=script, **more)
    return found


def test_a_child_runs_what_its_parent_wrote(kernel: Kernel, client: AgentOSClient) -> None:
    agent = boss(kernel, client, f"open('mine.py', 'w').write({SAYS.format(word='mine')!r})")

    up(spawn(client, agent, "mine.py"))

    written(client, "child", "it is mine")
    [directory] = copies(kernel)
    assert (directory.stat().st_mode & 0o777, directory.stat().st_uid) == (0o700, os.geteuid())
    assert [(one.name, one.stat().st_uid) for one in directory.iterdir()] == [("mine.py", os.geteuid())]


@pytest.mark.parametrize("place", ["/tmp", "/workspace/deep/er"])
def test_it_may_be_anywhere_that_its_parent_can_write(kernel: Kernel, client: AgentOSClient, place: str) -> None:
    code = f"os.makedirs({place!r}, exist_ok=True); open({place + '/x.py'!r}, 'w').write({SAYS.format(word='far')!r})"
    agent = boss(kernel, client, "import os; " + code)

    up(spawn(client, agent, f"{place}/x.py"))

    written(client, "child", "it is far")


def test_what_its_parent_does_to_it_afterwards_changes_nothing(kernel: Kernel, client: AgentOSClient) -> None:
    agent = boss(kernel, client, f"open('mine.py', 'w').write({SAYS.format(word='as it was')!r})")
    up(spawn(client, agent, "mine.py", restart="permanent"))
    written(client, "child", "it is as it was")

    ask(client, agent, "run", code="open('mine.py', 'w').write('print(\"swapped\")')")
    os.kill(info(client, "child")["pid"], 9)

    until(lambda: lines(client, "child") == ["it is as it was"] * 2, "the next life has said the same")


def test_a_grandchild_runs_its_parents_copy(kernel: Kernel, client: AgentOSClient) -> None:
    agent = boss(kernel, client, "import shutil; shutil.copy('/agent/relay.py', 'again.py')", permissions=TALKS)
    more: dict[str, Any] = {"permissions": TALKS, "ready": "hello"}
    child = int(up(spawn(client, agent, "again.py", **more))["id"])

    grandchild = int(up(spawn(client, child, "/agent/again.py", "grandchild", **more))["id"])

    assert ask(client, grandchild, "echo", message="here") == "here"
    assert len(copies(kernel)) == 1
    client.kill("grandchild")
    assert len(copies(kernel)) == 1  # it is the child's


TRICKS = {
    "a link to a file of the host's": ("os.symlink('/etc/passwd', 'x.py')", "x.py", "bad_request"),
    "a link to a file of its own": ("open('y.py', 'w'); os.symlink('y.py', 'x.py')", "x.py", "bad_request"),
    "a link on the way": ("os.mkdir('d'); open('d/x.py', 'w'); os.symlink('d', 'l')", "l/x.py", "bad_request"),
    "a link into /proc": ("os.symlink('/proc/self/environ', 'x.py')", "x.py", "bad_request"),
    "a link to a descriptor": ("os.symlink('/proc/self/fd/0', 'x.py')", "x.py", "bad_request"),
    "a broken link": ("os.symlink('nowhere', 'x.py')", "x.py", "bad_request"),
    "a fifo": ("os.mkfifo('x.py')", "x.py", "bad_request"),
    "a socket": ("import socket; socket.socket(socket.AF_UNIX).bind('x.py')", "x.py", "bad_request"),
    "a directory": ("os.mkdir('x.py')", "x.py", "bad_request"),
    "nothing": ("pass", "x.py", "not_found"),
    "a device": ("pass", "/dev/zero", "permission_denied"),
    "the socket": ("pass", "/run/agentos.sock", "permission_denied"),
    "the kernel's memory": ("pass", "/proc/1/mem", "permission_denied"),
    "a file of the host's": ("pass", "/etc/passwd", "permission_denied"),
    "up and out": ("pass", "/workspace/../etc/passwd", "permission_denied"),
    "up and out, relatively": ("pass", "../etc/passwd", "permission_denied"),
    "far up": ("pass", "../../../../../../../../etc/passwd", "permission_denied"),
    "up out of its own /agent": ("pass", "/agent/../etc/passwd", "permission_denied"),
    "two slashes": ("pass", "//etc/passwd", "permission_denied"),
    "a directory of a jail": ("pass", "/workspace", "permission_denied"),
    "a name that begins like one of its own": ("pass", "/workspaces/x.py", "permission_denied"),
    "a NUL": ("open('x.py', 'w')", "x.py\0.py", "bad_request"),
    "half a character": ("open('x.py', 'w')", "x\ud800.py", "bad_request"),
    "a name that is too long": ("pass", "x" * 300 + ".py", "bad_request"),
    "a path that is too long": ("pass", "x/" * 3000 + "x.py", "bad_request"),
    "one that it may not read": ("open('x.py', 'w'); os.chmod('x.py', 0)", "x.py", "bad_request"),
}


EMPTY = """
import os, shutil
for name in os.listdir():
    shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.unlink(name)
"""


@pytest.fixture
def tricky(kernel: Kernel, client: AgentOSClient) -> int:
    return relay(kernel, client, "boss")


@each_row("trick", TRICKS)
def test_nothing_else_can_be_named(kernel: Kernel, client: AgentOSClient, tricky: int, trick: str) -> None:
    code, script, expected = TRICKS[trick]
    assert ask(client, tricky, "run", code=f"{EMPTY}\n{code}") == "done"
    if trick == "one that it may not read" and os.geteuid() == 0:
        expected = ""  # a kernel with root may, and gives it what is its own

    reply = spawn(client, tricky, script)

    assert reply.get("code", "unavailable" if not expected else "") == (expected or "unavailable"), reply
    assert "root:" not in json.dumps(reply)
    until(lambda: copies(kernel) == [], "no copy is left")  # at once, unless it lived long enough to count as started


def test_a_device_that_the_host_has_put_in_its_workspace_is_not_read(
    kernel: Kernel, client: AgentOSClient, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a device")
    place = kernel.place / "shared"
    place.mkdir(exist_ok=True)
    os.mknod(place / "zero.py", 0o020666, os.makedev(1, 5))
    agent = relay(kernel, client, "boss", workspace=str(place))

    assert spawn(client, agent, "zero.py")["code"] == "bad_request"


@pytest.mark.parametrize(("size", "fits"), [(4 << 20, True), ((4 << 20) + 1, False), (200 << 20, False)])
def test_a_script_has_a_size(kernel: Kernel, client: AgentOSClient, size: int, fits: bool) -> None:
    text = SAYS.format(word="big")
    rest = min(2**23, size - len(text))  # and of what is much too big, a hole
    code = f"file = open('big.py', 'w'); file.write({text!r} + '#' * {rest}); file.truncate({size})"
    agent = boss(kernel, client, code)
    before = kernel.rss

    reply = spawn(client, agent, "big.py")

    if fits:
        assert reply["success"], reply
    else:
        assert (reply["code"], "more than 4 MiB" in reply["error"]) == ("bad_request", True)
    assert kernel.rss - before < 32 << 20


SWAPPER = """
import os, threading
open("honest.py", "w").write("import time; print('it is honest', flush=True); time.sleep(1000)")
os.symlink("/proc/1/environ", "link.py")
os.mkfifo("fifo.py")
os.mkdir("directory.py")
def swap():
    while True:
        for name in ("honest.py", "link.py", "fifo.py", "directory.py"):
            try:
                if name == "honest.py":
                    open("next", "w").write(open(name).read())
                elif name == "link.py":
                    os.symlink("/etc/passwd", "next")
                elif name == "fifo.py":
                    os.mkfifo("next")
                else:
                    os.mkdir("next")
                if os.path.isdir("x.py") and not os.path.islink("x.py"):
                    os.rmdir("x.py")
                elif name == "directory.py" and os.path.lexists("x.py"):
                    os.unlink("x.py")
                os.rename("next", "x.py")
            except OSError:
                pass
threading.Thread(target=swap, daemon=True).start()
"""


def test_what_is_swapped_all_the_time_is_honest_or_refused(kernel: Kernel, client: AgentOSClient) -> None:
    agent = boss(kernel, client, SWAPPER)
    up(spawn(client, agent, "honest.py"))  # what is opened once is open now
    client.kill("child")
    files, outcomes = kernel.open_files, set()

    for number in range(rounds(12)):
        reply = spawn(client, agent, "x.py", f"child-{number}")
        if reply["success"]:
            written(client, f"child-{number}", "it is honest")
            client.kill(f"child-{number}", grace=0)
        outcomes.add(reply.get("code", "started"))

    assert outcomes - {"started"} <= {"bad_request", "not_found"}
    assert "bad_request" in outcomes
    # Fewer than were tried: agents of the tests before may have connected meanwhile.
    until(lambda: kernel.open_files < files + 10, "no file is left open")


ALTERNATES = """
import os, threading
for name, word in (("one", "one"), ("other", "another")):
    open(name + ".py", "w").write(f"import time; print('it is {word}', flush=True); time.sleep(1000)")
os.link("one.py", "x.py")
def alternate():
    while True:
        for name in ("other.py", "one.py"):
            os.link(name, "next")
            os.rename("next", "x.py")
threading.Thread(target=alternate, daemon=True).start()
"""


def test_a_script_that_is_replaced_after_the_decision_is_refused(kernel: Kernel, client: AgentOSClient) -> None:
    agent = boss(kernel, client, ALTERNATES)
    refused: list[str] = []

    def tried() -> bool:
        number = len(refused)
        reply = spawn(client, agent, "x.py", f"child-{number}")
        if reply["success"]:
            until(lambda: lines(client, f"child-{number}")[:1] in (["it is one"], ["it is another"]), "it is whole")
            client.kill(f"child-{number}", grace=0)
        refused.append(reply.get("error", ""))
        return "script: changed since it was looked at" in refused

    until(tried, "it is replaced between the two looks at it")
    assert set(refused) <= {"", "script: changed since it was looked at"}


def test_explain_copies_nothing(kernel: Kernel, client: AgentOSClient) -> None:
    boss(kernel, client, f"open('mine.py', 'w').write({SAYS.format(word='mine')!r})")
    before = kernel.runtime.stat().st_mtime_ns

    explained = client.explain("boss", "SPAWN", {"name": "child", "script": "mine.py"})
    missing = client.explain("boss", "SPAWN", {"name": "child", "script": "none.py"})

    assert (explained["decision"], missing["code"]) == ("allow", "not_found")
    assert kernel.runtime.stat().st_mtime_ns == before


def test_refusals_leave_no_file_open(kernel: Kernel, client: AgentOSClient) -> None:
    agent = boss(kernel, client, "import os; os.mkdir('d.py'); os.mkfifo('f.py'); open('c.py', 'w')")
    files = kernel.open_files

    for script in ("d.py", "f.py", "none.py") * 5:
        assert not spawn(client, agent, script)["success"]
    for name in ("boss", "two words"):  # refused when it was copied already, or for what it is called
        assert not spawn(client, agent, "c.py", name)["success"]
    assert spawn(client, agent, "c.py", code="/agent", runtime="fast")["success"] is False

    until(lambda: kernel.open_files < files + 10, "no file is left open")  # fewer than were refused
    assert copies(kernel) == []


def test_the_files_of_an_agent_without_a_jail_are_the_hosts(kernel: Kernel, client: AgentOSClient) -> None:
    """It could read them anyway, and its children have a jail each."""
    (kernel.place / "hosts.py").write_text(SAYS.format(word="outside"))
    agent = relay(kernel, client, "bare", sandboxed=False)

    up(spawn(client, agent, str(kernel.place / "hosts.py"), sandboxed=True))

    written(client, "child", "it is outside")
    assert copies(kernel) == []
