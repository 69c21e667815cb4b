"""After many agents everything is as it was: files, threads, memory, processes, sockets."""

import os

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, proc_status, until
from tests.support.runs.rounds import rounds
from tests.system.agents import up, write
from tests.system.lives.test_death import children_of

BRIEF = ["sh", "-c", "echo hello; exit 1"]


def runtime_files(kernel: Kernel) -> set[str]:
    [directory] = [name for name in os.listdir(kernel.place) if name.startswith("agentos-")]
    return set(os.listdir(kernel.place / directory))


def churn(client: AgentOSClient, count: int) -> None:
    for number in range(count):
        match number % 6:
            case 0:
                client.spawn("brief", command=BRIEF)
            case 1:
                up(client.spawn("killed", str(client.socket_path) + ".py"))
                client.kill("killed", grace=0)
            case 2:
                client.spawn("broken", command=["/usr/bin"])
            case 3:
                up(client.spawn("orphans", command=["sh", "-c", "(setsid sleep 1000 &) ; exec sleep 1000"]))
                client.kill("orphans")
            case 4:
                client.spawn("brief", command=BRIEF, sandboxed=False)
            case 5:
                up(client.spawn("bare", command=["sh", "-c", "exec sleep 1000"], sandboxed=False))
                client.kill("bare")


def test_hundreds_of_short_lives_leave_nothing(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    write(kernel, "s.py", "from agentos import AgentOSClient\nAgentOSClient().recv_messages(timeout=1000)\n")
    with kernel.client() as client:
        churn(client, 24)  # what is made once is there now
        until(lambda: not children_of(kernel.pid), "all have ended")
        files, threads, rss = kernel.open_files, proc_status(kernel.pid, "Threads"), kernel.rss

        churn(client, rounds(36))

        until(lambda: not children_of(kernel.pid), "all have ended and were reaped")
        until(lambda: kernel.open_files <= files, f"{kernel.open_files} files are open, {files} were before")
        # Trio keeps a few that idle, each for ten seconds.
        until(lambda: proc_status(kernel.pid, "Threads") <= threads + 2, "no more threads than before")
        assert kernel.rss - rss < rounds(8 << 20)  # all ended agents are remembered
        assert runtime_files(kernel) == {"sdk"}
        assert client.tree()["tree"]["children"][0]["children"] == []
