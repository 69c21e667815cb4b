"""What a build copies is found, counted and told apart without reading more of a directory than it may."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.images.building.context import Files
from agentos.images.errors import BadArchive
from agentos.images.unpack import Amount, Bounds
from agentos.services.snapshots import beneath


@pytest.fixture
def top(tmp_path: Path) -> Iterator[int]:
    """A directory with a directory, two files of five bytes in all, and a link."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"12")
    (tmp_path / "d" / "b").write_bytes(b"345")
    os.symlink("a" * 50, tmp_path / "d" / "link")
    with beneath.open_top(str(tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("bounds", "fits"),
    [
        (Bounds(size=5, entries=4), True),
        (Bounds(size=4, entries=4), False),
        (Bounds(size=5, entries=3), False),
    ],
)
def test_as_many_entries_and_bytes_as_allowed_are_copied_and_no_more(bounds: Bounds, fits: bool, top: int) -> None:
    if fits:
        (found,) = Files(top, bounds, {}).find(["d"])
        assert [item.below for item in found.items] == ["", "a", "b", "link"]
    else:
        with pytest.raises(BadArchive, match=f"more than {bounds.entries} entries or {bounds.size} bytes"):
            Files(top, bounds, {}).find(["d"])


def test_all_words_and_what_was_counted_before_share_one_bound(top: int) -> None:
    files = Files(top, Bounds(size=5, entries=2), {})
    assert len(files.find(["d/a", "d/b"])) == 2
    for words, before in ((["d/a", "d/b", "d/b"], Amount()), (["d/a"], Amount(4, 0)), (["d/a"], Amount(0, 2))):
        with pytest.raises(BadArchive, match="more than 2 entries or 5 bytes"):
            files.find(words, before)
