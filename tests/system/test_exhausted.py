"""A kernel that runs out of descriptors: who asks for more is refused, and everything else goes on."""

import os
import resource
import socket
import tempfile
from pathlib import Path

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.system.agents import info, up


def test_a_kernel_without_descriptors_goes_on_and_recovers(kernel: Kernel, client: AgentOSClient) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-work-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        up(client.spawn("watched", command=["sleep", "1000"], workspace=str(Path(directory).resolve())))
        limits = resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE)
        crowd: list[socket.socket] = []
        try:
            resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # no number is free below
            for _ in range(8):
                crowd.append(socket.socket(socket.AF_UNIX))
                crowd[-1].connect(kernel.socket)

            kernel.wait_line("workspaces could not be looked at")
            assert not client.spawn("one more", command=["sleep", "1000"])["success"]
            assert info(client, "watched")["state"] == "running"
        finally:
            resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE, limits)
            for one in crowd:
                one.close()

        until(kernel.answers, "it answers again")
        up(client.spawn("another", command=["sleep", "1000"]))
