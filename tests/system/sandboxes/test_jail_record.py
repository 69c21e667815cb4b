"""What SPAWN says of a jail's walls and limits, held against what the host itself says."""

import os
import re
import sys
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel
from tests.system.agents import SLEEPER, up, write, written
from tests.system.jails import LAYERS, cgroups, crippled, group_of, layers, mounts_of, need_cgroups, said, status_of

NAMESPACES = {
    "user_ns": "user",
    "pid_ns": "pid",
    "mount_ns": "mnt",
    "net_ns": "net",
    "ipc_ns": "ipc",
    "uts_ns": "uts",
    "cgroup_ns": "cgroup",
}


def test_the_record_has_all_eighteen_layers_with_all_they_say(client: AgentOSClient) -> None:
    found = layers(client.spawn("record", command=["sleep", "1000"]))

    assert tuple(found) == LAYERS
    for layer in found.values():
        assert set(layer) == {"asked", "active", "mechanism", "evidence", "reason"}
        assert layer["active"] or layer["reason"], layer


def test_each_namespace_is_the_one_that_the_process_has(client: AgentOSClient) -> None:
    reply = client.spawn("spaces", command=["sleep", "1000"])

    for name, short in NAMESPACES.items():
        inode = os.stat(f"/proc/{reply['pid']}/ns/{short}").st_ino
        layer = layers(reply)[name]
        assert layer["active"], (name, layer)
        assert f"{short}:[{inode}]" in layer["evidence"]
        assert inode != os.stat(f"/proc/self/ns/{short}").st_ino


def test_privileges_are_what_proc_says(client: AgentOSClient) -> None:
    reply = client.spawn("weak", command=["sleep", "1000"])
    status, found = status_of(reply["pid"]), layers(reply)

    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0
        assert f"{name}={status[name]}" in found["capabilities"]["evidence"]
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert all(found[name]["active"] for name in ("capabilities", "no_new_privs", "seccomp"))


def test_with_root_the_user_outside_is_no_other_users(client: AgentOSClient) -> None:
    reply = client.spawn("uid", command=["sleep", "1000"])
    uids, layer = set(status_of(reply["pid"])["Uid"].split()), layers(reply)["own_uid"]

    if os.geteuid() == 0:
        assert layer["asked"]
        assert layer["active"]
        assert len(uids) == 1
        assert 1610612736 <= int(uids.pop()) < 1610612736 + 65536
    else:
        assert (layer["asked"], layer["active"]) == (False, False)
        assert uids == {str(os.geteuid())}
        assert layer["reason"]


def test_resource_limits_are_read_back(client: AgentOSClient) -> None:
    reply = client.spawn("limited", command=["sleep", "1000"], limits={"open_files": 99, "file_size": "3M"})
    table = Path(f"/proc/{reply['pid']}/limits").read_text()

    assert re.search(r"^Max open files +99 +99 ", table, re.MULTILINE)
    assert re.search(rf"^Max file size +{3 << 20} +{3 << 20} ", table, re.MULTILINE)
    evidence = layers(reply)["rlimits"]["evidence"]
    assert "NOFILE=99" in evidence
    assert f"FSIZE={3 << 20}" in evidence


def test_limits_by_control_groups_are_in_their_files(kernel: Kernel, client: AgentOSClient) -> None:
    version = need_cgroups(kernel)
    limits = {"memory": "100M", "max_pids": 20, "cpu_quota": "50%"}
    reply = client.spawn("grouped", command=["sleep", "1000"], limits=limits)
    pid, found = reply["pid"], layers(reply)

    memory = "memory.max" if version == 2 else "memory.limit_in_bytes"
    assert (group_of(pid, "memory") / memory).read_text() == f"{100 << 20}\n"
    assert (group_of(pid, "pids") / "pids.max").read_text() == "21\n"  # its PID 1 is ours
    cpu = group_of(pid, "cpu")
    quota, period = (
        (cpu / "cpu.max").read_text().split()
        if version == 2
        else ((cpu / "cpu.cfs_quota_us").read_text(), (cpu / "cpu.cfs_period_us").read_text())
    )
    assert int(quota) / int(period) == 0.5
    for name, amount in (("memory", 100 << 20), ("pids", 20), ("cpu", 50_000)):
        assert found[name]["active"]
        assert found[name]["asked"] == amount
        assert f"cgroup v{version}" in found[name]["mechanism"]


