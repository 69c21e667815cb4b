"""Kernels with root share one registry of uids: none has those of another, and none is lost."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentos.sandbox.host_id_registry import BLOCK, HostIdError, HostIdRegistry
from agentos.sandbox.host_ids import FIRST_ID, HostIdPool
from tests.support.wire import PATIENCE


def test_kernels_never_get_the_same_uids(tmp_path: Path) -> None:
    """Processes that claim at once, each for a state directory of its own."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from agentos.sandbox.host_id_registry import HostIdRegistry\n"
        "registry = HostIdRegistry(Path(sys.argv[1]), sys.argv[2])\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(*(number for _ in range(20) for number in registry.claim(range(70000, 80000)) or ()))\n"
    )
    racing = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        racing.append(
            subprocess.Popen(
                [sys.executable, "-c", script, str(tmp_path), str(tmp_path / name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for process in racing:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in racing:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    claimed = [process.communicate(timeout=PATIENCE)[0].split() for process in racing]

    assert [len(numbers) for numbers in claimed] == [20 * BLOCK] * 3
    assert len({number for numbers in claimed for number in numbers}) == 60 * BLOCK


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A registry's directory, beside the state directories a and b."""
    for name in ("a", "b", "registry"):
        (tmp_path / name).mkdir()
    return tmp_path / "registry"


def test_uids_of_a_removed_project_are_free_when_no_others_are_left(shared: Path) -> None:
    few = range(70000, 70000 + BLOCK)
    with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "a"))) as first:
        assert first.claim(few) == few
        (shared.parent / "a").rmdir()
        with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "b"))) as second:
            assert second.claim(few) is None, "its kernel runs"
    with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "b"))) as second:
        assert second.claim(few) == few
        assert second.hold_claimed({few.start}) == [few]


def test_a_project_that_exists_keeps_its_uids_while_it_does_not_run(shared: Path) -> None:
    with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "a"))) as first:
        first.claim(range(70000, 70010))
    with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "b"))) as second:
        assert second.claim(range(70000, 70010)) is None
        assert second.claim(range(70000, 70012)) == range(70010, 70012)
    with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "a"))) as first:
        assert first.hold_claimed({70000}) == [range(70000, 70010)]


@pytest.mark.parametrize("stopped", [False, True], ids=["both run", "one is stopped"])
def test_directories_with_the_same_path_have_uids_of_their_own(shared: Path, stopped: bool) -> None:
    """As in two mount namespaces that share the registry."""
    state, wanted = str(shared.parent / "a"), range(70000, 80000)
    with contextlib.ExitStack() as undo:
        first = undo.enter_context(contextlib.closing(HostIdRegistry(shared, state)))
        [one] = [first.claim(wanted)]
        assert one is not None
        if stopped:
            undo.close()
        with contextlib.closing(HostIdRegistry(shared, state)) as second:
            assert second.hold_claimed(frozenset()) == []
            other = second.claim(wanted)
            assert other is not None
            assert not set(one) & set(other)

    for order in ((one, other), (other, one)):
        with contextlib.ExitStack() as undo:
            for ids in order:
                again = undo.enter_context(contextlib.closing(HostIdRegistry(shared, state)))
                assert again.hold_claimed({ids.start}) == [ids]


def test_uids_without_any_use_are_claimed_again_when_no_others_are_left(shared: Path) -> None:
    few, state = range(70000, 70000 + BLOCK), str(shared.parent / "a")
    with contextlib.closing(HostIdRegistry(shared, state)) as first:
        assert first.claim(few) == few
        assert first.claim(few) is None, "they are its own"
        with contextlib.closing(HostIdRegistry(shared, state)) as second:
            assert second.claim(few) is None, "its kernel runs"
    with contextlib.closing(HostIdRegistry(shared, state)) as second:
        assert second.hold_claimed(frozenset()) == []
        assert second.claim(few) == few


