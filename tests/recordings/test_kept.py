"""Which recordings are kept, and which are read at all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentos.recordings.format import CALLS, FORMER, SUFFIX, Life, Manifest
from agentos.recordings.kept import KEPT_FAILED, KEPT_LIVES, Kept, choose_removed, list_names, prune, scan
from agentos.recordings.own import KEY, Marks
from agentos.recordings.recorder.starts import list_starts
from agentos.recordings.replay.resume import find_last
from tests.support.runs.rows import each_row

from .written import line, write_recording


def kept(name: str, size: int = 10, *, agent: str = "coder", failed: bool = False, automatic: bool = True) -> Kept:
    life = Life(f"{agent}/1", agent, 1.0, ended=2.0, failed=failed)
    return Kept(Path(name), Manifest(name=name, automatic=automatic, lives=[life]), size)


def test_the_last_lives_of_each_agent_and_more_that_failed_are_kept() -> None:
    own = [kept(f"coder-{n}", failed=n < 3) for n in range(KEPT_LIVES + 5)]
    crashing = [kept(f"crashing-{n}", agent="crashing", failed=True) for n in range(KEPT_FAILED + 2)]
    others = [kept(f"writer-{n}", agent="writer") for n in range(5)]
    begun = [kept(f"recording-{n}", automatic=False) for n in range(30)]

    removed = {each.manifest.name for each in choose_removed([*own, *crashing, *others, *begun], 1 << 30)}
    assert removed == {"coder-3", "coder-4", "crashing-0", "crashing-1"}


FULL: Sequence[tuple[int, list[str]]] = [
    (60, []),
    (59, ["good-1"]),
    (45, ["good-1", "good-2"]),
    (25, ["good-1", "good-2", "failed-1", "failed-2"]),
    (1, ["good-1", "good-2", "failed-1", "failed-2"]),
]


@each_row(("most", "removed"), FULL)
def test_beyond_the_bound_good_lives_go_first_and_what_the_operator_began_never(most: int, removed: list[str]) -> None:
    found = [kept("failed-1", failed=True), kept("good-1"), kept("by-hand-1", 20, automatic=False)]
    found += [kept("failed-2", failed=True), kept("good-2")]

    assert [each.manifest.name for each in choose_removed(found, most)] == removed


def test_what_goes_on_is_not_removed_and_what_a_dead_kernel_left_counts_as_failed(tmp_path: Path) -> None:
    lines, marks = [line(1, "NOOP")], Marks(b"key")
    ended = [Life("coder/1", "coder", 1.0, ended=2.0)]
    for name, began, extra in (
        ("dead-1", 10.0, {}),
        ("good-1", 120.0, {"ended": 130.0, "lives": ended}),
        ("going-on-1", 200.0, {}),
    ):
        write_recording(tmp_path / f"{name}{SUFFIX}", lines, marks, name=name, began=began, automatic=True, **extra)
    (tmp_path / f"broken-1{SUFFIX}").mkdir()
    size = scan(tmp_path)[0].size

    left = prune(tmp_path, marks, 2 * size, since=100.0)

    assert left == 2 * size
    assert [each.manifest.name for each in scan(tmp_path)] == ["dead-1", "going-on-1"]
    assert sorted(list_names(tmp_path)) == ["broken-1", "dead-1", "going-on-1"]


def test_a_recording_takes_the_bytes_of_its_calls_those_before_a_fork_and_its_files(tmp_path: Path) -> None:
    life = Life("coder/1", "coder", 1.0, ended=2.0, file_bytes=10_000)
    place = write_recording(tmp_path / f"coder-1{SUFFIX}", [line(1, "NOOP")], lives=[life])
    (place / FORMER).write_bytes(b"x" * 3000)

    assert [each.size for each in scan(tmp_path)] == [(place / CALLS).stat().st_size + 3000 + 10_000]


def test_a_recording_in_a_directory_of_another_name_is_left_alone(tmp_path: Path) -> None:
    write_recording(tmp_path / f"other-1{SUFFIX}", [line(1, "NOOP")], Marks(b"key"), name="coder-1", automatic=True)

    assert prune(tmp_path, Marks(b"key"), 0, since=0.0) == 0
    assert (tmp_path / f"other-1{SUFFIX}").is_dir()


MARKS = Marks(b"key")
ELSEWHERE: Sequence[tuple[str, Marks | None, dict[str, object]]] = [
    ("without a mark", None, {}),
    ("of another kernel", Marks(b"another"), {}),
    ("with the mark of a recording of another name", None, {"mark": MARKS.make(Manifest(name="coder-1", began=1e9))}),
    ("no text", None, {"mark": "\u00fc"}),
]


@each_row(("how", "marks", "more"), ELSEWHERE)
def test_a_recording_from_elsewhere_is_not_taken_for_an_own_one(
    tmp_path: Path, how: str, marks: Marks | None, more: dict[str, Any]
) -> None:
    """It would displace own ones, name their agents' snapshots as its begin, and be what an agent goes on with."""
    place = tmp_path / how
    life = Life("coder/1", "coder", 1.0, ended=2.0, failed=True, start="coder@1", file_bytes=1 << 60)
    own = Life("coder/1", "coder", 1.0, ended=2.0)
    facts = {"automatic": True, "ended": 2.0}
    write_recording(place / f"coder-1{SUFFIX}", [], MARKS, name="coder-1", began=1.0, lives=[own], **facts)
    write_recording(place / f"coder-2{SUFFIX}", [], marks, name="coder-2", began=1e9, lives=[life], **facts, **more)
    scanned = scan(place)

    assert prune(place, MARKS, 1000, since=0.0) == scanned[0].size
    assert [each.path for each in scan(place)] == [each.path for each in scanned]
    assert list_starts(place, MARKS) == set()
    found = find_last(place, MARKS, "coder")
    assert (found and found.manifest.name) == "coder-1"


def test_the_key_of_marks_is_kept_and_one_that_was_not_written_whole_is_made_again(tmp_path: Path) -> None:
    made = [Marks.open(tmp_path).make(Manifest()) for _ in range(2)]
    (tmp_path / KEY).write_bytes(b"short")
    made += [Marks.open(tmp_path).make(Manifest()) for _ in range(2)]

    assert made[0] == made[1] != made[2] == made[3]
