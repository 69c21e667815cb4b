"""A server of the measurement doesn't outlive the measurement."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wire import PATIENCE

MEASUREMENT = """
import sys
from pathlib import Path
from tests.speed.processes import Server

server = Server(["sh", "-c", "echo ready; exec sleep 1000"], Path(sys.argv[1]), None)
server.wait_ready(30)
print(server.pid, flush=True)
input()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_if_the_measurement_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MEASUREMENT, str(tmp_path / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(number)
        process.wait(PATIENCE)

    ended, _, _ = select.select([server], [], [], 60)
    assert ended
    os.close(server)
