"""The units of our pages: systemd finds no fault with them, and one is run by a real systemd, in a guest kernel."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of, pages
from tests.support.guest import RunInGuest
from tests.support.wire import PATIENCE

UNITS = [block for page in pages() for block in blocks_of(page) if block.language == "ini"]
SYSTEMD = Path("/lib/systemd/systemd")
OURS = Path(sys.executable).with_name("agentos")

TREE = """
[[supervisor.children]]
name = "worker"
command = ["sleep", "1000"]
limits = { memory = "64M", max_pids = 8, cpu_quota = "50%" }
"""

CHECK_UNIT = """
[Unit]
Wants=agentos.service
After=agentos.service
FailureAction=exit-force
SuccessAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/sh /run/systemd/system/check.sh
StandardOutput=file:/run/check.log
StandardError=inherit
"""

CHECK = """
systemctl show agentos -p SubState; systemctl show agentos -p StatusText
cat /proc/$(systemctl show agentos -p MainPID --value)/cgroup
runuser -u agentos -- {python} /run/systemd/system/inspect.py
systemctl stop agentos
systemctl show agentos -p SubState; systemctl show agentos -p Result
"""

# By the SDK alone: a command imports a hundred modules more, which takes seconds in a guest.
INSPECT = """
import json
from agentos_sdk import AgentOSClient

with AgentOSClient("/run/agentos/agentos.sock") as client:
    print(json.dumps(client.inspect("worker")))
"""

PREPARE = """
set -eu
useradd --system agentos
mkdir -p /var/lib/agentos
mount -t tmpfs tmpfs /var/lib/agentos # what kernels of root have left on the host, systemd would give to that user
rm -rf /etc/systemd/system/agentos.service* # one that this machine has would go before
mkdir -p /opt/agentos/bin /etc/agentos
ln -s {ours} /opt/agentos/bin/agentos
cp {tree} /etc/agentos/agentos.toml
for path in {ours} {python} {root}; do # in the guest alone: its users reach the interpreter
  while [ $path != / ]; do path=$(dirname $path); chmod o+x $path; done
done
exec sh {boot} {units}
"""


@pytest.mark.parametrize("unit", UNITS, ids=lambda block: block.where)
def test_systemd_finds_no_fault_with_a_unit(unit: Block, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here (Debian: apt-get install systemd)")
    file = tmp_path / "agentos.service"
    there = unit.text.replace("/opt/agentos/bin/agentos", "/bin/true").replace("%h/.local/bin/agentos", "/bin/true")
    assert there != unit.text
    file.write_text(there)

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def lacking() -> str | None:
    """Why no systemd can be booted here."""
    if os.geteuid() != 0:
        return "only with root has the guest all of the host's files, so that a user can be added there"
    if not SYSTEMD.exists() or shutil.which("systemctl") is None:
        return "no systemd here (Debian: apt-get install systemd)"
    return None


def test_the_system_service_is_up_with_all_limits_and_stops_in_order(guest: RunInGuest, tmp_path: Path) -> None:
    if why := lacking():
        if os.geteuid() == 0 and SYSTEMD.exists() and "AGENTOS_MUST_SANDBOX" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    [unit] = [unit for unit in UNITS if "User=agentos" in unit.text]
    units = tmp_path / "units"
    units.mkdir()
    tree = tmp_path / "agentos.toml"
    (units / "agentos.service").write_text(unit.text)
    (units / "check.service").write_text(CHECK_UNIT)
    (units / "check.sh").write_text(CHECK.format(python=sys.executable))
    (units / "inspect.py").write_text(INSPECT)
    tree.write_text(TREE)
    boot = ROOT / "tests" / "tools" / "systemd_guest.sh"
    python = os.path.realpath(sys.executable)
    prepare = PREPARE.format(ours=OURS, python=python, root=ROOT / "agentos", tree=tree, boot=boot, units=units)

    ended = guest("sh", "-c", prepare, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    assert ended.code == 0, ended.out + ended.err
    running, status, group, inspected, dead, result = filter(None, ended.out.splitlines())
    assert running == "SubState=running"
    assert status.startswith("StatusText=ready; isolation standard: all walls; limits by cgroup v2; ")
    assert group == "0::/system.slice/agentos.service/kernel"
    layers = json.loads(inspected)["isolation"]["layers"]
    assert [layers[name]["asked"] for name in ("memory", "pids", "cpu")] == [64 << 20, 8, 50_000]
    assert all(layers[name]["mechanism"].startswith("cgroup v2") for name in ("memory", "pids", "cpu"))
    assert (dead, result) == ("SubState=dead", "Result=success")
