"""Archives that lie, are cut, or reach out: each is refused whole with the entry named, and leaves nothing."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos.images.errors import BadArchive
from agentos.images.importer import import_image
from agentos.images.store import Images
from agentos.images.streams import Stream
from agentos.images.tar import read_entries
from agentos.images.unpack import Bounds
from tests.support.images import HARD, LINK, describe, digest, entry, make_oci, make_saved, make_tar, tar_files
from tests.support.runs.rows import each_row

BOUNDS = Bounds(size=1 << 20, entries=50)
GOOD = make_tar([entry("bin/", mode=0o755), entry("bin/tool", b"x" * 5000, mode=0o755)])
OUT = "../../../../../../../../tmp/out-of-the-image"


def device(kind: bytes) -> bytes:
    return make_tar([entry("dev/null", kind=kind, devmajor=1, devminor=3)])


def patched(data: bytes, place: int, new: bytes) -> bytes:
    """A tar with a field of its first header replaced, and a right sum."""
    header = bytearray(data[:512])
    header[place : place + len(new)] = new
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


def needing_4_gib(data: bytes) -> bytes:
    """The stream of xz with a block whose header says the largest dictionary; the sum is right."""
    header = bytearray(data[12:24])  # size, flags, filter and the length of its properties, dictionary, padding, CRC32
    header[4] = 40
    header[8:] = zlib.crc32(header[:8]).to_bytes(4, "little")
    return data[:12] + bytes(header) + data[24:]


def special(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    """A header of pax or GNU, in front of a good archive."""
    info = tarfile.TarInfo("special")
    info.type, info.size = kind, len(content) if size is None else size
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512) + GOOD


def pax(**values: str) -> bytes:
    lines = b""
    for name, value in values.items():
        text = f" {name}={value}\n".encode()
        length = next(n for n in range(len(text), len(text) + 8) if n == len(text) + len(str(n)))
        lines += str(length).encode() + text
    return special(b"x", lines)


# What takes long to pack is packed by its test, not when tests are collected.
ROOTS: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    "dot dot": (make_tar([entry(OUT, b"")]), r"\.\. in its path"),
    "dot dot in the middle": (make_tar([entry("a/../../out", b"")]), r"a/\.\./\.\./out"),
    "dot dot in pax": (pax(path=OUT), r"\.\. in its path"),
    "dot dot in GNU's name": (special(b"L", f"{OUT}\0".encode()), r"\.\. in its path"),
    "hard link out": (make_tar([entry("p", kind=HARD, target="../../etc/passwd")]), r"\.\. in its path"),
    "hard link to the host's file": (make_tar([entry("p", kind=HARD, target="/etc/passwd")]), "a link to etc/passwd"),
    "hard link to a directory": (make_tar([entry("d/"), entry("p", kind=HARD, target="d")]), "p is a link to d"),
    "hard link to nothing": (make_tar([entry("p", kind=HARD, target="never")]), "p is a link to never"),
    "hard link through a link": (
        make_tar([entry("l", kind=LINK, target="/etc"), entry("p", kind=HARD, target="l/passwd")]),
        "p can't be unpacked: a directory on its path is a link",
    ),
    "through a link out": (make_tar([entry("l", kind=LINK, target="/tmp"), entry("l/out-of-the-image", b"")]), "l/out"),
    "through a relative link": (make_tar([entry("l", kind=LINK, target="../.."), entry("l/x/y", b"")]), "l/x/y"),
    "through a link within": (make_tar([entry("d/"), entry("l", kind=LINK, target="d"), entry("l/x", b"")]), "l/x"),
    "through a magic link": (make_tar([entry("l", kind=LINK, target="/proc/self/root"), entry("l/x", b"")]), "l/x"),
    "through a hard link to a link": (
        make_tar([entry("l", kind=LINK, target="/tmp"), entry("m", kind=HARD, target="l"), entry("m/x", b"")]),
        "m/x",
    ),
    "through a file": (make_tar([entry("f", b""), entry("f/x", b"")]), "f/x"),
    "whiteout through a link": (make_tar([entry("l", kind=LINK, target="/tmp"), entry("l/.wh.x")]), "l/.wh.x"),
    "opaque through a link": (make_tar([entry("l", kind=LINK, target="/tmp"), entry("l/.wh..wh..opq")]), "l/.wh"),
    "a name at its top that is no UTF-8": (make_tar([entry("a\udcff/x", b"")]), "at its top isn't UTF-8"),
    "whiteout of dot dot": (make_tar([entry("d/.wh...")]), "hides a name"),
    "whiteout of nothing": (make_tar([entry("d/.wh.")]), "hides a name that can't be"),
    "character device": (device(tarfile.CHRTYPE), "dev/null is a device"),
    "block device": (device(tarfile.BLKTYPE), "dev/null is a device"),
    "FIFO": (device(tarfile.FIFOTYPE), "dev/null is a FIFO"),
    "unknown kind": (device(b"Z"), "dev/null is of an unknown kind"),
    "sparse file of GNU": (make_tar([entry("s", kind=b"S")]), "s is a sparse file"),
    "sparse file of pax": (pax(**{"GNU.sparse.major": "1", "path": "s"}), "s is a sparse file"),
    "link to nothing": (make_tar([entry("l", kind=LINK, target="")]), "l is a link that leads to nothing"),
    "too many entries": (make_tar([entry(f"f{n}", b"") for n in range(51)]), "f50 is one of more than 50 entries"),
    "too many directories on a path": (make_tar([entry("d/" * 60 + "f", b"")]), "more than 50 entries"),
    "more than its bound": (make_tar([entry("big", bytes((1 << 20) + 1))]), "with big it has more than 1048576 bytes"),
    "a bomb": (
        lambda: gzip.compress(make_tar([entry("zeros", bytes(8 << 20))])),
        "with zeros it has more than 1048576 bytes",
    ),
    "a bomb behind its end": (lambda: gzip.compress(GOOD + bytes(8 << 20)), "more than .* bytes when it is unpacked"),
    "a bomb of headers": (lambda: gzip.compress(special(b"x", b"", 0)[:512] * 9000), "a header of 0 bytes"),
    "a size beyond all": (patched(GOOD, 124, b"\x80" + b"\xff" * 11), "a size that can't be"),
    "a negative size": (patched(GOOD, 124, b"\xff" * 12), "a size that can't be"),
    "a negative size in pax": (pax(size="-1"), "a size that can't be"),
    "a size of letters": (patched(GOOD, 124, b"letters\0"), "no octal number"),
    "a header of 3 GiB": (special(b"x", b"", 3 << 30), "a header of 3221225472 bytes"),
    "a name of 2 GiB": (special(b"L", b"", 2 << 30), "a header of"),
    "a damaged pax header": (special(b"x", b"99 path=x\n"), "a damaged pax header"),
    "a pax header without a length": (special(b"x", b"path=x\n"), "a damaged pax header"),
    "a name too long": (make_tar([entry("n" * 256, b"")]), "longer than Linux takes"),
    "a path too long": (make_tar([entry("n/" * 2100, b"")]), "longer than Linux takes"),
    "a path of too many bytes": (make_tar([entry("é/" * 1500, b"")]), "longer than Linux takes"),
    "a NUL in a name": (pax(path="a\0b"), "a NUL in its path"),
    "a wrong sum": (GOOD[:20] + b"!" + GOOD[21:], "a header of it is damaged"),
    "a second header that is damaged": (GOOD[:532] + b"!" + GOOD[533:], "a header of it is damaged"),
    "cut in a header": (GOOD[:700], "cut"),
    "cut between two entries": (GOOD[:512], "it is cut: it has no end"),
    "cut in a file": (GOOD[:3000], "it is cut within bin/tool"),
    "cut gzip of a tar": (gzip.compress(make_tar([entry("r", random.Random(1).randbytes(9000))]))[:5000], "cut"),
    "nothing": (b"", "it is empty"),
    "no archive": (b"#!/bin/sh\necho this is no tar\n" * 40, "it is no tar archive"),
    "a damaged xz": (b"\xfd7zXZ\0" + bytes(600), "it is cut or damaged"),
    "a damaged bzip2": (b"BZh9" + bytes(600), "it is cut or damaged"),
    "cut xz": (lzma.compress(GOOD)[:-40], "it has no end"),
    "cut bzip2": (bz2.compress(GOOD)[:-40], "it has no end"),
    "xz and then none": (lzma.compress(GOOD) + b"none", "it is cut or damaged"),
    "a bomb of xz": (lambda: lzma.compress(make_tar([entry("zeros", bytes(8 << 20))])), "with zeros it has more than"),
    "a bomb of bzip2 behind its end": (
        lambda: bz2.compress(GOOD + bytes(8 << 20)),
        "more than .* bytes when it is unpacked",
    ),
    "xz that needs 4 GiB of memory": (needing_4_gib(lzma.compress(GOOD)), "Memory usage limit exceeded"),
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Images:
    (tmp_path / "state").mkdir(mode=0o700)
    return Images(tmp_path / "state")


def refuse(store: Images, data: bytes, match: str, tmp_path: Path) -> None:
    file = tmp_path / "archive"
    file.write_bytes(data)
    before = set(tmp_path.rglob("*")) | set(Path("/tmp").glob("out-of-the-image*"))
    with pytest.raises(BadArchive, match=match):
        import_image(store, str(file), "a", BOUNDS)
    left = (set(tmp_path.rglob("*")) | set(Path("/tmp").glob("out-of-the-image*"))) - before
    assert {path.name for path in left} <= {"images", "store.lock", "trees"}
    assert store.list() == []


@pytest.mark.parametrize("case", ROOTS)
def test_a_hostile_root_tar_is_refused_whole(case: str, store: Images, tmp_path: Path) -> None:
    data, match = ROOTS[case]
    refuse(store, data() if callable(data) else data, match, tmp_path)


@pytest.mark.parametrize("case", ["dot dot", "through a link out", "character device", "cut in a file"])
def test_the_same_in_a_layer_is_refused_whole(case: str, store: Images, tmp_path: Path) -> None:
    data, match = ROOTS[case]
    assert isinstance(data, bytes)
    refuse(store, tar_files(make_oci([GOOD, data])), match, tmp_path)
    refuse(store, tar_files(make_saved([GOOD, data])), match, tmp_path)


def changed_blob(files: dict[str, bytes], wanted: Callable[[bytes], bool], change: Callable[[bytes], bytes]) -> bytes:
    return tar_files({path: change(data) if wanted(data) else data for path, data in files.items()})


def is_config(data: bytes) -> bool:
    return data.startswith(b'{"arch')


def is_layer(data: bytes) -> bool:
    return data.startswith(b"\x1f\x8b") or data[257:262] == b"ustar"


def with_index(**also: Any) -> bytes:
    files = make_oci([GOOD])
    index = json.loads(files["index.json"])
    index["manifests"][0].update(also)
    return tar_files({**files, "index.json": json.dumps(index).encode()})


OTHER = make_tar([entry("bin/evil", b"y" * 5000)])


def with_file(path: str, data: bytes, files: Mapping[str, bytes] = MappingProxyType(make_oci([GOOD]))) -> bytes:
    return tar_files({**files, path: data})


def with_manifest(data: bytes) -> bytes:
    return with_file("manifest.json", data, make_saved([GOOD]))


def with_config(**config: Any) -> bytes:
    return tar_files(make_oci([GOOD], config))


TWO = b'[{"Config": "c", "Layers": []}, {"Config": "d", "Layers": []}]'
SAVED = make_saved([GOOD])
ARCHIVES: Mapping[str, tuple[bytes, str]] = {
    "a layer with another size": (
        changed_blob(make_oci([GOOD]), is_layer, lambda _: gzip.compress(OTHER)),
        "bytes, and",
    ),
    "a layer with another digest": (changed_blob(make_oci([GOOD], pack=False), is_layer, lambda _: OTHER), "digest is"),
    "a saved layer with another digest": (changed_blob(SAVED, is_layer, lambda _: OTHER), "its digest is"),
    "a configuration with another digest": (changed_blob(SAVED, is_config, lambda data: data + b" "), "its digest is"),
    "a manifest with another digest": (with_index(digest=digest(b"else")), "isn't in it"),
    "a manifest with another size": (with_index(size=1), "and should have 1"),
    "a digest with a path in it": (with_index(digest="sha256:../../../../etc/passwd"), "expected a digest"),
    "a digest of another kind": (with_index(digest="md5:" + "0" * 32), "expected a digest"),
    "a missing layer": (tar_files({path: data for path, data in SAVED.items() if not is_layer(data)}), "isn't in it"),
    "an index that isn't JSON": (with_file("index.json", b"{"), "index.json"),
    "an index of wrong types": (with_file("index.json", b'{"manifests": 1}'), "index.json"),
    "an index without images": (with_file("index.json", b'{"manifests": []}'), "it has no image"),
    "deep JSON": (with_file("index.json", b"[" * 100_000), "index.json"),
    "huge JSON": (with_file("index.json", b" " * (5 << 20)), "bytes of JSON"),
    "two images": (with_manifest(TWO), "2 images"),
    "a path out of it": (with_manifest(b'[{"Config": "../../etc/passwd", "Layers": []}]'), "isn't in it"),
    "no index": (tar_files({"oci-layout": b"{}"}), "neither index.json"),
    "an environment that is none": (with_config(Env=["no value"]), "expected NAME=VALUE"),
    "a NUL in the environment": (with_config(Env=["A=\0"]), "expected NAME=VALUE"),
    "a NUL in a command": (with_config(Cmd=["a\0"]), "a text of it has a NUL"),
    "a working directory with ..": (with_config(WorkingDir="/a/../.."), "WorkingDir"),
    "a command of numbers": (with_config(Cmd=[1]), "Expected"),
    "more layers than digests": (
        with_manifest(SAVED["manifest.json"].replace(b'.tar"]', b'.tar", "x.tar"]')),
        "1 diff_ids for 2 layers",
    ),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_hostile_archive_of_blobs_is_refused_whole(case: str, store: Images, tmp_path: Path) -> None:
    data, match = ARCHIVES[case]
    refuse(store, data, match, tmp_path)


def nested_index() -> bytes:
    files = make_oci([GOOD])
    [manifest] = json.loads(files["index.json"])["manifests"]
    for kind in ("oci.image.index.v1+json", "docker.distribution.manifest.list.v2+json"):
        index = json.dumps({"manifests": [manifest]}).encode()
        files[f"blobs/sha256/{digest(index)[7:]}"] = index
        manifest = describe(index, mediaType=f"application/vnd.{kind}")
    return tar_files({**files, "index.json": json.dumps({"manifests": [manifest]}).encode()})


@each_row(
    ("bound", "most", "data", "why"),
    [
        ("archive.MAX_FILES", 5, tar_files(make_oci([GOOD])), "index.json is one of more than 4 files"),
        ("archive.MAX_LAYERS", 2, tar_files(make_oci([GOOD, OTHER])), "it has 2 layers, and more than 1 are too many"),
        ("archive._MAX_INDEXES", 3, nested_index(), "more than 2 indexes"),
        (
            "archive.MAX_JSON",
            900,
            with_file("index.json", make_oci([GOOD])["index.json"].ljust(900)),
            "899 bytes of JSON",
        ),
        ("config.MAX_VARIABLES", 2, with_config(Env=["A=1", "B=2"]), "Env: more than 1 variables"),
        ("config._MAX_TEXT", 4, with_config(Env=["A=12"]), "Env: expected NAME=VALUE, got 'A=12'"),
        ("config._MAX_TEXT", 4, with_config(Cmd=["1234"]), "a text of it has a NUL or is longer"),
        ("tar.MAX_NAME", 4, make_tar([entry("d/name", b"")]), "d/name is longer than Linux takes"),
        ("tar.MAX_PATH", 6, make_tar([entry("d/name", b"")]), "d/name is longer than Linux takes"),
        ("tar.MAX_PATH", 6, make_tar([entry("l", kind=LINK, target="target")]), "l leads to a path that can't be"),
        ("store.MAX_TOP", 2, tar_files({"a": b"", "b": b""}), "it has 2 directories and files at its top"),
    ],
)
def test_an_archive_may_have_as_much_as_each_bound_says(
    bound: str, most: int, data: bytes, why: str, store: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / bound
    file.write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr(f"agentos.images.{bound}", most)
        import_image(store, str(file), "a", BOUNDS)
        patch.setattr(f"agentos.images.{bound}", most - 1)
        with pytest.raises(BadArchive, match=why):
            import_image(store, str(file), "b", BOUNDS)


def test_an_image_may_have_as_many_entries_and_bytes_as_allowed(store: Images, tmp_path: Path) -> None:
    many = make_tar([entry(f"f{number}", b"") for number in range(50)])
    (tmp_path / "good").write_bytes(GOOD)
    (tmp_path / "many").write_bytes(many)
    import_image(store, str(tmp_path / "good"), "a", Bounds(size=5000))
    import_image(store, str(tmp_path / "many"), "b", Bounds(entries=50))
    with pytest.raises(BadArchive, match="with bin/tool it has more than 4999 bytes"):
        import_image(store, str(tmp_path / "good"), "c", Bounds(size=4999))


def test_a_directory_is_cleared_once_however_often_a_layer_says_so(
    store: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an archive with a thousand names and whiteouts takes a million looks."""
    below = make_tar([entry(f"d/{number}/e/old", b"") for number in range(3)])
    hides = [entry(f"{path}/.wh..wh..opq") for path in ("d/1/e", "d/1", "d")] + [entry(".wh.d"), entry("d/.wh.1")]
    above = make_tar(
        [*(entry(f"d/1/e/{number}", b"new") for number in range(5)), *(hides * 20), entry("d/1/late", b"")]
    )
    (tmp_path / "archive").write_bytes(tar_files(make_oci([below, above])))
    listed, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda place: listed.append(place) or listdir(place))  # type: ignore[func-returns-value]

    import_image(store, str(tmp_path / "archive"), "a")

    monkeypatch.undo()
    opened = store.open("a")
    top = Path(opened.path)
    assert sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()) == [
        *(f"d/1/e/{number}" for number in range(5)),
        "d/1/late",
    ]
    opened.close()
    assert len(listed) < 40