@pytest.mark.usefixtures("kernels")
def test_without_control_groups_the_record_says_what_is_watched_and_what_cant_be_had() -> None:
    with crippled("--hide", "/sys/fs/cgroup") as kernel, kernel.client() as client:
        assert cgroups(kernel) is None
        found = layers(client.spawn("ungrouped", command=["sleep", "1000"]))

    assert found["memory"]["mechanism"] == "watcher + RLIMIT_DATA"
    assert found["pids"]["mechanism"].startswith("RLIMIT_NPROC")
    assert not found["cpu"]["active"]
    assert "CPU shares can't be limited" in found["cpu"]["reason"]
    assert found["user_ns"]["active"]


def test_the_root_and_the_workspace_are_file_systems_of_its_own(client: AgentOSClient) -> None:
    reply = client.spawn("rooted", command=["sleep", "1000"], limits={"disk": "8M", "inodes": 100})
    mounts = mounts_of(reply["pid"])

    assert mounts["/"][:2] == ["tmpfs", "ro"]
    assert mounts["/workspace"][0] == "tmpfs"
    assert {"size=8192k", "nr_inodes=100"} <= set(mounts["/workspace"])
    disk = layers(reply)["disk"]
    assert (disk["asked"], disk["active"], disk["mechanism"]) == (8 << 20, True, "tmpfs size=8192k,nr_inodes=100")
    inside = set(os.listdir(f"/proc/{reply['pid']}/root"))
    ours = {path.split("/")[1] for path in (sys.prefix, sys.base_prefix)}  # the interpreter may lie anywhere
    assert inside - ours <= {
        *("agent", "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sdk", "tmp", "usr"),
        "workspace",
    }
    assert layers(reply)["root"]["active"]


def test_terminals_are_in_the_record_and_commands_have_them_too(client: AgentOSClient) -> None:
    found = layers(client.spawn("typist", command=["sleep", "1000"], terminals=True))["terminals"]
    assert (found["asked"], found["active"], found["mechanism"]) == (16, True, "devpts"), found
    assert "max=16" in found["evidence"]
    assert client.inspect("typist")["spec"]["terminals"]

    command = "import os, pty; pid, fd = pty.fork(); pid or os.execv('/usr/bin/tty', ['tty']); print(os.read(fd, 99))"
    reply = client.exec([sys.executable, "-c", command], name="typist")
    assert reply["stdout"].strip() == r"b'/dev/pts/0\r\n'", reply


def test_an_agent_has_no_network_but_its_loopback(kernel: Kernel, client: AgentOSClient) -> None:
    reply = client.spawn("offline", command=["sleep", "1000"])

    devices = Path(f"/proc/{reply['pid']}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    routes = Path(f"/proc/{reply['pid']}/net/route").read_text().splitlines()[1:]
    assert routes == []
    assert layers(reply)["net_ns"]["asked"]


def test_its_loopback_is_up(kernel: Kernel, client: AgentOSClient) -> None:
    code = """
    import socket, threading
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(listener.getsockname(), 5) as sock:
        listener.accept()[0].sendall(b"over loopback")
        print(sock.recv(20).decode(), flush=True)
    import time
    time.sleep(1000)
    """
    up(client.spawn("loop", write(kernel, "loop.py", code)))

    written(client, "loop", "over loopback")


def test_the_hosts_network_is_marked_as_such(client: AgentOSClient) -> None:
    reply = client.spawn("online", command=["sleep", "1000"], network=True)

    layer = layers(reply)["net_ns"]
    assert (layer["asked"], layer["active"]) == (False, False)
    assert layer["reason"] == "network: true gives it the host's"
    assert os.stat(f"/proc/{reply['pid']}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino
    assert layers(reply)["user_ns"]["active"]


def test_it_is_called_as_its_agent_and_is_uid_1000_in_there(kernel: Kernel, client: AgentOSClient) -> None:
    code = "import json, os; print(json.dumps([os.uname().nodename, os.getuid(), os.getcwd(), __file__]), flush=True)"

    assert said(client, kernel, "somebody", code) == ["somebody", 1000, "/workspace", "/agent/somebody.py"]


def test_an_unjailed_agent_has_no_wall_and_the_record_says_so(client: AgentOSClient) -> None:
    reply = client.spawn("bare", command=["sleep", "1000"], isolation="none")

    found = layers(reply)
    assert reply["isolation"]["level"] == "none"
    assert tuple(found) == LAYERS
    assert not any(found[name]["asked"] or found[name]["active"] for name in LAYERS if name != "rlimits")
    assert os.stat(f"/proc/{reply['pid']}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino


def test_the_script_of_a_jail_is_what_was_given(kernel: Kernel, client: AgentOSClient) -> None:
    reply = up(client.spawn("shown", write(kernel, "shown.py", SLEEPER)))

    assert os.listdir(f"/proc/{reply['pid']}/root/agent") == ["shown.py"]
