"""Archives from anywhere: what is hostile is refused whole with its entry named, and nothing is made outside."""

import hashlib
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentos.services.archives import tar
from agentos.services.archives.archive import (
    DIGESTS,
    MANIFEST,
    MAX_SCRIPT,
    PARTS,
    STATE,
    TooLarge,
    Writer,
    read_manifest,
    unpack,
)
from agentos.services.archives.json_parts import read_keys, read_messages
from agentos.services.archives.json_parts import read_manifest as check_manifest
from agentos.services.archives.tar import BadArchive
from agentos.services.snapshots import beneath
from tests.support.runs.rows import each_row

LETTER = b'[{"from_name": "a", "from_kind": "agent", "sent_at": 1, "message": %b}]'
Entry = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "top").mkdir()
    return tmp_path


def entry(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **more: object) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode = kind, len(data), 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in more.items():
        setattr(info, field, value)
    return info, data


def digest_of(one: Entry) -> str:
    info, data = one
    if info.isdir():
        return ""
    return hashlib.sha256(info.linkname.encode() if info.issym() else data).hexdigest()


def archive_of(*entries: Entry, digests: dict[str, str] | None = None) -> io.BytesIO:
    """A whole archive with these entries and right digests."""
    every = [entry(MANIFEST, data=b"{}"), *entries]
    told = {one[0].name: digest_of(one) for one in every} if digests is None else digests
    every.append(entry(DIGESTS, data=json.dumps(told).encode()))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, data in every:
            archive.addfile(info, io.BytesIO(data))
    out.seek(0)
    return out


def refuse(file: io.BytesIO, place: Path) -> str:
    """Why it is refused; outside of the directory nothing has changed."""
    with beneath.open_top(str(place / "top")) as top, pytest.raises(BadArchive) as refused:
        unpack(file, top, None)
    assert os.listdir(place / "outside") == []
    assert sorted(os.listdir(place)) == ["outside", "top"]
    return str(refused.value)


TOP = entry("workspace", tarfile.DIRTYPE)
HOSTILE: dict[str, tuple[list[Entry], str]] = {
    "up": ([TOP, entry("workspace/../../outside/x", data=b"x")], "../outside/x"),
    "up at the end": ([TOP, entry("workspace/..", tarfile.DIRTYPE)], "workspace/.."),
    "absolute": ([TOP, entry("/tmp/x", data=b"x")], "/tmp/x"),
    "a dot": ([TOP, entry("workspace/./x", data=b"x")], "workspace/./x"),
    "no name": ([TOP, entry("workspace//x", data=b"x")], "workspace//x"),
    "deep": ([TOP, entry("workspace/" + "d/" * 200 + "x")], "workspace/d/d"),
    "long": ([TOP, entry("workspace/" + "n" * 5000)], "more than 4096 bytes"),
    "too long for a name": ([TOP, entry("workspace/" + "n" * 300)], "nnn"),
    "through a link": (
        [TOP, entry("workspace/l", tarfile.SYMTYPE, linkname="../../outside"), entry("workspace/l/x", data=b"x")],
        "workspace/l/x",
    ),
    "onto a link": (
        [TOP, entry("workspace/l", tarfile.SYMTYPE, linkname="../../outside/x"), entry("workspace/l", data=b"x")],
        "workspace/l",
    ),
    "a hard link": ([TOP, entry("workspace/h", tarfile.LNKTYPE, linkname="/etc/passwd")], "workspace/h"),
    "a device": ([TOP, entry("workspace/d", tarfile.CHRTYPE, devmajor=1, devminor=3)], "workspace/d"),
    "a block device": ([TOP, entry("workspace/d", tarfile.BLKTYPE)], "workspace/d"),
    "a FIFO": ([TOP, entry("workspace/f", tarfile.FIFOTYPE)], "workspace/f"),
    "sparse": ([TOP, entry("workspace/s", tarfile.GNUTYPE_SPARSE)], "workspace/s"),
    "PAX": ([TOP, entry("workspace/p", tarfile.XHDTYPE, b"11 path=/x\n")], "workspace/p"),
    "twice": ([TOP, entry("workspace/a", data=b"1"), entry("workspace/a", data=b"2")], "workspace/a"),
    "below a file": ([TOP, entry("workspace/a"), entry("workspace/a/b")], "workspace/a/b"),
    "no directory": ([TOP, entry("workspace/a/b")], "workspace/a/b"),
    "another place": ([entry("state/x", data=b"x")], "state/x"),
    "two scripts": ([entry("program/a.py", data=b"1"), entry("program/b.py", data=b"2")], "program/b.py"),
    "a script below": ([entry("program/a/b.py", data=b"1")], "program/a/b.py"),
    "a manifest again": ([entry(MANIFEST, data=b"[]")], MANIFEST),
    "a directory as a part": ([entry("state.json", tarfile.DIRTYPE)], "state.json"),
    "a workspace that is a link": ([entry("workspace", tarfile.SYMTYPE, linkname="../outside")], "workspace"),
}


