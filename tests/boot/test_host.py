import os
from pathlib import Path

import pytest

from agentos.agents.life.leftover_processes import Run
from agentos.boot import host
from agentos.boot.host import BootError, lock_state_directory, open_host_ids, plan_cleanup
from agentos.config.schema import UidRange
from agentos.sandbox.cgroups.discover import Cgroups
from agentos.sandbox.cgroups.v1 import Group
from agentos.sandbox.host_id_registry import HostIdError
from agentos.sandbox.host_ids import BLOCK_COUNT, BLOCK_STEP, FIRST_BLOCK
from agentos.sandbox.inside.janitor import Cleanup
from tests.support.runs.rows import each_row

END = FIRST_BLOCK + BLOCK_COUNT * BLOCK_STEP


@each_row(
    ("group", "groups"),
    [(Group({"memory": "/cg/memory/a", "cpu": "/cg/cpu/a"}), ("/cg/memory/a", "/cg/cpu/a")), (None, ())],
)
def test_after_a_killed_kernel_its_groups_directory_and_processes_are_removed(
    group: Group | None, groups: tuple[str, ...]
) -> None:
    assert plan_cleanup(Run("6f", "/run/agentos-1"), Cgroups(group)) == Cleanup(
        groups=groups, directories=("/run/agentos-1",), mark="AGENTOS_RUN_ID=6f"
    )


@each_row(("first", "count"), [(FIRST_BLOCK - 9, 10), (FIRST_BLOCK, 1), (END - 1, 5), (1, 1 << 32)])
def test_the_uids_of_agents_are_none_of_those_with_root_inside(tmp_path: Path, first: int, count: int) -> None:
    uids = UidRange(first=first, count=count)
    with pytest.raises(HostIdError, match="are for agents with user = root"), open_host_ids(tmp_path, uids):
        pass


@each_row(("first", "count"), [(FIRST_BLOCK - 9, 9), (END, 5)])
async def test_the_uids_beside_those_may_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, count: int
) -> None:
    state = tmp_path / str(first)
    state.mkdir()
    monkeypatch.setattr(host, "REGISTRY", state / "registry")
    with open_host_ids(state, UidRange(first=first, count=count)) as (uids, _):
        assert first <= (await uids.take("a")).uid < first + count


def test_a_state_directory_is_one_kernels_which_is_named_to_another(tmp_path: Path) -> None:
    for _ in range(2):  # a pid that an earlier kernel left is replaced
        with lock_state_directory(tmp_path) as held:
            assert (held / "lock").read_text() == str(os.getpid())
            told = rf"{tmp_path}: another kernel \(pid {os.getpid()}\) uses it"
            with pytest.raises(BootError, match=told), lock_state_directory(tmp_path):
                pass
        (tmp_path / "lock").write_text("1234567890")
