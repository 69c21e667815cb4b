"""A snapshot is whole or isn't there, what it names stays, and what nothing names goes."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from agentos.services.snapshots import layers
from agentos.services.snapshots.changes import Base, find_changes
from agentos.services.snapshots.layers import Uncopied
from agentos.services.snapshots.overlays import NoOverlay
from agentos.services.snapshots.records import BadLayer, Snapshot
from agentos.services.snapshots.snapshots import MAX_BY_AGENTS, Taken, check_label
from agentos.services.snapshots.store import MAX_DEPTH
from agentos_sdk.errors import QuotaExceeded
from tests.support.mounts import mounted

from .conftest import ROOT, fill, read_tree
from .taking import AGENT, NAME, Taking, open_taking

EVERY = 191  # of more than a thousand of calls; `python -m tests.services.snapshots.taking PLACE VERB 1` takes minutes
root_only = pytest.mark.skipif(not ROOT, reason="only root mounts here")


@pytest.fixture
async def taking(place: Path) -> AsyncIterator[Taking]:
    (place / "project").mkdir()
    (place / "state").mkdir(mode=0o700)
    fill(place / "project")
    async with open_taking(place) as found:
        await found.overlaid.open()
        yield found


@pytest.mark.parametrize("verb", ["seal", "copy", "back", "remove"])
def test_a_kernel_that_is_killed_leaves_a_whole_snapshot_or_none(place: Path, verb: str) -> None:
    command = [sys.executable, "-m", "tests.services.snapshots.taking", str(place), verb, str(EVERY)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2 * EVERY


async def test_a_call_on_a_giant_of_holes_ends_when_nothing_waits_for_it(taking: Taking) -> None:
    """To read a TiB of zeros takes half an hour, in a thread that a kernel would wait for at its end."""
    os.truncate(taking.overlaid.write("giant", ""), 1 << 40)
    before = taking.list_layers()

    async with trio.open_nursery() as call:
        call.start_soon(taking.take, "one", True)
        while taking.list_layers() == before:
            await trio.sleep(0.01)
        call.cancel_scope.cancel()

    assert await taking.snapshots.list(NAME) == []
    assert taking.list_layers() == before


@pytest.mark.parametrize("runs", [True, False])
async def test_what_is_written_later_is_not_in_a_snapshot(taking: Taking, runs: bool) -> None:
    taking.overlaid.write("a.txt", "one\n")
    taking.overlaid.make("made")
    taken = await taking.take("one", runs)
    seen = await taking.see()
    if not runs:
        await taking.overlaid.open()
    taking.overlaid.write("a.txt", "two\n")
    taking.overlaid.write("sub/c.txt", "two\n")
    assert await taking.see() != seen

    await taking.go_back("one")

    assert await taking.see() == seen
    await taking.overlaid.open()
    assert await taking.see() == seen
    assert taken.paths == 2
    assert {one.path for one in (await taking.overlaid.diff()).changes} == {"a.txt", "made"}
    await taking.overlaid.apply()
    assert (taking.overlaid.project / "a.txt").read_text() == "one\n"


async def test_an_agent_that_is_going_back_has_no_snapshot_taken_and_that_one_not_removed(taking: Taking) -> None:
    one = await taking.take("one", runs=True)
    await taking.go_back("one", runs=True)

    with pytest.raises(BadLayer, match="w is being rolled back: take a snapshot when it has started again"):
        await taking.take("two", runs=True)
    with pytest.raises(Taken, match="w is being rolled back to w@one"):
        await taking.snapshots.remove(one)

    await taking.overlaid.overlays.discard(NAME, runs=lambda: True)
    with pytest.raises(BadLayer, match="w is being rolled back"):
        await taking.take("two", runs=True)

    await taking.overlaid.open()
    await taking.take("two", runs=True)
    await taking.snapshots.remove(one)


async def test_a_recorded_life_is_lived_again_in_no_place_of_changes(taking: Taking) -> None:
    taken = await taking.take("one", runs=True)

    with pytest.raises(Taken, match="w has changes of a former agent"):
        await taking.snapshots.begin_scratch(taken, NAME)
    for _ in range(2):  # where nothing is, and where one has left its own
        await taking.snapshots.begin_scratch(taken, "again")
    await taking.snapshots.end_scratch("again")
    with pytest.raises(NoOverlay):
        taking.overlaid.overlays.require("again")


async def test_agents_take_no_more_than_16_snapshots_of_one_agent(taking: Taking) -> None:
    for number in range(MAX_BY_AGENTS):
        await taking.take(f"n{number}", by_agent=True)

    with pytest.raises(QuotaExceeded, match="16 snapshots"):
        await taking.take("more", by_agent=True)

    await taking.take("operators")
    await taking.snapshots.remove(await taking.snapshots.find(NAME, "n0"))
    await taking.take("more", by_agent=True)
    assert len(await taking.snapshots.list()) == MAX_BY_AGENTS + 1


async def test_keys_without_room_are_not_given_back(taking: Taking) -> None:
    keys = {f"k{number}": "x" for number in range(60)}
    for key, value in keys.items():
        await taking.store(key, value)
    await taking.take("many")
    await taking.state.replace(NAME, [])
    for key, value in keys.items():
        await taking.store(key, value, f"{NAME}/child")

    with pytest.raises(QuotaExceeded, match=r"'w', with what it spawned, may have 100 keys .* this would be 101"):
        await taking.go_back("many")

    assert await taking.keys() == {}
    await taking.overlaid.open()  # it isn't to go back

    await taking.state.replace(f"{NAME}/child", [])
    await taking.go_back("many", runs=True)
    for key, value in keys.items():
        await taking.store(key, value, f"{NAME}/child")
    with pytest.raises(QuotaExceeded):
        await taking.overlaid.open()
    assert await taking.keys() == {}

    await taking.state.replace(f"{NAME}/child", [])
    await taking.overlaid.open()
    assert await taking.keys() == keys


async def test_keys_that_fit_together_are_given_back_in_any_order(taking: Taking) -> None:
    then, now = {"a": "x" * 700_000, "b": ""}, {"a": "", "b": "y" * 700_000}
    for keys in (then, now):
        for key in sorted(keys, key=lambda key: len(keys[key])):
            await taking.store(key, keys[key])
        if keys is then:
            await taking.take("then")
    assert await taking.keys() == now

    await taking.go_back("then")

    assert await taking.keys() == then


@root_only
async def test_layers_are_seen_and_merged_as_linux_shows_them(place: Path) -> None:
    base, tops = place / "base", [place / name for name in ("first", "second", "third")]
    base.mkdir()
    fill(base)
    works = [
        "echo 1 > a.txt; rm -r sub; mkdir sub; echo s > sub/new; ln sub/new hard; mkdir -p x/y; echo y > x/y/z",
        "rm a.txt; rm -r x; echo f > x; rm -r old; mkdir old; echo o > old/o; chmod 700 sub; ln -s x l; mkfifo p",
        "mkdir a.txt; echo in > a.txt/in; rm x; mkdir x; rm sub/new; echo b > sub/b.txt; rm link; truncate -s 9M hole",
    ]
    below = [base]
    for top, work in zip(tops, works, strict=True):
        for part in ("tree", "work", "shown"):
            (top / part).mkdir(parents=True)
        lower = ":".join(map(str, below))
        options = f"lowerdir={lower},upperdir={top}/tree,workdir={top}/work,userxattr"
        with mounted("overlay", options, top / "shown"):
            await trio.run_process(["sh", "-ec", work], cwd=top / "shown")
            expected = read_tree(top / "shown")
        below = [top / "tree", *below]
    (place / "merged").mkdir()
    opened = [os.open(tree, os.O_RDONLY) for tree in (*below, place / "merged")]
    *stack, directory, merged = opened

    layers.copy_layers(stack, merged)

    (place / "view").mkdir()
    with mounted("overlay", f"lowerdir={place}/merged:{base},userxattr", place / "view"):
        assert read_tree(place / "view") == expected
        assert os.stat(place / "view" / "sub").st_mode & 0o777 == 0o700
    assert find_changes(stack, directory, Base(0)) == find_changes([merged], directory, Base(0))
    changed = {one.path: one.content for one in find_changes(stack, directory, Base(0)) if one.what != "deleted"}
    assert {path for path, text in expected.items() if (base / path).exists() is False} <= changed.keys()
    assert os.stat(place / "merged" / "hole").st_blocks == 0
    for fd in opened:
        os.close(fd)


async def test_more_layers_than_can_be_mounted_are_merged(taking: Taking) -> None:
    for number in range(MAX_DEPTH + 3):
        taking.overlaid.write(f"made-{number}", "x\n")
        if number == 5:
            taking.overlaid.delete("a.txt")
        await taking.take(f"s{number}", runs=number == MAX_DEPTH + 1)
        await taking.overlaid.open()

        record = taking.overlaid.overlays.require(NAME)
        assert len(record.sealed) <= MAX_DEPTH

    assert (await taking.see()).keys() == {"a.txt", *(f"made-{number}" for number in range(MAX_DEPTH + 3))}
    await taking.go_back("s4")
    assert (await taking.see()).keys() == {f"made-{number}" for number in range(5)}
    await taking.go_back(f"s{MAX_DEPTH + 1}")
    assert (await taking.see()).keys() == {"a.txt", *(f"made-{number}" for number in range(MAX_DEPTH + 2))}


async def test_what_is_removed_goes_unless_something_else_has_it(taking: Taking) -> None:
    taking.overlaid.write("a.txt", "one\n")
    first = await taking.take("first")
    await taking.overlaid.open()
    taking.overlaid.write("a.txt", "two\n")
    second = await taking.take("second")
    await taking.overlaid.open()

    await taking.snapshots.remove(first)
    assert set(second.layers) <= taking.list_layers()
    await taking.snapshots.remove(second)
    assert set(second.layers) <= taking.list_layers()
    assert (await taking.see()).keys() == {"a.txt"}

    await taking.overlaid.overlays.discard(NAME, lambda: False)
    await taking.overlaid.open()
    assert taking.list_layers() == {f"{NAME}/{taking.overlaid.upper.name}"}
    assert list((taking.overlaid.state / "snapshots").iterdir()) == []


def change_content(tree: Path) -> None:
    (tree / "a.txt").write_text("two\n")


def change_mode(tree: Path) -> None:
    (tree / "a.txt").chmod(0o600)


def add_a_name(tree: Path) -> None:
    (tree / "b.txt").write_text("")


def give_away(tree: Path) -> None:
    os.chown(tree, 12345, 12345)


def take_away(tree: Path) -> None:
    tree.rename(tree.parent / "elsewhere")


DAMAGE = [
    pytest.param(change_content, "its digest doesn't match"),
    pytest.param(change_mode, "its digest doesn't match"),
    pytest.param(add_a_name, "its digest doesn't match"),
    pytest.param(give_away, "belongs to uid 12345", marks=root_only),
    pytest.param(take_away, "No such file"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGE)
async def test_a_layer_that_is_not_what_was_sealed_is_refused_by_name(taking: Taking, damage, why: str) -> None:  # type: ignore[no-untyped-def]
    taking.overlaid.write("a.txt", "one\n")
    taken = await taking.take("one", runs=True)
    taking.overlaid.write("a.txt", "mine\n")
    seen = await taking.see()
    damage(taking.overlaid.overlays.store.find_tree(taken.layers[0]))

    with pytest.raises(BadLayer, match=rf"{taken.layers[0]}.*{why}.*w@one can't be used: remove it"):
        await taking.go_back("one")

    assert await taking.see() == seen
    await taking.overlaid.open()
    assert await taking.see() == seen


async def test_a_copy_that_fails_leaves_nothing(taking: Taking) -> None:
    taking.overlaid.write("a.txt", "one\n")
    before = taking.list_layers()
    top = os.open(taking.overlaid.tree, os.O_RDONLY)
    for _ in range(20):  # deeper than a path can name
        os.mkdir("e" * 250, dir_fd=top)
        top, former = os.open("e" * 250, os.O_RDONLY, dir_fd=top), top
        os.close(former)
    os.close(top)

    with pytest.raises(Uncopied, match="too deep to be copied"):
        await taking.take("deep", runs=True)

    assert taking.list_layers() == before
    assert await taking.snapshots.list() == []


def open_to_all(place: Path) -> None:
    place.chmod(0o777)


def damage_record(place: Path) -> None:
    [record] = place.glob("*/record.json")
    record.write_text("{")


@pytest.mark.parametrize(("damage", "why"), [(open_to_all, "lets other users write"), (damage_record, "can't be used")])
async def test_snapshots_that_can_not_be_trusted_keep_no_kernel_from_starting(taking: Taking, damage, why: str) -> None:  # type: ignore[no-untyped-def]
    taking.overlaid.write("a.txt", "one\n")
    await taking.take("one", runs=True)
    before = taking.list_layers()
    damage(taking.overlaid.state / "snapshots")

    told = await taking.overlaid.overlays.finish_all()
    await taking.overlaid.open()

    assert taking.list_layers() == before
    assert why in f"{told}" or damage is damage_record  # which is logged, and nothing is removed
    with pytest.raises(BadLayer, match=why):
        await taking.snapshots.list()


@pytest.mark.skipif(ROOT, reason="root may read all")
async def test_a_file_that_can_not_be_read_is_named(taking: Taking) -> None:
    taking.overlaid.write("sub/closed", "x\n", mode=0)

    with pytest.raises(Uncopied) as failed:
        await taking.take("one", runs=True)

    assert failed.value.filename == "sub/closed"
    assert (await taking.take("one")).paths == 2


async def test_labels(taking: Taking) -> None:
    await taking.take("one")
    number = (await taking.snapshots.list())[0].id

    for label in ("one", number):
        with pytest.raises(Taken, match=f"w@{label} exists"):
            await taking.take(label)
    with pytest.raises(NoOverlay, match="w has no snapshot two"):
        await taking.snapshots.find(NAME, "two")
    assert [check_label(label) for label in ("one", "1.2-x_")] == [None, None]
    assert all(check_label(label) for label in ("", "start", "a/b", "-x", "a b", "x" * 65, "é", "a@b"))


async def test_a_copy_keeps_owners_links_attributes_and_times(taking: Taking) -> None:
    file = taking.overlaid.write("one", "x\n", mode=0o640)
    os.link(file, taking.overlaid.tree / "other")
    os.setxattr(file, "user.note", b"kept")
    os.utime(file, ns=(1, 2_000_000_003))
    if ROOT:
        assert AGENT is not None
        os.chown(file, AGENT.uid, AGENT.gid)

    taken: Snapshot = await taking.take("one", runs=True)

    copy = taking.overlaid.overlays.store.find_tree(taken.layers[0])
    found, was = (copy / "one").stat(), file.stat()
    for field in ("st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_nlink"):
        assert getattr(found, field) == getattr(was, field)
    assert found.st_ino == (copy / "other").stat().st_ino != was.st_ino
    assert os.getxattr(copy / "one", "user.note") == b"kept"