@each_row("what", HOSTILE)
def test_a_hostile_entry_is_refused_by_name(place: Path, what: str) -> None:
    entries, named = HOSTILE[what]

    assert named in refuse(archive_of(*entries), place), what
    for name in os.listdir(place / "top"):
        (place / "top" / name).unlink()


@each_row(
    ("lie", "named"),
    [
        (lambda told: told | {"workspace/a": "0" * 64}, "workspace/a"),
        (lambda told: {name: told[name] for name in told if name != "workspace/a"}, "workspace/a"),
        (lambda told: told | {"workspace/none": ""}, "workspace/none"),
        (lambda told: told | {"workspace": "x"}, "workspace"),
        (lambda told: [], DIGESTS),
    ],
)
def test_digests_that_lie_are_found(
    place: Path, lie: Callable[[dict[str, str]], dict[str, str]], named: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entries = [TOP, entry("workspace/a", data=b"a" * 3000)]
    told = {one[0].name: digest_of(one) for one in [entry(MANIFEST, data=b"{}"), *entries]}

    assert named in refuse(archive_of(*entries, digests=lie(told)), place)
    (place / "top" / "a").unlink()


def test_an_archive_that_is_cut_anywhere_is_refused(place: Path) -> None:
    whole = archive_of(TOP, entry("workspace/a", data=b"a" * 3000), entry("workspace/b", data=b"b")).getvalue()
    end = len(whole.rstrip(b"\0"))

    for size in range(0, end, 211):
        refuse(io.BytesIO(whole[:size]), place)
        for name in os.listdir(place / "top"):
            (place / "top" / name).unlink()


def test_what_is_no_archive_is_refused(place: Path) -> None:
    for data in (b"", b"x" * 10_240, b"\x1f\x8b" + b"z" * 1022, bytes(10_240), struct.pack("512s", b"manifest.json")):
        refuse(io.BytesIO(data), place)


@pytest.mark.parametrize("size", [1 << 40, -1])
def test_a_size_that_is_not_there_is_refused(place: Path, size: int) -> None:
    info = tarfile.TarInfo("workspace/bomb")
    info.size = size if size > 0 else 0
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    if size < 0:
        block[124:136] = b"\xff" * 12  # base-256: -1
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
    whole = archive_of(TOP).getvalue()
    first = archive_of().getvalue()[:1024]

    assert "workspace/bomb" in refuse(io.BytesIO(first + bytes(block) + whole), place)


class Endless(io.RawIOBase):
    """An archive of ten million empty files."""

    def __init__(self) -> None:
        self._blocks, self.count, self._ahead = self._make(), 0, b""

    def _make(self) -> Iterator[bytes]:
        first = archive_of(TOP).getvalue()
        yield from (first[at : at + 512] for at in (0, 512, 1024))
        for number in range(10_000_000):
            self.count = number
            yield tarfile.TarInfo(f"workspace/{number}").tobuf(tarfile.GNU_FORMAT)

    def read(self, size: int = -1) -> bytes:
        while len(self._ahead) < size:
            self._ahead += next(self._blocks)
        found, self._ahead = self._ahead[:size], self._ahead[size:]
        return found


def test_ten_million_entries_are_not_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "MAX_ENTRIES", 1000)
    endless = Endless()

    said = refuse(endless, place)  # type: ignore[arg-type]

    assert f"workspace/{endless.count}" in said
    assert endless.count == 998


def test_more_bytes_than_an_archive_may_have_are_not_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "MAX_BYTES", 100_000)

    entries = [entry(f"workspace/{name}", data=bytes(60_000)) for name in "ab"]

    assert "workspace/b" in refuse(archive_of(TOP, *entries), place)
    assert os.listdir(place / "top") == ["a"]