def test_empty_streams_in_front_of_an_archive_are_passed(store: Images, tmp_path: Path) -> None:
    packed = {
        "xz": lzma.compress(b"") * 5000 + lzma.compress(GOOD),
        "bz2": bz2.compress(b"") * 5000 + bz2.compress(GOOD),
    }
    for name, data in packed.items():
        (tmp_path / "archive").write_bytes(data)
        assert import_image(store, str(tmp_path / "archive"), name).bytes >= 5000


def test_an_archive_that_is_refused_leaves_the_former_image(store: Images, tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(GOOD)
    image = import_image(store, str(tmp_path / "good"), "a")
    (tmp_path / "bad").write_bytes(GOOD[:3000])

    with pytest.raises(BadArchive):
        import_image(store, str(tmp_path / "bad"), "a")

    assert store.find("a") == image
    assert len(os.listdir(tmp_path / "state" / "images" / "trees")) == 1


def test_an_image_for_another_machine_is_refused(store: Images, tmp_path: Path) -> None:
    files = make_saved([GOOD])
    path = json.loads(files["manifest.json"])[0]["Config"]
    said = json.dumps({**json.loads(files.pop(path)), "architecture": "vax"}).encode()
    image = [{"Config": f"{digest(said)[7:]}.json", "Layers": [f"{digest(GOOD)[7:]}.tar"]}]
    data = {**files, f"{digest(said)[7:]}.json": said, "manifest.json": json.dumps(image).encode()}

    refuse(store, tar_files(data), "it is for linux vax", tmp_path)


def test_a_layout_whose_blob_is_a_link_is_refused(store: Images, tmp_path: Path) -> None:
    for path, data in make_oci([GOOD]).items():
        (tmp_path / "layout" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "layout" / path).write_bytes(data)
        if is_layer(data):
            os.rename(tmp_path / "layout" / path, tmp_path / "elsewhere")
            os.symlink(tmp_path / "elsewhere", tmp_path / "layout" / path)

    with pytest.raises(BadArchive, match=r"blobs/sha256/.*not a regular file"):
        import_image(store, str(tmp_path / "layout"), "a", BOUNDS)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "a" * 65, "a\n", "ä"])
def test_a_name_that_cannot_be_is_refused(name: str, store: Images, tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(GOOD)

    with pytest.raises(BadArchive, match="NAME: expected"):
        import_image(store, str(tmp_path / "good"), name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=12), end=st.integers(0, 12_000))
def test_a_damaged_tar_is_read_to_its_end_or_refused(cuts: list[tuple[int, int]], end: int) -> None:
    whole = make_tar([entry("a/", mode=0o755), entry("a/b" * 60, b"x" * 700), entry("l", kind=LINK, target="a")])
    data = bytearray(whole[:end])
    for place, value in cuts:
        if place < len(data):
            data[place] = value
    stream = Stream(io.BytesIO(bytes(data)), "it", 1 << 20)
    try:
        entries = list(read_entries(stream))
    except BadArchive:
        return
    assert all(".." not in one.path.split("/") and not one.path.startswith("/") for one in entries)
    assert stream.position <= len(data)
