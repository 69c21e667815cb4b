import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import trio
from msgspec.structs import replace

from agentos.sandbox import steps as s
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.report import probe, walls
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox import jail
from tests.sandbox.jail import Belongings, a_plan

BY_CGROUP = {"memory", "pids", "cpu", "disk"}
ROOT = os.geteuid() == 0


async def test_every_layer_without_a_cgroup_is_tried_and_nothing_is_left(spawner: Spawner) -> None:
    before = Belongings.now()

    found = await probe.probe_layers(spawner, probe.read_host())

    assert set(found) == set(walls.LAYERS) - BY_CGROUP
    assert {name for name, finding in found.items() if not finding.works} <= {"landlock", "cgroup_ns", "own_uid"}
    assert found["own_uid"].works == ROOT
    assert all(finding.works or finding.reason for finding in found.values())
    assert Belongings.now() == before


class Trials:
    """A spawner that notes the plans of its sandboxes."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self.plans: list[Sequence[s.Step]] = []

    async def spawn(self, plan: Sequence[s.Step]) -> Sandbox:
        self.plans.append(plan)
        return await self._spawner.spawn(plan)


async def test_where_all_layers_work_one_program_has_them_all(spawner: Spawner) -> None:
    host, trials = probe.read_host(), Trials(spawner)

    found = await probe.probe_layers(cast(Spawner, trials), host)

    absent = ["landlock"] if host.landlock_abi == 0 else []
    assert {name for name, finding in found.items() if not finding.works} == {*absent, *([] if ROOT else ["own_uid"])}
    assert len(trials.plans) == 1 + len(absent)
    kinds = [type(step) for step in trials.plans[0]]
    confining = [s.ForbidNamespaces, s.SetLimits, s.SwitchRoot, s.DropCapabilities, s.NoNewPrivileges]
    assert [kind for kind in kinds if kind in confining] == confining
    last = [*([] if absent else [s.Landlock]), s.Seccomp, s.Execute]
    assert kinds[-len(last) :] == last
    assert {s.MountProc, s.LoopbackUp, s.Hostname, s.UnshareCgroup} < set(kinds)


async def test_without_landlock_the_others_are_tried_together(spawner: Spawner) -> None:
    host, trials = replace(probe.read_host(), landlock_abi=0), Trials(spawner)

    await probe.probe_layers(cast(Spawner, trials), host)

    landlock = [s.Landlock in map(type, plan) for plan in trials.plans]
    assert landlock == [False, True]


async def test_where_one_layer_fails_each_is_tried_alone(spawner: Spawner) -> None:
    host, trials = replace(probe.read_host(), directories=frozenset[str](), links={}), Trials(spawner)

    found = await probe.probe_layers(cast(Spawner, trials), host)

    assert [name for name, finding in found.items() if not finding.works] == (["root"] if ROOT else ["root", "own_uid"])
    assert "/bin/true" in found["root"].reason
    assert len(trials.plans) == 1 + ROOT + len(found) - 1  # own_uid is tried with root alone


async def test_a_host_without_user_namespaces_is_told_which_setting_is_in_the_way(spawner: Spawner) -> None:
    # A user namespace in which no further one may be made is such a host.
    inner = """
import os, sys, trio
sys.path[:0] = sys.argv[1:]
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
async def main(spawner):
    finding = (await probe.probe_layers(spawner, probe.read_host()))['user_ns']
    print(finding.works, '|', finding.reason, '|', finding.remedy)
open('/proc/sys/user/max_user_namespaces', 'w').write('0')
trio.run(main, Spawner.start())
"""
    code = Path(probe.__file__).parents[2]
    found = await run_in_user_namespace(inner, str(code), str(Path(jail.SDK).parent))

    assert found.startswith("False | Clone: clone3: No space left on device | sysctl user.max_user_namespaces=")


async def run_in_user_namespace(code: str, *arguments: str) -> str:
    done = await trio.run_process(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", code, *arguments], capture_stdout=True
    )
    return done.stdout.decode()


async def test_each_layer_is_shown_with_what_the_kernel_says(spawner: Spawner) -> None:
    steps = a_plan("/bin/true")
    sandbox = await spawner.spawn(steps)
    layers = walls.isolation_layers(steps, sandbox.observed)
    await jail.ended(sandbox)

    assert set(layers) == set(walls.LAYERS) - BY_CGROUP
    inactive = {name for name, layer in layers.items() if not layer.active}
    assert inactive <= {"landlock", "cgroup_ns"} | (set() if ROOT else {"own_uid"})
    assert layers["no_new_privs"].evidence == "NoNewPrivs: 1"
    assert layers["seccomp"].evidence == "Seccomp: 2; memfd_create without MFD_NOEXEC_SEAL: ENOSYS"
    assert "CapBnd=0000000000000000" in str(layers["capabilities"].evidence)
    assert "NOFILE=1024" in str(layers["rlimits"].evidence)


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        (s.Seccomp, "seccomp"),
        (s.DropCapabilities, "capabilities"),
        (s.UnshareCgroup, "cgroup_ns"),
        (s.Landlock, "landlock"),
    ],
)
async def test_a_wall_that_was_left_out_is_not_claimed(spawner: Spawner, kind: type, layer: str) -> None:
    steps = [step for step in a_plan("/bin/true") if type(step) is not kind]
    sandbox = await spawner.spawn(steps)
    layers = walls.isolation_layers(steps, sandbox.observed)
    await jail.ended(sandbox)

    assert layers[layer].active is False
    assert layers[layer].reason != ""


async def test_no_new_privileges_is_what_the_filters_stand_on(spawner: Spawner) -> None:
    steps = [step for step in a_plan("/bin/true") if type(step) is not s.NoNewPrivileges]

    with pytest.raises(StepFailed, match=r"Landlock: .*Operation not permitted|Seccomp: .*Permission denied"):
        await spawner.spawn(steps)


async def test_the_hosts_network_is_marked_as_such(spawner: Spawner) -> None:
    steps = a_plan("/bin/true", network="host")
    sandbox = await spawner.spawn(steps)
    net = walls.isolation_layers(steps, sandbox.observed)["net_ns"]
    await jail.ended(sandbox)

    assert (net.asked, net.active) == (False, False)
    assert net.reason == "network: true gives it the host's"
