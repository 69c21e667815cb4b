"""Why an agent ended, told from evidence: with control groups, and where there are none."""

import os
import re
import shutil
from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import info, lines, up, write, written
from tests.system.jails import crippled, need_cgroups

HOG = """
import time
time.sleep(1)
held = []
while True:
    held.append(b"x" * (1 << 20))
"""
FORKS = """
import errno, os, time
time.sleep(1)
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except OSError as error:
    print("refused", made, errno.errorcode[error.errno], flush=True)
    os._exit(3)
"""
LEAK = """
import time
held = []
while True:
    held.append(b"x" * (1 << 18))
    time.sleep(0.01)
"""
HOARD = """
import os, socket, time
socket.socket(socket.AF_UNIX).connect(os.environ["AGENTOS_SOCKET"])  # from here on it counts as started
for place in ("/workspace", "/tmp", "/dev/shm"):
    with open(place + "/much", "wb") as file:
        for _ in range(32):
            file.write(bytes(1 << 20))
time.sleep(1000)
"""
SPINS = "import time\nwhile time.process_time() < 0.2: pass\n"
MANY = """
import os, time
time.sleep(1)
parts = []
for number in range(30):
    if os.fork() == 0:
        held = b"x" * (20 << 20)
        time.sleep(1000)
print("has forked", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def ungrouped(kernels: None) -> Iterator[tuple[Kernel, AgentOSClient]]:
    """A kernel without control groups, and an operator of it."""
    with (
        crippled("--hide", "/sys/fs/cgroup") as kernel,
        kernel.client() as client,
    ):
        yield kernel, client


def test_a_memory_hog_is_killed_and_told_at_which_limit(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    up(client.spawn("hog", write(kernel, "hog.py", HOG), limits={"memory": "64M"}))

    end = client.wait("hog", timeout=PATIENCE)

    assert end["reason"].startswith("killed: memory limit 64M reached")
    assert end["signal"] == 9
    until(lambda: "memory limit 64M reached" in kernel.said, "the kernel's log says so too")


def test_an_agent_of_which_one_process_was_killed_for_memory_ends_as_a_whole(
    kernel: Kernel, client: AgentOSClient
) -> None:
    need_cgroups(kernel)
    up(client.spawn("many", write(kernel, "many.py", MANY), limits={"memory": "100M"}))

    end = client.wait("many", timeout=PATIENCE)

    assert end["reason"].startswith("killed: memory limit 100M reached")


def test_refused_forks_are_told_with_the_limit(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    up(client.spawn("forks", write(kernel, "forks.py", FORKS), limits={"max_pids": 20}))

    end = client.wait("forks", timeout=PATIENCE)

    assert lines(client, "forks", "stdout") == ["refused 19 EAGAIN"]
    assert end["exit_code"] == 3
    assert "fork refused: 20 processes" in end["reason"]


def test_a_throttled_agent_is_told_how_much_of_its_time(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    up(client.spawn("spins", write(kernel, "spins.py", SPINS), limits={"cpu_quota": "10%"}))

    reason = client.wait("spins", timeout=PATIENCE)["reason"]

    found = re.search(r"throttled (\d+) % of the time", reason)
    assert found is not None, reason
    assert 40 <= int(found[1]) <= 95  # beside ten busy programs on its core it would still be 40


def test_an_end_without_a_limit_is_not_blamed_on_limits(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("shot", command=["sleep", "1000"]))
    os.kill(info(client, "shot")["pid"], 9)
    up(client.spawn("fails", command=["sh", "-c", "sleep 1; exit 3"]))

    assert client.wait("shot", timeout=PATIENCE)["reason"] == "killed by SIGKILL"
    assert client.wait("fails", timeout=PATIENCE)["reason"] == "exit status 3"


def test_without_control_groups_what_all_its_processes_hold_is_watched(
    ungrouped: tuple[Kernel, AgentOSClient],
) -> None:
    kernel, client = ungrouped
    up(client.spawn("many", write(kernel, "many.py", MANY), limits={"memory": "100M"}))

    reason = client.wait("many", timeout=PATIENCE)["reason"]

    assert re.match(r"killed: memory limit 100M reached \(watched: \w+ \d+M\)", reason), reason
    until(lambda: "memory limit 100M reached" in kernel.said, "the kernel's log says so too")


@pytest.mark.usefixtures("kernels")
def test_without_control_groups_agents_that_come_after_others_have_ended_are_watched_too() -> None:
    with (
        crippled("--hide", "/sys/fs/cgroup") as kernel,
        kernel.client() as client,
    ):
        for isolation in ("none", "standard", "none"):
            up(client.spawn("brief", command=["sleep", "1"], isolation=isolation))
            client.wait("brief", timeout=PATIENCE)
        up(client.spawn("many", write(kernel, "many.py", MANY), limits={"memory": "100M"}))

        assert client.wait("many", timeout=PATIENCE)["reason"].startswith("killed: memory limit 100M reached")


def test_without_control_groups_one_process_gets_no_more_memory_than_all(
    ungrouped: tuple[Kernel, AgentOSClient],
) -> None:
    kernel, client = ungrouped
    up(client.spawn("hog", write(kernel, "hog.py", HOG), limits={"memory": "100M"}))

    end = client.wait("hog", timeout=PATIENCE)

    # One of the two comes first: the resource limit, or who watches.
    assert end["exit_code"] == 1 or end["reason"].startswith("killed: memory limit 100M reached"), end


def test_without_control_groups_a_leak_is_called_by_the_limit(ungrouped: tuple[Kernel, AgentOSClient]) -> None:
    kernel, client = ungrouped
    up(client.spawn("leak", write(kernel, "leak.py", LEAK), limits={"memory": "64M"}))

    end = client.wait("leak", timeout=PATIENCE)

    assert end["reason"].startswith("killed: memory limit 64M reached (watched: "), end
    assert end["signal"] == 9


def test_without_control_groups_files_in_memory_count(ungrouped: tuple[Kernel, AgentOSClient]) -> None:
    kernel, client = ungrouped
    up(client.spawn("hoard", write(kernel, "hoard.py", HOARD), limits={"memory": "48M"}))

    end = client.wait("hoard", timeout=PATIENCE)

    assert end["reason"].startswith("killed: memory limit 48M reached (watched: "), end
    assert end["signal"] == 9


def test_without_control_groups_a_program_that_only_reserves_addresses_starts(
    ungrouped: tuple[Kernel, AgentOSClient],
) -> None:
    node = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    if node is None:
        pytest.skip("no node on this host, which reserves far more addresses than it uses")
    _, client = ungrouped
    up(client.spawn("node", command=[node, "-e", "console.log('runs'); setTimeout(() => {}, 1e6)"]))

    written(client, "node", "runs")


def test_without_control_groups_forks_are_refused_too(ungrouped: tuple[Kernel, AgentOSClient]) -> None:
    kernel, client = ungrouped
    up(client.spawn("forks", write(kernel, "forks.py", FORKS), limits={"max_pids": 20}))

    assert client.wait("forks", timeout=PATIENCE)["exit_code"] == 3
    assert lines(client, "forks", "stdout") == ["refused 19 EAGAIN"]


def test_a_full_tmpfs_is_the_agents_own_error(kernel: Kernel, client: AgentOSClient) -> None:
    code = """
    import os, time
    for place in ("/workspace", "/tmp", "/dev/shm"):
        fd, written = os.open(place + "/much", os.O_CREAT | os.O_WRONLY), 0
        try:
            while True:
                written += os.write(fd, bytes(1 << 16))
        except OSError as error:
            print(place, written >> 20, error.strerror, flush=True)
    time.sleep(1000)
    """
    limits = {"disk": "3M", "tmp": "2M"}
    up(client.spawn("full", write(kernel, "full.py", code), limits=limits))

    written(client, "full", "/dev/shm 2 No space left on device")
    assert lines(client, "full", "stdout") == [
        "/workspace 3 No space left on device",
        "/tmp 2 No space left on device",
        "/dev/shm 2 No space left on device",
    ]


def test_an_agent_that_is_restarted_after_a_limit_says_why_in_its_log(kernel: Kernel, client: AgentOSClient) -> None:
    need_cgroups(kernel)
    script = write(kernel, "again.py", HOG)
    up(client.spawn("again", script, limits={"memory": "40M"}, restart="permanent", max_restarts=1))

    client.wait("again", timeout=PATIENCE)

    notes = [line["text"] for line in client.logs("again", tail=100)["lines"] if line["stream"] == "kernel"]
    assert sum("memory limit 40M reached" in note for note in notes) >= 1, notes
