"""Links in an agent's paths are followed when it is spawned, and in no later life: who may have laid them since?"""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE
from tests.system.agents import lines

ONCE = "import time\nprint('as it was meant', flush=True)\ntime.sleep(1000)\n"
OTHER = "print('led astray', flush=True)\nraise SystemExit(1)\n"


AT_FDCWD, RENAME_EXCHANGE = -100, 2


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Two names that change places as fast as can be."""
    swap, over = ctypes.CDLL(None, use_errno=True).renameat2, threading.Event()

    def keep_on() -> None:
        while not over.is_set():
            assert swap(AT_FDCWD, bytes(one), AT_FDCWD, bytes(other), RENAME_EXCHANGE) == 0

    thread = threading.Thread(target=keep_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def lives(client: AgentOSClient, kernel: Kernel, name: str, **fields: object) -> str:
    """All that an agent writes, whose script becomes a link to another one in its first life."""
    place = kernel.place / name
    place.mkdir()
    (place / "main.py").write_text(ONCE)
    (kernel.place / "other.py").write_text(OTHER)
    given = {field: str(place) for field in fields}
    spawned = client.spawn(name, str(place / "main.py"), restart="permanent", max_restarts=1, **given)  # type: ignore[arg-type]
    assert spawned["success"], spawned
    until(lambda: lines(client, name, "stdout"), "its first life has begun")
    (place / "main.py").unlink()
    os.symlink("../other.py", place / "main.py")
    os.kill(spawned["pid"], signal.SIGKILL)
    client.wait(name, timeout=PATIENCE)
    return "\n".join(line["text"] for line in client.logs(name)["lines"])


def test_a_script_that_becomes_a_link_is_not_followed(kernel: Kernel, client: AgentOSClient) -> None:
    written = lives(client, kernel, "script")

    assert "as it was meant" in written
    assert "Too many levels of symbolic links" in written
    assert "led astray" not in written


def test_a_script_in_code_that_becomes_a_link_leads_nowhere(kernel: Kernel, client: AgentOSClient) -> None:
    written = lives(client, kernel, "code", code=True)

    assert "as it was meant" in written
    assert "led astray" not in written
    assert "No such file" in written


def test_a_link_is_followed_when_it_is_spawned(kernel: Kernel, client: AgentOSClient) -> None:
    (kernel.place / "real.py").write_text("import time\nprint(__file__, flush=True)\ntime.sleep(1000)\n")
    os.symlink("real.py", kernel.place / "link.py")

    assert client.spawn("linked", str(kernel.place / "link.py"))["success"]

    until(lambda: lines(client, "linked", "stdout") == ["/agent/real.py"], "it says where it is")


@pytest.mark.usefixtures("long")
def test_a_directory_that_becomes_a_link_while_it_is_looked_at_is_no_bug(kernel: Kernel, client: AgentOSClient) -> None:
    real, link = kernel.place / "real", kernel.place / "link"
    (real / "code").mkdir(parents=True)
    (kernel.place / "else" / "code").mkdir(parents=True)
    os.symlink("else", link)
    codes = set()

    with swapping(real, link):
        for number in range(rounds(15)):
            reply = client.spawn(f"racer{number}", command=["true"], code=str(real / "code"))
            codes.add(reply.get("code"))

    assert codes <= {None, "bad_request", "unavailable", "not_found"}
    assert " bug " not in kernel.said
