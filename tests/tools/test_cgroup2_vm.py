"""The guest kernel: what it needs, and what its commands find of each other."""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guest import RunInGuest, need_guest
from tests.support.kernel import until
from tests.tools import cgroup2_vm

SAPPHIRE_RAPIDS = "processor\t: 0\nflags\t\t: fpu sse2 avx512_fp16 amx_bf16 amx_tile amx_int8 arch_capabilities\n"
OLDER = "processor\t: 0\nflags\t\t: fpu sse2 avx512_vnni arch_capabilities\nbugs\t\t: amx_tile\n"


def test_amx_is_told_by_the_flags_of_the_cpu() -> None:
    assert cgroup2_vm.has_amx(SAPPHIRE_RAPIDS)
    assert not cgroup2_vm.has_amx(OLDER)
    assert not cgroup2_vm.has_amx("")


@pytest.mark.parametrize(
    ("programs", "needs"),
    [((), "install user-mode-linux"), (("linux.uml",), "install gcc libc6-dev"), (("linux.uml", "cc"), None)],
)
def test_what_a_guest_needs_may_not_be_missing(
    programs: tuple[str, ...], needs: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(SAPPHIRE_RAPIDS)
    for directory in ("bin", "lib/uml/modules"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "lib/uml/modules/overlay.ko").touch()
    for name in programs:
        (tmp_path / "bin" / name).touch(0o755)
    monkeypatch.setattr(cgroup2_vm, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(cgroup2_vm, "KERNEL", "linux.uml")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("AGENTOS_MUST_SANDBOX", "1")

    with contextlib.nullcontext() if needs is None else pytest.raises(pytest.fail.Exception, match=needs):
        need_guest()


def test_programs_that_take_turns_keep_their_registers(guest: RunInGuest) -> None:
    code = "import array, math; print(math.fsum(math.sqrt(n) for n in array.array('d', range(1000))))"

    assert guest("sh", "-c", f'for i in 1 2 3; do "{sys.executable}" -c "{code}" & done; wait').out == (
        f"{math.fsum(math.sqrt(n) for n in range(1000))}\n" * 3
    )


def test_a_guest_runs_a_command_with_control_groups_of_version_2(guest: RunInGuest) -> None:
    boot = "cat /proc/sys/kernel/random/boot_id"
    script = f"{boot}; cat $CGROUP2_SCOPE/cgroup.controllers; id -u; echo no >&2; touch /usr/written; exit 3"

    ended = guest("sh", "-c", script, user=True, alone=True)

    own, *said = ended.out.splitlines()
    assert (ended.code, said) == (3, ["cpu memory pids", f"{cgroup2_vm.USER}"])
    assert own not in ("", guest(*boot.split()).out.strip()), "it has a kernel of its own"
    assert ended.err.startswith("no\n")
    assert not os.path.exists("/usr/written")


LEAVES_MUCH = """
echo ours > "$1/file"; touch /tmp/left /dev/shm/left /run/left; hostname left
mkdir "$CGROUP2_SCOPE/left"
sleep 1000 & echo $! > "$CGROUP2_SCOPE/left/cgroup.procs"
setsid sleep 1000 &
cat /proc/sys/kernel/random/boot_id
"""
FINDS = """
cat /proc/sys/kernel/random/boot_id
cat "$1/file"; ls -d /tmp/left /dev/shm/left /run/left; hostname
ls "$CGROUP2_SCOPE" | grep left; cat /proc/[0-9]*/comm | grep sleep
"""


def test_commands_share_a_kernel_and_find_nothing_of_each_other(guest: RunInGuest, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("the host's\n")
    before = guest("hostname").out

    left = guest("sh", "-c", LEAVES_MUCH, "sh", str(tmp_path))
    (tmp_path / "file").write_text("the host's, written meanwhile\n")
    found = guest("sh", "-c", FINDS, "sh", str(tmp_path))

    assert len(left.out) == 37, left.err
    assert found.out == f"{left.out}the host's, written meanwhile\n{before}"
    assert found.err.count("No such file") == 3
    assert guest("cat", "/proc/sys/kernel/random/boot_id", user=True).out == left.out


def test_a_disk_is_empty_for_each_command_and_takes_overlays(guest: RunInGuest) -> None:
    script = (
        "ls /tmp | grep -c left; cd /tmp; mkdir left a b c; mount -t overlay x -o lowerdir=a,upperdir=b,workdir=c a"
    )
    look = "ls /tmp | grep -c left; stat -f -c %T /tmp; id -u > /tmp/own; cat /tmp/own"

    first, second = guest("sh", "-c", script, disk=True), guest("sh", "-c", look, disk=True, user=True)

    assert (first.out, first.err, first.code) == ("0\n", "", 0)
    assert (second.out, second.err) == (f"0\next2/ext3\n{cgroup2_vm.USER}\n", "")


def test_output_of_any_length_arrives_whole_and_apart(guest: RunInGuest) -> None:
    ended = guest("sh", "-c", "head -c 3000000 /dev/zero; echo $LONG >&2", env={"LONG": "x" * 100_000})

    assert ended.out == "\0" * 3_000_000
    assert ended.err == "x" * 100_000 + "\n"


@pytest.mark.usefixtures("guest")
def test_a_command_that_does_not_end_is_told_and_the_next_has_another_kernel() -> None:
    with cgroup2_vm.Guest() as own:
        booted = own.run(cgroup2_vm.Job(["cat", "/proc/sys/kernel/random/boot_id"])).out
        with pytest.raises(cgroup2_vm.NoGuest, match="timed out"):
            own.run(cgroup2_vm.Job(["sleep", "1000"]), timeout=0.5)

        assert own.run(cgroup2_vm.Job(["cat", "/proc/sys/kernel/random/boot_id"])).out not in ("", booted)


BOOTS = """
from tests.tools.cgroup2_vm import Guest, Job
guest = Guest()
guest.run(Job(["true"]))
print("up", flush=True)
guest.run(Job(["sleep", "1000"]))
"""


@pytest.mark.usefixtures("guest")
def test_a_guest_ends_with_the_process_that_booted_it() -> None:
    with subprocess.Popen([sys.executable, "-c", BOOTS], stdout=subprocess.PIPE, text=True) as booter:
        assert booter.stdout is not None
        assert booter.stdout.readline() == "up\n"
        children = Path(f"/proc/{booter.pid}/task/{booter.pid}/children").read_text().split()
        watched = [os.pidfd_open(int(child)) for child in children]
        [work] = {one for one in Path("/tmp").glob("aos-vm-*") if any(str(one) in command(child) for child in children)}
        booter.send_signal(signal.SIGKILL)

    assert len(watched) == 2, "the kernel and its guard"
    until(lambda: len(select.select(watched, [], [], 0)[0]) == len(watched), "the kernel and its guard ended")
    for one in watched:
        os.close(one)
    assert not work.exists()


def command(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
