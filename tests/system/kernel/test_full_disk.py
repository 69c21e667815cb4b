"""A kernel whose state directory has no room left: agents can be stopped, and so can the kernel."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.errors import Unavailable
from tests.support.kernel import environment, until
from tests.support.mounts import small_disk
from tests.support.wire import PATIENCE
from tests.system.agents import up


@pytest.fixture
def small() -> Iterator[Path]:
    """A file system that is too small for the audit log's reserve."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made, small_disk(Path(made), "6M") as place:
        yield place


@contextlib.contextmanager
def kernel_on(small: Path, tmp_path: Path) -> Iterator[tuple[AgentOSClient, Path]]:
    """A client of a kernel with its state directory in ``small``, and the file of its output; it stops in order."""
    state, socket = small / "state", str(tmp_path / "s")
    command = [sys.executable, "-m", "agentos", "run", "--socket", socket, "--state-dir", str(state)]
    said = tmp_path / "said"
    with said.open("w") as out:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        until(lambda: " ready, " in said.read_text(), "it is ready", 60)
        with AgentOSClient(socket) as client:
            yield client, said
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("kernels")
def test_on_a_full_disk_no_state_is_lost_and_agents_and_the_kernel_can_be_stopped(small: Path, tmp_path: Path) -> None:
    with kernel_on(small, tmp_path) as (client, said):
        assert client.store("kept", "before")["success"]
        fill(small)
        refused = client.store("lost", "")
        while refused["success"]:  # what SQLite's log has room for already may still be stored
            refused = client.store("lost", "x" * 50_000)

        assert refused["code"] == "unavailable"
        assert "full" in refused["error"] or "room" in refused["error"]
        assert client.fetch("kept")["value"] == "before"
        assert client.store("kept", "x" * 500_000)["code"] == "unavailable"
        assert client.fetch("kept")["value"] == "before"
        assert client.echo("still there?") == "still there?"

        (small / "ballast").unlink()
        until(lambda: client.store("kept", "after")["success"], "it can be stored again", 30)
        assert client.fetch("kept")["value"] == "after"

        up(client.spawn("greedy", command=["sleep", "1000"], isolation="none"))
        fill(small)
        while client.exec(["true"], timeout=PATIENCE).get("code") != "unavailable":
            pass

        assert client.kill("greedy", grace=0)

    assert "the operator can act and kill agents" in said.read_text()
    assert "KILL of greedy by operator#" in said.read_text()
    assert "Traceback" not in said.read_text()


@pytest.mark.usefixtures("kernels")
def test_an_archive_without_room_is_refused_with_the_place_that_is_full(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made, small_disk(Path(made), "40M") as place:
        state, path = f"{place}/state", str(tmp_path / "one.tar")
        with kernel_on(place, tmp_path) as (client, said):
            up(client.spawn("one", command=["/bin/sleep", "1000"]))
            with client.export_agent("one", ["agent"]) as archive:
                Path(path).write_bytes(b"".join(archive))
            fill(place)

            with pytest.raises(Unavailable, match=f"can't be kept in {state} until it is sent: No space left"):
                list(client.export_agent("one", ["state"]))
            refused = client.import_agent(path, as_="other")

            assert (refused["code"], refused["error"]) == ("unavailable", f"{state}: No space left on device")
        assert "bug" not in said.read_text()


def fill(place: Path) -> None:
    with open(place / "ballast", "ab", buffering=0) as file:
        try:
            while file.write(bytes(512)):
                pass
        except OSError:
            os.fsync(file.fileno())