def test_what_is_written_is_unpacked_as_it_was(place: Path) -> None:
    source = place / "source"
    (source / "d/e").mkdir(parents=True)
    (source / "d/file").write_bytes(b"x" * 100_000)
    (source / "d/run").write_text("#!/bin/sh")
    (source / "d/run").chmod(0o755)
    (source / "d/link").symlink_to("/etc/passwd")
    (source / "d").chmod(0o500)
    (source / ("n" * 200)).write_text("long")
    Path(os.fsdecode(os.fsencode(source) + b"/\xff")).write_text("no UTF-8")
    os.mkfifo(source / "fifo")
    out = io.BytesIO()
    writer = Writer(out)
    writer.add(MANIFEST, b"{}")
    writer.add("program/x.py", b"print()")
    with beneath.open_top(str(source)) as top:
        writer.add_tree(top)
    writer.finish()
    assert writer.skipped == 1

    out.seek(0)
    assert read_manifest(out) == b"{}"
    out.seek(0)
    with beneath.open_top(str(place / "top")) as top:
        found = unpack(out, top, None)

    (source / "fifo").unlink()
    assert look(place / "top") == look(source)
    assert (found.script, found.files) == (("x.py", b"print()"), 8)


def make_deep(top: Path) -> None:
    (top / "/".join("d" * tar.MAX_PARTS)).mkdir(parents=True)


def make_long(top: Path) -> None:
    here = os.open(top, os.O_DIRECTORY)
    for name in [*(["n" * 200] * 20), "m" * 70]:  # 4,090 bytes: with the name of the workspace more than 4,095
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.parametrize("make", [make_deep, make_long])
def test_a_name_that_would_be_refused_is_not_written(place: Path, make: Callable[[Path], None]) -> None:
    top = place / "top"
    make(top)
    with beneath.open_top(str(top)) as opened, pytest.raises(TooLarge, match=r"parts|bytes"):
        Writer(io.BytesIO()).add_tree(opened)


@pytest.mark.parametrize("name", [STATE, MANIFEST, "program/x.py", DIGESTS])
def test_a_part_that_would_be_refused_is_not_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(io.BytesIO())
    if name == DIGESTS:
        monkeypatch.setitem(PARTS, DIGESTS, 50)
        writer.add(MANIFEST, b"{}")
        with pytest.raises(TooLarge, match=name):
            writer.finish()
        return
    with pytest.raises(TooLarge, match=name):
        writer.add(name, bytes(PARTS.get(name, MAX_SCRIPT) + 1))


def look(top: Path) -> dict[bytes, object]:
    return {
        os.fsencode(path.relative_to(top)): (
            os.readlink(path) if path.is_symlink() else path.stat().st_mode,
            path.read_bytes() if path.is_file() and not path.is_symlink() else None,
        )
        for path in top.rglob("*")
    }


@each_row(
    ("read", "data"),
    [
        (check_manifest, b'{"format": 2, "kernel": "x", "name": "a", "agent": null, "left_out": []}'),
        (check_manifest, b'{"format": 1, "kernel": "x", "name": "a", "agent": null, "left_out": [], "more": 1}'),
        (check_manifest, b"[" * 100_000),
        (read_messages, b'[{"from_name": "a", "from_kind": "root", "sent_at": 1, "message": 1}]'),
        (read_messages, b'[{"from_name": "a", "from_kind": "agent", "sent_at": -1, "message": 1}]'),
        (read_messages, LETTER % b"{]"),
        (read_messages, LETTER % (b"[" * 900 + b"]" * 900)),
        (read_messages, LETTER % (b"[" * 100_000 + b"]" * 100_000)),
        (
            read_messages,
            json.dumps([{"from_name": "a", "from_kind": "agent", "sent_at": 1, "message": 1}] * 1001).encode(),
        ),
        (lambda data: read_keys(data, bool), b'[["k", "bm8ganNvbg==", null]]'),
        (lambda data: read_keys(data, bool), b'[["", "MQ==", null]]'),
        (lambda data: read_keys(data, bool), b'[["k", "MQ==", null], ["k", "MQ==", null]]'),
        (lambda data: read_keys(data, bool), b'[["k", "MQ==", "soon"]]'),
    ],
)
def test_json_that_can_not_be_is_refused_by_its_part(read: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(BadArchive, match=r"\.json"):
        read(data)


@pytest.mark.parametrize("body", [rb'"\ud800"', rb'{"\udfff": ["\ud83dx", "\ud83d\ude00"]}'])
def test_a_message_with_half_a_surrogate_pair_keeps_no_archive_from_being_read(body: bytes) -> None:
    """A sender may send it, and so each sender could make an agent's archive useless."""
    [message] = read_messages(LETTER % body)
    assert json.loads(bytes(message.message)) in ("\ufffd", {"\ufffd": ["\ufffdx", "😀"]})
