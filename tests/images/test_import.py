"""An archive becomes an image: what it may be, what its layers say, and what is taken of its configuration."""

import bz2
import gzip
import io
import json
import lzma
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agentos.images.errors import BadArchive, NoImage
from agentos.images.importer import import_image
from agentos.images.store import Image, Images
from tests.support import images as made
from tests.support.images import HARD, LINK, entry, make_oci, make_saved, make_tar, tar_files, write_files

IS_ROOT = os.geteuid() == 0
BASE = [
    entry("bin/", mode=0o755),
    entry("bin/tool", b"#!/bin/sh\n", mode=0o755),
    entry("etc/", mode=0o755),
    entry("etc/name", b"one\n"),
    entry("lib", kind=LINK, target="usr/lib"),
    entry("bin/again", kind=HARD, target="bin/tool"),
]


@pytest.fixture
def store(tmp_path: Path) -> Images:
    (tmp_path / "state").mkdir(mode=0o700)
    return Images(tmp_path / "state")


def root_of(store: Images, name: str = "a") -> Path:
    opened = store.open(name)
    opened.close()
    return Path(opened.path)


def names_in(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


class Pipe(io.RawIOBase):
    """What comes from a pipe: it can't seek, and comes in small parts."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = self._data.read(min(len(buffer), 1000))
        buffer[: len(part)] = part
        return len(part)


def in_halves(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Two streams, one after the other, as parallel packers write them."""
    return lambda data: pack(data[: len(data) // 2]) + pack(data[len(data) // 2 :])


PACKED: Mapping[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": in_halves(lzma.compress),
    "bzip2": in_halves(bz2.compress),
}


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("way", ["file", "pipe"])
@pytest.mark.parametrize("kind", ["root tar", "oci layout", "docker archive"])
def test_each_kind_of_archive_becomes_the_same_tree(
    kind: str, way: str, packed: str, store: Images, tmp_path: Path
) -> None:
    layer = make_tar(BASE)
    data = {
        "root tar": layer,
        "oci layout": tar_files(make_oci([layer])),
        "docker archive": tar_files(make_saved([layer])),
    }
    file = tmp_path / "archive"
    file.write_bytes(PACKED[packed](data[kind]))
    source = str(file) if way == "file" else io.BufferedReader(Pipe(file.read_bytes()))

    image = import_image(store, source, "a")

    root = root_of(store)
    assert image == store.find("a")
    assert (image.format, image.layers, image.directories) == (kind, 1, ("bin", "etc"))
    assert names_in(root) == {"bin", "bin/tool", "bin/again", "etc", "etc/name", "lib"}
    assert (root / "bin" / "tool").read_bytes() == b"#!/bin/sh\n"
    assert os.path.samefile(root / "bin" / "tool", root / "bin" / "again")
    assert os.readlink(root / "lib") == "usr/lib"
    assert stat.S_IMODE((root / "bin" / "tool").stat().st_mode) == 0o755
    assert (root / "etc").stat().st_mtime == (root / "etc" / "name").stat().st_mtime == 1_000_000_000


def test_a_directory_with_an_oci_layout_is_imported(store: Images, tmp_path: Path) -> None:
    place = write_files(tmp_path / "layout", make_oci([make_tar(BASE)], pack=False))

    assert import_image(store, place, "a").format == "oci layout"


def test_gnu_and_ustar_archives_with_long_names_are_read(store: Images, tmp_path: Path) -> None:
    long = "d" * 120 + "/" + "f" * 200
    for number, kind in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        name = "d" * 90 + "/" + "f" * 90 if kind == tarfile.USTAR_FORMAT else long
        file = tmp_path / str(number)
        file.write_bytes(make_tar([entry(name, b"x"), entry("l", kind=LINK, target="t" * 90)], kind))

        import_image(store, str(file), f"a{number}")

        assert (root_of(store, f"a{number}") / name).read_bytes() == b"x"


def test_gnu_tar_s_own_archive_is_read(store: Images, tmp_path: Path) -> None:
    place = tmp_path / "files"
    (place / "usr" / ("long" * 40)).mkdir(parents=True)
    (place / "usr" / ("long" * 40) / "file").write_text("text")
    with subprocess.Popen(["tar", "-C", place, "-c", "."], stdout=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        import_image(store, tar.stdout, "a")  # type: ignore[arg-type]

    assert names_in(root_of(store)) == names_in(place)


def test_a_whiteout_hides_what_the_layers_below_have_and_nothing_of_its_own(store: Images, tmp_path: Path) -> None:
    below = make_tar(
        [
            entry("a/", mode=0o755),
            entry("a/old", b""),
            entry("a/b/old", b""),
            entry("c/", mode=0o755),
            entry("c/old", b""),
            entry("d", b""),
        ]
    )
    above = make_tar(
        [
            entry("a/b/new", b""),
            entry("a/new", b""),
            entry("a/.wh..wh..opq"),
            entry("c/.wh.old"),
            entry(".wh.d"),
            entry(".wh.never"),
        ]
    )
    file = tmp_path / "archive"
    file.write_bytes(tar_files(make_oci([below, above])))

    import_image(store, str(file), "a")

    assert names_in(root_of(store)) == {"a", "a/new", "a/b", "a/b/new", "c"}


def test_a_later_layer_replaces_files_directories_and_links(store: Images, tmp_path: Path) -> None:
    below = make_tar(
        [entry("f", b"old"), entry("g", kind=HARD, target="f"), entry("d/x/y", b""), entry("l", kind=LINK, target="d")]
    )
    above = make_tar([entry("f", b"new"), entry("d", b"a file"), entry("l/", mode=0o750), entry("l/in", b"")])
    file = tmp_path / "archive"
    file.write_bytes(tar_files(make_saved([below, above])))

    import_image(store, str(file), "a")

    root = root_of(store)
    assert names_in(root) == {"f", "g", "d", "l", "l/in"}
    assert [(root / name).read_bytes() for name in "fgd"] == [b"new", b"old", b"a file"]


def test_environment_directory_user_and_command_are_taken_and_the_rest_is_told(store: Images, tmp_path: Path) -> None:
    config = {
        "Env": ["PATH=/opt/bin:/bin", "EMPTY=", "AGENTOS_SOCKET=/evil"],
        "WorkingDir": "/srv/",
        "User": "app:app",
        "Cmd": ["tool", "-v"],
        "Volumes": {"/data": {}},
        "Healthcheck": {"Test": ["CMD", "true"]},
        "ExposedPorts": {"80/tcp": {}},
    }
    place = write_files(tmp_path / "layout", make_oci([make_tar([*BASE, entry("su", b"", mode=0o4755)])], config))

    image = import_image(store, place, "a")

    assert image.config.env == {"PATH": "/opt/bin:/bin", "EMPTY": ""}
    assert (image.config.working_dir, image.config.user, image.config.cmd) == ("/srv", "app", ("tool", "-v"))
    assert [line.split(" ")[0] for line in image.left_out] == [
        "VOLUME",
        "HEALTHCHECK",
        *([] if IS_ROOT else ["owners"]),
    ]
    assert stat.S_IMODE((root_of(store) / "su").stat().st_mode) == 0o755


def test_a_command_that_may_be_an_entrypoint_s_arguments_is_not_taken(store: Images, tmp_path: Path) -> None:
    config = {"Entrypoint": ["/start.sh"], "Cmd": ["serve"], "User": "1001"}
    place = write_files(tmp_path / "layout", make_oci([make_tar(BASE)], config))

    image = import_image(store, place, "a")

    assert (image.config.cmd, image.config.entrypoint) == ((), ("/start.sh",))
    assert [line.split(" ")[0] for line in image.left_out] == ["ENTRYPOINT", "USER"]


def test_of_an_index_the_image_for_this_machine_is_taken(store: Images, tmp_path: Path) -> None:
    files = make_oci([make_tar(BASE)])
    manifest = json.loads(files["index.json"])["manifests"][0]
    unsaid = {**manifest, "digest": "sha256:" + "0" * 64}
    other = {**unsaid, "platform": {"architecture": "other", "os": "linux"}}
    attests = {**other, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    own = {**manifest, "platform": {"architecture": made.MACHINE, "os": "linux"}}
    files["index.json"] = json.dumps({"manifests": [attests, unsaid, other, own]}).encode()

    assert import_image(store, write_files(tmp_path / "layout", files), "a").digest == manifest["digest"]


def test_an_image_is_replaced_and_its_former_files_go_when_no_jail_has_them(store: Images, tmp_path: Path) -> None:
    for name, content in (("one", b"1"), ("two", b"2")):
        (tmp_path / name).write_bytes(make_tar([entry("file", content)]))
    import_image(store, str(tmp_path / "one"), "a")
    used = store.open("a")

    import_image(store, str(tmp_path / "two"), "a")

    assert (Path(used.path) / "file").read_bytes() == b"1"
    assert (root_of(store) / "file").read_bytes() == b"2"
    used.close()
    store.collect()
    assert not Path(used.path).exists()


def test_a_removed_image_is_gone_with_its_files(store: Images, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(make_tar(BASE))
    import_image(store, str(tmp_path / "one"), "a")
    root = root_of(store)

    store.remove("a")

    assert not root.exists()
    assert store.list() == []
    with pytest.raises(NoImage, match="agentos image import"):
        store.open("a")


def test_an_import_that_is_killed_leaves_nothing_to_the_next_one(store: Images, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(make_tar(BASE))
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom agentos.images import importer, store\n"
        "importer.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "importer.import_image(store.Images(Path(sys.argv[1])), sys.argv[2], 'a')\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "state", tmp_path / "one"], check=False)
    trees = tmp_path / "state" / "images" / "trees"
    assert len(list(trees.iterdir())) == 1

    store.collect()

    assert list(trees.iterdir()) == []
    assert store.list() == []


def test_zstd_needs_a_module_and_its_absence_is_told(
    store: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentos.images.streams.ZSTD_MODULES", ("no_such_module",))
    (tmp_path / "one").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))

    with pytest.raises(BadArchive, match="zstd, which this Python can't read"):
        import_image(store, str(tmp_path / "one"), "a")


def test_an_unpacked_size_is_known(store: Images, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(make_tar([entry("file", bytes(100_000))]))

    image: Image = import_image(store, str(tmp_path / "one"), "a")

    assert image.bytes >= 100_000
    assert image.entries == 2
