"""Each name has a user of its own on the host, the same in each of its lives, whatever is taken and given up."""

import contextlib
import json
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentos.boot.host import open_host_ids
from agentos.config.schema import UidRange
from agentos.sandbox.host_id_registry import HostIdError, HostIdRegistry
from agentos.sandbox.host_ids import (
    FIRST_BLOCK,
    FIRST_ID,
    SAVE_DELAY,
    TRIAL_BLOCK,
    HostIdPool,
    assign_id,
    first_of_block,
)
from agentos_sdk.values import HostIds

names = st.text(min_size=1, max_size=3)


@pytest.fixture
def registry(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[HostIdRegistry]:
    with contextlib.closing(HostIdRegistry(tmp_path_factory.mktemp("registry"), str(tmp_path))) as opened:
        yield opened


class Choosing(RuleBasedStateMachine):
    """Names that come and go, in a range that is too small for all of them."""

    ids = range(70000, 70004)

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, int] = {}
        self.free = deque(self.ids)
        self.busy: set[str] = set()
        self.order: list[str] = []

    @rule(name=names)
    def take(self, name: str) -> None:
        before = dict(self.given)
        known, idle = name in before, [other for other in self.order if other in before and other not in self.busy]
        if not known and len(before) == len(self.ids) and not idle:
            with pytest.raises(HostIdError, match="all 4 uids"):
                assign_id(self.given, self.free, name, self.busy)
            assert self.given == before, "who gets none changes nothing"
            return
        assert assign_id(self.given, self.free, name, self.busy) == self.given[name]
        self.order = [other for other in self.order if other != name] + [name]
        self.busy.add(name)
        if known:
            assert self.given == before
        if len(self.given) == len(before) and not known:
            assert self.given.keys() == before.keys() - {idle[0]} | {name}, "the one used longest ago makes room"
        assert all(self.given[other] == before[other] for other in self.given.keys() & before.keys())

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.busy.discard(data.draw(st.sampled_from(sorted(self.busy))))

    @invariant()
    def nobody_shares(self) -> None:
        assert len(set(self.given.values())) == len(self.given)
        assert {*self.given.values(), *self.free} == set(self.ids)
        assert len(self.given) + len(self.free) == len(self.ids)
        assert self.busy <= self.given.keys()


TestChoosing = Choosing.TestCase


def test_a_name_keeps_its_id_from_one_life_of_the_kernel_to_the_next(tmp_path: Path, registry: HostIdRegistry) -> None:
    async def main() -> None:
        ids = HostIdPool(tmp_path / "ids", registry)
        first = [await ids.take(name) for name in ("a", "b", "ä\n\u2028")]

        again = HostIdPool(tmp_path / "ids", registry)
        assert [await again.take(name) for name in ("ä\n\u2028", "b", "a")] == first[::-1]
        assert first == [HostIds(FIRST_ID + number, FIRST_ID + number) for number in range(3)]

    trio.run(main)


async def test_only_the_kernel_reads_the_file_and_no_half_of_it_is_ever_seen(
    tmp_path: Path, registry: HostIdRegistry
) -> None:
    path = tmp_path / "ids"
    ids = HostIdPool(path, registry)
    await ids.take("a")
    former = os.open(path, os.O_RDONLY)

    await ids.take("b")

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.fstat(former).st_nlink == 0, "replaced, not written over"
    assert os.listdir(tmp_path) == ["ids"]
    os.close(former)


@pytest.mark.usefixtures("autojump_clock")
async def test_names_without_files_share_a_write(tmp_path: Path, registry: HostIdRegistry) -> None:
    path = tmp_path / "ids"
    ids = HostIdPool(path, registry)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ids.serve)

        await ids.take("a", keeps_files=False)
        await trio.sleep(SAVE_DELAY / 2)
        assert not path.exists()
        await ids.take("b", keeps_files=False)

        while not path.exists():
            await trio.sleep(SAVE_DELAY)
        assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["a", "b"]
        nursery.cancel_scope.cancel()


