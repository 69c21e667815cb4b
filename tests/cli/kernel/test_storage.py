"""``agentos storage``: with a running kernel and without one, as a table and JSON."""

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentos.userland.cli.main import cli
from tests.conftest import OwnKernel
from tests.support.kernel import until


def storage(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, ["storage", *words], env=env)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, size in (("logs/web.1.1.jsonl", 8192), ("workspaces/web.img", 65536), ("audit/000001.db", 16384)):
        (tmp_path / "state" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "state" / name).write_bytes(b"x" * size)
    return tmp_path / "state"


def test_the_table_has_the_largest_first_and_a_sum(place: Path) -> None:
    shown = storage("--state-dir", str(place), env={"XDG_STATE_HOME": str(place.parent)})

    lines = shown.output.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [
        ["OWNER", "KIND"],
        ["web", "workspaces"],
        ["kernel", "audit"],
        ["web", "logs"],
    ]
    assert re.match(rf"[0-9]+\.0K in {place}, ", lines[-1]), "on disk, with directories"


@pytest.mark.parametrize(("by", "first", "added"), [("owner", "web", 2), ("kind", "workspaces", 1)])
def test_rows_are_added_by_owner_or_kind(place: Path, by: str, first: str, added: int) -> None:
    every = json.loads(storage("--state-dir", str(place), "--json").output)["storage"]
    found = json.loads(storage("--state-dir", str(place), "--by", by, "--json").output)

    largest = found["storage"][0]
    parts = [row for row in every if row[by] == first]
    assert largest == {
        by: first,
        "bytes": sum(row["bytes"] for row in parts),
        "entries": sum(row["entries"] for row in parts),
    }
    assert len(parts) == added
    assert found["bytes"] == sum(row["bytes"] for row in found["storage"])


def test_a_directory_without_state_is_named(tmp_path: Path) -> None:
    shown = storage("--state-dir", str(tmp_path / "none"))

    assert (shown.exit_code, shown.output) == (
        1,
        f"agentos: there is no state in {tmp_path}/none: a kernel makes it; say where with --state-dir\n",
    )


def test_a_file_that_is_no_database_is_named(place: Path) -> None:
    (place / "agentos.db").write_text("text " * 200)

    shown = storage("--state-dir", str(place))

    assert (shown.exit_code, shown.output) == (1, f"agentos: {place}: file is not a database\n")


def test_a_kernel_that_runs_and_one_that_has_ended(own_kernel: OwnKernel) -> None:
    kernel = own_kernel('[[agents]]\nname = "says"\ncommand = ["sh", "-c", "echo hello; sleep 1000"]\n')
    with kernel.client() as client:
        assert client.store("key", "x" * 5000)["success"]
    until(lambda: list((kernel.state_dir / "logs").glob("says.*")), "the log is written")

    def kinds() -> set[tuple[str, str]]:
        found = json.loads(storage("--state-dir", str(kernel.state_dir), "--json").output)
        return {(row["owner"], row["kind"]) for row in found["storage"] if row["bytes"]}

    running = kinds()
    kernel.stop()

    wanted = {("says", "logs"), ("operator", "state"), *(("kernel", kind) for kind in ("audit", "events", "database"))}
    assert running >= wanted
    assert kinds() >= wanted


def test_beyond_its_bound_a_kernel_drops_what_may_go_and_nothing_of_a_running_agent(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(
        '[storage]\nmax_total = "64M"\n[[agents]]\nname = "runs"\ncommand = ["sleep", "1000"]\nworkspace = "keep"\n'
    )
    logs = kernel.state_dir / "logs"
    kernel.stop()
    for name in ("gone.1.1.jsonl", "runs.1.7.jsonl"):
        (logs / name).write_bytes(b"x" * (1 << 20))
        (logs / name).chmod(0o600)
    with (kernel.state_dir / "workspaces" / "gone.img").open("wb") as image:
        os.posix_fallocate(image.fileno(), 0, 70 << 20)
    kept = [*(kernel.state_dir / "audit").glob("*.db"), *(kernel.state_dir / "workspaces").iterdir()]

    kernel.start_again()

    with kernel.client() as client:
        until(lambda: [one for one in client.status()["attention"] if one["kind"] == "storage"], "it is told")
        [told] = [one for one in client.status()["attention"] if one["kind"] == "storage"]
    assert "workspaces of gone (70.0 MiB)" in told["text"]
    kernel.wait_line(re.escape(told["text"]))
    kernel.wait_line(re.escape("[storage] max_total: dropped 1.0 MiB of logs of agents that have ended"))
    left = {path.name for path in logs.iterdir()}
    assert not [name for name in left if name.startswith(("gone.", "kernel.1."))]
    assert {"runs.1.7.jsonl", "kernel.2.1.jsonl"} <= left
    assert all(path.exists() for path in kept)
