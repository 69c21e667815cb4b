"""Programs that an agent wrote: ``standard`` runs them, ``strict`` refuses them, whatever the host has for that."""

import json
import os
import sys
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from agentos.sandbox.host import Host
from agentos.sandbox.plan import plan_entry, plan_sandbox
from agentos.sandbox.policy import Policy
from agentos.sandbox.policy import Program as Run
from agentos.sandbox.report import probe, walls
from agentos.sandbox.start.spawner import Spawner
from agentos_attacks.harness import ATTACKER, PROGRAM
from agentos_attacks.inside import written
from tests.sandbox import jail

CHECKS = ("strict.memfd_exec", "strict.written_exec")
ORDER = json.dumps({"checks": CHECKS, "targets": {}, "seconds": 20})
ATTACK = Run([sys.executable, f"/agent/{PROGRAM}", ORDER])
SLEEP = Run(["/bin/sleep", "600"])

HERE = probe.read_host(memory_cgroup=True)  # otherwise there are no memory files at all
needs_sysctl = pytest.mark.skipif(
    not HERE.memfd_noexec, reason="vm.memfd_noexec can't be written: no root, or no Linux 6.3"
)
BY_SYSCTL = pytest.param(HERE, marks=needs_sysctl, id="sysctl")
BY_FILTER = pytest.param(replace(HERE, memfd_noexec=False), id="seccomp")
both_means = pytest.mark.parametrize("host", [BY_SYSCTL, BY_FILTER])


def policy(profile: str, workspace: Path | None = None) -> Policy:
    return Policy(
        jail.PYTHON, code=str(ATTACKER), sdk=jail.SDK, profile=profile, workspace=str(workspace) if workspace else None
    )


async def attacked(spawner: Spawner, wanted: Policy, host: Host) -> dict[str, str]:
    """What came of each check, by name."""
    ended = await jail.run(spawner, plan_sandbox(wanted, ATTACK, host, jail.outer()))
    return outcomes(ended.out)


def outcomes(out: str) -> dict[str, str]:
    return {one["check"]: one["outcome"] for one in map(json.loads, out.splitlines())}


@pytest.fixture
def workspace(entered: Path) -> Path:
    """A directory of the host's that programs in jails may write to."""
    entered.chmod(0o777)
    return entered


async def test_standard_runs_what_was_written_and_what_lies_in_memory(spawner: Spawner) -> None:
    assert await attacked(spawner, policy("standard"), HERE) == dict.fromkeys(CHECKS, "escaped")


@both_means
async def test_strict_executes_neither_memory_files_nor_files_that_were_written(spawner: Spawner, host: Host) -> None:
    assert await attacked(spawner, policy("strict"), host) == dict.fromkeys(CHECKS, "blocked")


async def test_strict_executes_nothing_in_a_workspace_of_the_hosts(spawner: Spawner, workspace: Path) -> None:
    found = await attacked(spawner, policy("strict", workspace), HERE)

    assert found == dict.fromkeys(CHECKS, "blocked")


@both_means
async def test_a_command_beside_a_strict_program_executes_no_memory_file(spawner: Spawner, host: Host) -> None:
    wanted = policy("strict")
    first = await spawner.spawn(plan_sandbox(wanted, SLEEP, host, jail.outer()))
    beside = await jail.ended(await spawner.enter(first, plan_entry(wanted, ATTACK, host)))
    await jail.kill(first)

    assert outcomes(beside.out) == dict.fromkeys(CHECKS, "blocked")


@both_means
async def test_what_a_strict_program_reads_at_its_standard_input_can_not_be_executed(
    spawner: Spawner, host: Host
) -> None:
    """Its standard input may be a memory file with content of a caller's choosing."""
    code = "import os\ntry: os.execve('/proc/self/fd/0', ['it'], {})\nexcept OSError as error: print(error.errno)"
    run = Run([sys.executable, "-I", "-c", code], stdin=await trio.Path("/bin/true").read_bytes())
    ended = await jail.run(spawner, plan_sandbox(policy("strict"), run, host, jail.outer()))

    assert (ended.out, ended.err) == ("13\n", "")


@both_means
async def test_a_strict_program_may_have_memory_files_that_are_no_programs(spawner: Spawner, host: Host) -> None:
    flags = os.MFD_CLOEXEC | (0 if host.memfd_noexec else written.MFD_NOEXEC_SEAL)
    code = f"import os\ntry: print(os.memfd_create('data', {flags}) > 2)\nexcept OSError as error: print(error.errno)"
    run = Run([sys.executable, "-I", "-c", code])
    ended = await jail.run(spawner, plan_sandbox(policy("strict"), run, host, jail.outer()))

    sealed = ended.out == "22\n" and not host.memfd_noexec  # EINVAL: Linux before 6.3 knows no such flag
    assert ended.out == "True\n" or sealed, ended.err


@both_means
async def test_the_record_says_which_means_forbids_executing_memory(spawner: Spawner, host: Host) -> None:
    steps = plan_sandbox(policy("strict"), SLEEP, host, jail.outer())
    sandbox = await spawner.spawn(steps)
    layer = walls.isolation_layers(steps, sandbox.observed)["seccomp"]
    await jail.kill(sandbox)

    said = (layer.active, layer.mechanism, layer.evidence)
    if host.memfd_noexec:
        read = "Seccomp: 2; vm.memfd_noexec: 2, read back in its PID namespace"
        assert said == (True, "BPF filter + vm.memfd_noexec", read)
    else:
        assert said == (True, "BPF filter", "Seccomp: 2; memfd_create without MFD_NOEXEC_SEAL: EACCES")


@needs_sysctl
async def test_the_hosts_own_memory_files_stay_executable(spawner: Spawner) -> None:
    before = await trio.Path("/proc/sys/vm/memfd_noexec").read_text()
    await attacked(spawner, policy("strict"), HERE)

    assert await trio.Path("/proc/sys/vm/memfd_noexec").read_text() == before
