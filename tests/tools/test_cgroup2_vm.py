"""Which kernel a host's guests get, and what is said where there is none."""

import os
from pathlib import Path

import pytest

from tests.support.guest import need_guest
from tests.tools import cgroup2_vm

SAPPHIRE_RAPIDS = "processor\t: 0\nflags\t\t: fpu sse2 avx512_fp16 amx_bf16 amx_tile amx_int8 arch_capabilities\n"
OLDER = "processor\t: 0\nflags\t\t: fpu sse2 avx512_vnni arch_capabilities\nbugs\t\t: amx_tile\n"


@pytest.fixture
def cpu_with_amx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(SAPPHIRE_RAPIDS)
    monkeypatch.setattr(cgroup2_vm, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.delenv(cgroup2_vm.ENGINE, raising=False)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def test_amx_is_told_by_the_flags_of_the_cpu() -> None:
    assert cgroup2_vm.has_amx(SAPPHIRE_RAPIDS)
    assert not cgroup2_vm.has_amx(OLDER)
    assert not cgroup2_vm.has_amx("")


@pytest.mark.usefixtures("cpu_with_amx")
def test_a_cpu_with_amx_is_given_to_qemu_unless_another_engine_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cgroup2_vm.engine() == "qemu"

    monkeypatch.setenv(cgroup2_vm.ENGINE, "uml")
    assert cgroup2_vm.engine() == "uml"


@pytest.mark.usefixtures("cpu_with_amx", "nothing_installed")
def test_with_amx_and_no_qemu_tests_are_skipped_with_that_reason_even_where_nothing_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTOS_MUST_SANDBOX", "1")

    with pytest.raises(pytest.skip.Exception, match="can't run programs on a CPU with AMX, and QEMU can't be used: "):
        need_guest()


@pytest.mark.usefixtures("nothing_installed")
def test_without_amx_a_missing_kernel_is_no_excuse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(OLDER)
    monkeypatch.setattr(cgroup2_vm, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("AGENTOS_MUST_SANDBOX", "1")

    for engine in ("", "qemu"):
        monkeypatch.setenv(cgroup2_vm.ENGINE, engine)
        with pytest.raises(pytest.fail.Exception, match=r"apt-get install|only root"):
            need_guest()


def test_a_guest_that_dies_of_its_cpus_registers_says_what_to_set() -> None:
    said = cgroup2_vm.no_guest("the guest did not end", "ptrace set fp regs failed, errno = 14\nKernel panic")

    assert "linux.uml can't run programs on this CPU: set CGROUP2_VM_ENGINE=qemu" in said
    assert "CGROUP2_VM_ENGINE" not in cgroup2_vm.no_guest("the guest did not end", "Kernel panic")


@pytest.mark.parametrize("engine", ["uml", "qemu"])
@pytest.mark.slow
def test_a_guest_runs_a_command_with_control_groups_of_version_2(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cgroup2_vm.ENGINE, engine)
    if cgroup2_vm.has_amx(cgroup2_vm.CPUINFO.read_text()) and engine == "uml":
        pytest.skip("linux.uml can't run programs on a CPU with AMX")
    if engine == "qemu" and (why := cgroup2_vm.lacking()):
        pytest.skip(why)  # installed only where it is needed
    need_guest()
    script = "cat $CGROUP2_SCOPE/cgroup.controllers; id -u; echo no >&2; touch /usr/written; exit 3"

    ended = cgroup2_vm.run(cgroup2_vm.Job(["sh", "-c", script], user=True))

    assert (ended.code, ended.out) == (3, f"cpu memory pids\n{cgroup2_vm.USER}\n")
    assert ended.err.startswith("no\n")
    assert not os.path.exists("/usr/written")
