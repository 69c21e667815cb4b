"""Subordinate ids of an ordinary user, as /etc/subuid has them, and the programs that give them."""

import os
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from agentos.sandbox.errors import StepFailed
from agentos.sandbox.files.sub_ids import SubIds, find_first, read_sub_ids
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import Policy, Program, RootImage
from agentos.sandbox.report import probe
from tests.sandbox.jail import start_spawner
from tests.support.runs.rows import each_row


@each_row(
    ("text", "first"),
    [
        ("0:100000:65536\n", 100000),
        ("root:100000:65536\n", 100000),
        ("other:1:65536\n0:300000:70000\n", 300000),
        ("0:100000:1000\n", None),
        ("0:100000:1000\n0:200000:65536\n", 200000),
        ("0:x:65536\nnonsense\n\n", None),
        ("1001:100000:65536\n", None),
        ("", None),
    ],
)
def test_the_first_range_that_is_large_enough_is_taken(tmp_path: Path, text: str, first: int | None) -> None:
    (tmp_path / "subuid").write_text(text)

    assert find_first(str(tmp_path / "subuid"), 0) == first


def test_uids_and_gids_come_from_their_files_and_each_has_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/etc/subuid": f"{os.geteuid()}:100000:65536\n", "/etc/subgid": f"{os.geteuid()}:200000:65536\n"}
    monkeypatch.setattr("agentos.sandbox.files.sub_ids.read_file", files.__getitem__)
    for program in ("newuidmap", "newgidmap"):
        (tmp_path / program).touch(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert read_sub_ids(os.geteuid()) == SubIds(100000, 200000, f"{tmp_path}/newuidmap", f"{tmp_path}/newgidmap")


def test_without_the_file_or_the_programs_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_first(str(tmp_path / "none"), 0) is None
    assert read_sub_ids(os.geteuid()) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root has blocks, and needs no program for them")
def test_a_program_that_refuses_the_ids_ends_the_start_and_is_named() -> None:
    host = replace(probe.read_host(), memory_cgroup=True, pids_cgroup=True)
    host = replace(host, sub_ids=SubIds(1, 1, "/bin/false", "/bin/false"))
    steps = plan_sandbox(Policy(image=RootImage("/"), inside_root=True), Program(("/bin/true",)), host)
    spawner = start_spawner()
    try:
        with pytest.raises(StepFailed, match="/bin/false: Operation not permitted"):
            trio.run(spawner.spawn, steps)
    finally:
        spawner.close()
