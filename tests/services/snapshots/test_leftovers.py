"""Of overlays of agents that are no more what waits stays, and nothing else."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agentos.services.snapshots import leftovers
from agentos.services.snapshots.leftovers import remove_leftovers
from agentos.services.snapshots.overlays import NoOverlay

from .conftest import Overlaid
from .taking import Taking, open_taking, prepare

Deed = Callable[[Overlaid], Awaitable[object]]


async def only_look(overlaid: Overlaid) -> None:
    (overlaid.tree / "sub").mkdir()


async def apply_all(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "changed")
    await overlaid.apply()


async def throw_away(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "changed")
    await overlaid.overlays.discard(overlaid.name, lambda: True)


async def apply_a_part(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "changed")
    overlaid.write("other", "changed")
    await overlaid.apply("a.txt")


async def change(overlaid: Overlaid) -> None:
    overlaid.write("a.txt", "changed")


async def change_after_an_apply(overlaid: Overlaid) -> None:
    await apply_all(overlaid)
    overlaid.write("a.txt", "again")


async def delete(overlaid: Overlaid) -> None:
    overlaid.delete("a.txt")


async def make_a_directory(overlaid: Overlaid) -> None:
    overlaid.make("new")


def list_layers(overlaid: Overlaid) -> list[Path]:
    return [*(overlaid.state / "layers").glob("*/l-*")]


@pytest.mark.parametrize("deed", [only_look, apply_all, throw_away])
async def test_the_layers_go_when_nothing_waits_in_them(overlaid: Overlaid, deed: Deed) -> None:
    await overlaid.open()
    await deed(overlaid)
    assert len(list_layers(overlaid)) == 1

    assert await remove_leftovers(overlaid.overlays, leftovers.AGE) == []
    assert len(list_layers(overlaid)) == 1
    overlaid.overlays.list_known = lambda: {overlaid.name}
    assert await remove_leftovers(overlaid.overlays) == []
    assert len(list_layers(overlaid)) == 1
    overlaid.overlays.list_known = frozenset

    assert await remove_leftovers(overlaid.overlays) == []
    assert list_layers(overlaid) == []
    if deed is apply_all:
        assert (await overlaid.diff()).changes == []
        assert (await overlaid.undo()).paths == ["a.txt"]
        assert (overlaid.project / "a.txt").read_text() == "a\n"
    else:
        with pytest.raises(NoOverlay):
            await overlaid.diff()


@pytest.mark.parametrize("deed", [apply_a_part, change, change_after_an_apply, delete, make_a_directory])
async def test_changes_that_wait_are_never_removed(overlaid: Overlaid, deed: Deed) -> None:
    await overlaid.open()
    await deed(overlaid)
    before = (await overlaid.diff()).digest

    assert await remove_leftovers(overlaid.overlays) == []

    assert (await overlaid.diff()).digest == before
    assert (await overlaid.diff()).changes


async def test_applies_of_the_newest_can_be_undone(overlaid: Overlaid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "MAX_UNDOABLE", 2)
    for number, name in enumerate(("one", "two", "three")):
        overlaid.name = name
        await overlaid.open()
        overlaid.write(name, name)
        await overlaid.apply()
        os.utime(overlaid.state / "layers" / name / "record.json", (number, number))
        assert await remove_leftovers(overlaid.overlays) == []
        os.utime(overlaid.state / "layers" / name / "record.json", (number, number))

    await remove_leftovers(overlaid.overlays)

    assert {path.name for path in (overlaid.state / "layers").iterdir()} == {"two", "three"}


async def fork(taking: Taking, name: str) -> None:
    await taking.snapshots.begin_fork(await taking.snapshots.find(taking.overlaid.name, "one"), name, name, "w@one")
    await taking.overlaid.overlays.open(name, str(taking.overlaid.project), None)


async def test_a_fork_without_changes_of_its_own_goes_and_its_snapshot_stays(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with open_taking(tmp_path) as taking:
        await fork(taking, "idle")
        await fork(taking, "busy")
        taking.overlaid.overlays.list_known = lambda: {taking.overlaid.name}
        upper = taking.overlaid.state / "layers" / "busy"
        ((tree,),) = [[*upper.glob("l-*/tree")]]
        (tree / "own").write_text("own")

        assert await remove_leftovers(taking.overlaid.overlays) == []
        assert not (taking.overlaid.state / "layers/idle").exists()
        await taking.snapshots.remove(await taking.snapshots.find(taking.overlaid.name, "one"))
        await taking.overlaid.overlays.discard(taking.overlaid.name, lambda: False)
        assert "own" in {one.path for one in (await taking.overlaid.overlays.diff("busy")).changes}
        assert len(taking.list_layers()) == 2  # the fork's, and the sealed one that it names

        await taking.overlaid.overlays.discard("busy", lambda: False)
        assert taking.list_layers() == set()


async def test_a_fork_whose_origin_is_gone_stays(tmp_path: Path) -> None:
    await prepare(tmp_path)
    async with open_taking(tmp_path) as taking:
        await fork(taking, "last")
        await taking.snapshots.remove(await taking.snapshots.find(taking.overlaid.name, "one"))
        await taking.overlaid.overlays.discard(taking.overlaid.name, lambda: False)
        before = (await taking.overlaid.overlays.diff("last")).changes

        assert await remove_leftovers(taking.overlaid.overlays) == []

        assert (await taking.overlaid.overlays.diff("last")).changes == before != []