def test_a_copy_of_a_directory_that_runs_is_refused_and_told_what_to_do(shared: Path) -> None:
    state = str(shared.parent / "a")
    with contextlib.closing(HostIdRegistry(shared, state)) as first:
        first.claim(range(70000, 70010))
        with (
            contextlib.closing(HostIdRegistry(shared, state)) as second,
            pytest.raises(HostIdError, match="stop that kernel, or choose another with --state-dir"),
        ):
            second.hold_claimed({70003})


def test_a_moved_state_directory_takes_its_uids_along(shared: Path) -> None:
    with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "a"))) as before:
        before.claim(range(70000, 70010))
    (shared.parent / "a").rename(shared.parent / "moved")

    with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "moved"))) as after:
        assert after.hold_claimed({70003}) == [range(70000, 70010)]


def test_what_runs_is_safe_without_the_file_too(shared: Path) -> None:
    with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "a"))) as first:
        first.claim(range(70000, 70010))
        (shared / "claims.json").unlink()
        with contextlib.closing(HostIdRegistry(shared, str(shared.parent / "b"))) as second:
            assert second.claim(range(70000, 70010)) is None
            with pytest.raises(HostIdError, match=r"another kernel's agents have uids of .*/b, from 70003 on"):
                second.hold_claimed({70003})


def test_a_damaged_registry_is_an_error_that_says_what_to_do(shared: Path) -> None:
    (shared / "claims.json").write_text('{"first": 70000, "count": "9", "state": "/a"}\n')
    damaged = r"claims.json is damaged .*: stop all kernels of root and remove it"
    with contextlib.closing(HostIdRegistry(shared, "/a")) as registry, pytest.raises(HostIdError, match=damaged):
        registry.claim(range(70000, 70010))


async def test_assignments_of_before_the_registry_are_kept(shared: Path) -> None:
    """Two state directories whose kernels began with the same uid: one of them goes on with it."""
    for name in ("a", "b"):
        (shared.parent / name / "ids").write_text(json.dumps({"name": "writer", "id": FIRST_ID}) + "\n")
    with (
        contextlib.closing(HostIdRegistry(shared, str(shared.parent / "a"))) as one,
        contextlib.closing(HostIdRegistry(shared, str(shared.parent / "b"))) as two,
    ):
        first = HostIdPool(shared.parent / "a" / "ids", one)
        with pytest.raises(HostIdError, match=f"uid {FIRST_ID} of writer, which has a kept workspace, is another"):
            HostIdPool(shared.parent / "b" / "ids", two, names_with_files={"writer"})
        second = HostIdPool(shared.parent / "b" / "ids", two)

        assert (await first.take("writer")).uid == FIRST_ID
        assert (await second.take("writer")).uid == FIRST_ID + 1


async def test_ever_new_names_leave_half_of_the_range_to_other_kernels(shared: Path) -> None:
    with (
        contextlib.closing(HostIdRegistry(shared, str(shared.parent / "a"))) as one,
        contextlib.closing(HostIdRegistry(shared, str(shared.parent / "b"))) as two,
    ):
        flooded = HostIdPool(shared.parent / "a" / "ids", one, 70000, 8 * BLOCK)
        taken = {(await flooded.take(f"name-{number}", keeps_files=False)).uid for number in range(20 * BLOCK)}
        assert len(taken) == 4 * BLOCK

        other = HostIdPool(shared.parent / "b" / "ids", two, 70000, 8 * BLOCK)
        running: set[str] = set()
        for number in range(4 * BLOCK):
            assert (await other.take(f"name-{number}", False, frozenset(running))).uid not in taken
            running.add(f"name-{number}")
        with pytest.raises(HostIdError, match=f"all {4 * BLOCK} uids for agents are in use"):
            await other.take("one more", False, frozenset(running))


async def test_a_range_that_others_have_is_said(shared: Path) -> None:
    with (
        contextlib.closing(HostIdRegistry(shared, str(shared.parent / "a"))) as one,
        contextlib.closing(HostIdRegistry(shared, str(shared.parent / "b"))) as two,
    ):
        one.claim(range(70000, 70004))
        with pytest.raises(HostIdError, match=r"a range of its own with uids in \[kernel\]: 4 of the 4 here belong"):
            await HostIdPool(shared.parent / "b" / "ids", two, 70000, 4).take("new")