async def test_two_that_ask_at_once_get_two(tmp_path: Path, registry: HostIdRegistry) -> None:
    ids, got = HostIdPool(tmp_path / "ids", registry), []

    async def take(name: str) -> None:
        got.append(await ids.take(name))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(take, str(number))

    assert len(set(got)) == 20


async def test_one_that_runs_or_has_files_is_not_given_away(tmp_path: Path, registry: HostIdRegistry) -> None:
    ids = HostIdPool(tmp_path / "ids", registry, 70000, 2)
    await ids.take("runs")
    keeps = await ids.take("keeps")

    with pytest.raises(HostIdError, match="all 2 uids for agents are in use or belong to kept workspaces"):
        await ids.take("new", in_use={"runs"}, names_with_files=lambda: frozenset({"keeps"}))

    assert await ids.take("new", in_use={"runs"}) == keeps


async def test_ten_names_one_after_the_other_share_six_ids_and_the_seventh_has_the_firsts(
    tmp_path: Path, registry: HostIdRegistry
) -> None:
    """An id isn't a name's for good: with all of a range given, the one used longest ago goes to the next name."""
    ids = HostIdPool(tmp_path / "ids", registry, 70000, 6)
    served = [(await ids.take(f"name-{number}")).uid for number in range(10)]

    assert served == [*range(70000, 70006), *range(70000, 70004)]
    assert (await ids.take("name-4")).uid == 70004, "one that nobody else has got is kept"
    assert (await ids.take("name-0")).uid == 70005, "and who comes back too late gets another"


async def test_ids_that_a_file_leaves_out_are_given_first(tmp_path: Path, registry: HostIdRegistry) -> None:
    before = HostIdPool(tmp_path / "ids", registry, 70000, 6)
    for number in range(4):
        await before.take(f"name-{number}")
    lines = (tmp_path / "ids").read_text().splitlines(keepends=True)
    (tmp_path / "ids").write_text("".join(lines[:1] + lines[2:]))
    after = HostIdPool(tmp_path / "ids", registry, 70000, 6)

    assert [(await after.take(f"later-{number}")).uid for number in range(3)] == [70001, 70004, 70005]


@pytest.mark.parametrize(
    "text",
    [
        "rubbish",
        "[1]",
        '"a"',
        '{"name": "a"}',
        '{"name": "a", "id": "1610612736"}',
        '{"name": "a", "id": true}',
        '{"name": "a", "id": 0}',
        '{"name": "a", "id": 1610612736}\n{"name": "b", "id": 1610612736}',
        '{"name": "a", "id": 1610612736}\n{"name": "a", "id": 1610612737}',
        '{"name": "a", "id": 1610612736}\n{"name": "b", "i',
        "\xff",
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_an_error_that_names_it_and_stays_as_it_is(
    tmp_path: Path, registry: HostIdRegistry, text: str
) -> None:
    path = tmp_path / "ids"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(HostIdError, match=r"ids is damaged .*: restore it, or remove it together with"):
        HostIdPool(path, registry)

    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize(("first", "count"), [(0, 10), (os.geteuid(), 1), ((1 << 32) - 2, 2), (70000, 0)])
def test_no_range_is_empty_or_has_root_the_kernels_user_or_an_invalid_uid_in_it(
    tmp_path: Path, registry: HostIdRegistry, first: int, count: int
) -> None:
    with pytest.raises(HostIdError, match="not a valid uid range for agents"):
        HostIdPool(tmp_path / "ids", registry, first, count)


def test_blocks_lie_apart_and_the_uids_of_agents_are_none_of_them(tmp_path: Path) -> None:
    numbers = (FIRST_BLOCK, FIRST_BLOCK + 1, TRIAL_BLOCK)

    assert [first_of_block(number).uid for number in numbers] == [0x70000000, 0x70020000, 0x7FFE0000]
    for first in (FIRST_BLOCK - 1, first_of_block(TRIAL_BLOCK).uid):
        with (
            pytest.raises(HostIdError, match="are for agents with user = root"),
            open_host_ids(tmp_path, UidRange(first=first, count=2)),
        ):
            pass
