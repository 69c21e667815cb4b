"""Workspaces through SPAWN and the file: what is kept and for whom, what is watched, and what is left behind."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import ask, in_state, info, known, lines, relay, up, write
from tests.system.jails import layers, loops_in, mounts_of, said

SLEEP = ["sleep", "1000"]
COUNTS = """
import json, os
from pathlib import Path
file = Path("count")
lives = int(file.read_text()) + 1 if file.exists() else 1
file.write_text(str(lives))
print(json.dumps([lives, os.stat("count").st_uid]), flush=True)
"""
FILLS = """
import os, time
time.sleep(1)
fd = os.open("/workspace/much", os.O_CREAT | os.O_WRONLY)
while True:
    os.write(fd, bytes(1 << 18))
    time.sleep(0.005)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of the operator's, for an agent to work in."""
    with tempfile.TemporaryDirectory(prefix="aos-work-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def test_tmp_is_gone_with_each_life(kernel: Kernel, client: AgentOSClient) -> None:
    script = write(kernel, "counts.py", COUNTS + "import time; time.sleep(1000)\n")
    up(client.spawn("counts", script, restart="permanent"))
    until(lambda: len(lines(client, "counts", "stdout")) == 1, "it has counted")

    os.kill(known(client, "counts"), 9)

    until(lambda: len(lines(client, "counts", "stdout")) == 2, "it has counted again")
    assert [json.loads(line)[0] for line in lines(client, "counts", "stdout")] == [1, 1]


def test_keep_is_kept_over_restarts_and_kernels_for_the_same_user(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    script = write(kernel, "counts.py", COUNTS + "import time; time.sleep(1000)\n")
    uids = []
    for life in range(2):
        with kernel.client() as client:
            up(client.spawn("counts", script, workspace="keep", restart="permanent"))
            until(lambda: len(lines(client, "counts", "stdout")) == 1, "it has counted")
            os.kill(known(client, "counts"), 9)
            until(lambda: len(lines(client, "counts", "stdout")) == 2, "it has counted again")
            assert [json.loads(line)[0] for line in lines(client, "counts", "stdout")] == [2 * life + 1, 2 * life + 2]
            uids.append(os.stat(f"/proc/{known(client, 'counts')}").st_uid)
        if life == 0:
            kernel.kill()
            kernel.start_again()
    assert uids[0] == uids[1]
    kernel.stop()


def test_keep_is_an_image_with_root_and_a_directory_without(kernel: Kernel, client: AgentOSClient) -> None:
    reply = client.spawn("keeper", command=SLEEP, workspace="keep", limits={"disk": "16M"})
    disk, mount = layers(reply)["disk"], mounts_of(reply["pid"])["/workspace"]

    if os.geteuid() == 0:
        assert (disk["active"], disk["mechanism"], mount[0]) == (True, "loop image", "ext4")
        assert loops_in(kernel.place) == [f"{kernel.state_dir}/workspaces/keeper.img"]
    else:
        assert (disk["active"], disk["mechanism"]) == (True, "watched")
        assert disk["reason"].startswith("watched, may overshoot: between two counts")
        assert (kernel.state_dir / "workspaces" / "keeper").is_dir()
    client.kill("keeper", grace=0)
    until(lambda: not loops_in(kernel.place), "its loop device is let go")


def test_two_agents_of_one_name_but_other_parents_keep_files_apart(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("notes", write(kernel, "counts.py", COUNTS + "import time; time.sleep(1000)\n"), workspace="keep"))
    until(lambda: lines(client, "notes", "stdout"), "the first has counted")
    client.kill("notes", grace=0)
    parent = relay(kernel, client, "thief", isolation="none")

    up(ask(client, parent, "spawn", name="notes", command=["sh", "-c", "ls; exec sleep 1000"], workspace="keep"))

    assert lines(client, "notes", "stdout") == []


def test_keep_is_not_a_jailed_agents_to_give(kernel: Kernel, client: AgentOSClient) -> None:
    parent = relay(kernel, client, "hoarder")

    reply = ask(client, parent, "spawn", name="hoard", command=["true"], workspace="keep")

    assert (reply["code"], reply["error"]) == (
        "permission_denied",
        "workspace: keep is the operator's to give: say tmp",
    ), reply
    assert list((kernel.state_dir / "workspaces").glob("*hoard")) == []


def test_a_directory_of_the_hosts_is_worked_in_and_its_protected_names_are_not(
    kernel: Kernel, client: AgentOSClient, shared: Path
) -> None:
    (shared / ".git" / "hooks").mkdir(parents=True)
    (shared / "notes").write_text("from outside")
    if os.geteuid() == 0:
        os.chmod(shared, 0o777)
    before = sorted(os.listdir(shared))
    code = """
    import json, os
    found = {"notes": open("notes").read()}
    open("made", "w").write("from inside")
    for name in (".git/hooks/pre-commit", ".envrc", ".git/config"):
        try:
            open(name, "w").write("evil")
            found[name] = "written"
        except OSError as error:
            found[name] = error.strerror
    print(json.dumps(found), flush=True)
    """.replace("\n    ", "\n")

    found = said(client, kernel, "worker", code, workspace=str(shared))

    assert found.pop("notes") == "from outside"
    assert "written" not in found.values(), found
    assert (shared / "made").read_text() == "from inside"
    client.kill("worker", grace=0)
    in_state(client, "worker", "exited")
    until(lambda: sorted(os.listdir(shared)) == sorted([*before, "made"]), f"no stub is left: {os.listdir(shared)}")
    assert os.listdir(shared / ".git") == ["hooks"]
    assert str(shared) not in Path("/proc/mounts").read_text()


def test_an_agent_that_writes_more_than_its_limit_into_a_watched_directory_is_killed_for_it(
    kernel: Kernel, client: AgentOSClient, shared: Path
) -> None:
    os.chmod(shared, 0o777)
    script = write(kernel, "fills.py", FILLS)
    reply = up(client.spawn("fills", script, workspace=str(shared), limits={"disk": "8M"}))

    reason = client.wait("fills", timeout=PATIENCE)["reason"]

    assert layers(reply)["disk"]["mechanism"] == "watched"
    assert reason.startswith("killed: disk limit 8M reached in its workspace"), reason
    assert (shared / "much").stat().st_size > 8 << 20


@pytest.mark.parametrize(
    "where", ["/", "/etc", "/usr/lib", "/tmp", "/proc/self", "STATE", "RUNTIME", "LINK", "/no/such"]
)
def test_what_the_host_needs_is_no_workspace(kernel: Kernel, client: AgentOSClient, where: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    runtime = next(name for name in os.listdir(kernel.place) if name.startswith("agentos-"))
    places = {"STATE": str(kernel.state_dir), "RUNTIME": str(kernel.place / runtime), "LINK": str(tmp_path / "link")}

    reply = client.spawn("greedy", command=SLEEP, workspace=places.get(where, where))

    assert not reply["success"], reply
    assert "workspace" in reply["error"]


def test_a_file_may_name_workspaces_too(own_kernel: OwnKernel, shared: Path) -> None:
    os.chmod(shared, 0o777)
    child = '[[supervisor.children]]\nname = "{}"\ncommand = ["sleep", "1000"]\nworkspace = "{}"\n'
    kernel = own_kernel(child.format("kept", "keep") + child.format("shares", shared))
    with kernel.client() as client:
        assert mounts_of(info(client, "shares")["pid"])["/workspace"][1] == "rw"
        assert os.path.samefile(f"/proc/{info(client, 'shares')['pid']}/root/workspace", shared)
        assert info(client, "kept")["state"] == "running"
    kernel.stop()
    assert not loops_in(kernel.place)


def test_a_workspace_that_was_removed_is_an_error_that_names_it_and_the_next_spawn_works(
    kernel: Kernel, client: AgentOSClient, shared: Path
) -> None:
    os.chmod(shared, 0o777)
    work = shared / "work"
    work.mkdir(mode=0o777)
    os.chmod(work, 0o777)
    up(client.spawn("worker", command=SLEEP, workspace=str(work), restart="permanent", max_restarts=1))
    pid = known(client, "worker")
    os.rename(work, shared / "elsewhere")

    os.kill(pid, 9)

    reason = client.wait("worker", timeout=PATIENCE)["reason"]
    assert str(work) in reason, reason
    os.rename(shared / "elsewhere", work)
    up(client.spawn("worker", command=SLEEP, workspace=str(work)))


def test_a_directory_that_is_full_already_is_refused(kernel: Kernel, client: AgentOSClient, shared: Path) -> None:
    (shared / "much").write_bytes(bytes(9 << 20))

    reply = client.spawn("full", command=SLEEP, workspace=str(shared), limits={"disk": "8M"})

    assert reply["code"] == "isolation_unavailable"
    assert f"disk limit 8M reached in its workspace already: make room in {shared}" in reply["error"]


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_git_commits_none_of_the_names_that_are_only_held(kernel: Kernel, client: AgentOSClient, shared: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run([*git, "init", "-q", str(shared)], check=True)
    (shared / "work").write_text("done")

    command = "git add -A && git -c user.name=x -c user.email=x@y commit -q -m all; git ls-files; sleep 1000"
    up(client.spawn("commits", command=["sh", "-c", command], workspace=str(shared)))

    until(lambda: lines(client, "commits"), "it has committed")
    assert lines(client, "commits") == ["work"]


def test_a_new_repository_below_the_top_is_told_when_its_maker_has_ended(
    kernel: Kernel, client: AgentOSClient, shared: Path
) -> None:
    """Git on the host does what the configuration in it says."""
    (shared / "old" / ".git").mkdir(parents=True)
    if os.geteuid() == 0:
        os.chmod(shared, 0o777)

    up(client.spawn("maker", command=["sh", "-c", "mkdir -p sub/.git; exec sleep 1000"], workspace=str(shared)))
    until((shared / "sub" / ".git").is_dir, "it has made one")
    client.kill("maker", grace=0)

    told = "its workspace has a new repository at sub/.git: git there does what its configuration says"
    until(lambda: lines(client, "maker", "kernel"), "something is told")
    assert [line for line in lines(client, "maker", "kernel") if "repository" in line] == [told]
    kernel.wait_line(f"maker: {told}")


def test_an_image_that_mkfs_gave_more_inodes_than_asked_for_is_one(kernel: Kernel, client: AgentOSClient) -> None:
    if os.geteuid() != 0:
        pytest.skip("without root there are no images")

    disk = layers(up(client.spawn("large", command=SLEEP, workspace="keep", limits={"disk": "10G"})))["disk"]

    assert (disk["active"], disk["mechanism"]) == (True, "loop image")


def test_an_image_in_which_nothing_has_ever_started_is_removed_again(kernel: Kernel, client: AgentOSClient) -> None:
    if os.geteuid() != 0:
        pytest.skip("without root there are no images")

    up(client.spawn("there", command=SLEEP, workspace="keep"))
    client.kill("there", grace=0)
    client.wait("there")
    for name in ("there", "fresh"):
        assert not client.spawn(name, command=["/no/such/program"], workspace="keep")["success"]

    left = os.listdir(kernel.state_dir / "workspaces")
    assert "there.img" in left
    assert not [name for name in left if name.startswith("fresh")]
