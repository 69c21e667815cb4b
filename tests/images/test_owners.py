"""Owners, set-id bits and capabilities of an image: a second tree, in ids of the store, has them."""

import os
import stat
from pathlib import Path

import pytest

from agentos.images.building.build import Build, Options
from agentos.images.building.dockerfile import BadDockerfile, parse
from agentos.images.errors import BadStore
from agentos.images.importer import import_image
from agentos.images.owners import CAPABILITY, LIST, TREE, Owners, read_owners
from agentos.images.store import Image, Images
from agentos.sandbox.host_ids import STORE_IDS
from tests.support.images import HARD, LINK, entry, make_oci, make_tar, tar_files
from tests.support.runs.rows import each_row

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can give files to the ids of the store")
FIRST = STORE_IDS[0]
CAPABLE = bytes.fromhex("0100000200200000" + "00" * 12)  # cap_net_raw+ep, revision 2
THIRD = b"\1\0\0\3" + CAPABLE[4:]  # an id of a root follows
BELOW = [
    entry("bin/", mode=0o755),
    entry("bin/su", b"su", mode=0o4755),
    entry("bin/again", kind=HARD, target="bin/su"),
    entry("bin/ping", b"ping", mode=0o755, pax_headers={f"SCHILY.xattr.{CAPABILITY}": CAPABLE.decode("latin-1")}),
    entry("bin/tool", b"tool", mode=0o755),
    entry("var/mail/", mode=0o2775, gid=8),
    entry("srv/a/b/", mode=0o700, uid=33, gid=33),
    entry("srv/a/b/link", kind=LINK, target="x", uid=33, gid=33),
    entry("srv/gone/x", b"", uid=7, gid=7),
    entry("srv/far", b"far", uid=70_000, gid=5),
    entry("etc/passwd", b"root:x:0:0::/:/bin/sh\nweb:x:33:44::/:/bin/sh\n"),
    entry("etc/group", b"root:x:0:\nmail:x:8:\n"),
]
ABOVE = [entry("srv/.wh.gone"), entry("srv/gone/y", b""), entry("bin/tool", b"other", mode=0o755, uid=5, gid=6)]
EXPECTED = {
    "bin": (0, 0, 0o755),
    "bin/su": (0, 0, 0o4755),
    "bin/again": (0, 0, 0o4755),
    "bin/ping": (0, 0, 0o755),
    "bin/tool": (5, 6, 0o755),
    "var": (0, 0, 0o755),
    "var/mail": (0, 8, 0o2775),
    "srv": (0, 0, 0o755),
    "srv/a": (0, 0, 0o755),
    "srv/a/b": (33, 33, 0o711),
    "srv/a/b/link": (33, 33, 0o777),
}


@pytest.fixture
def store(tmp_path: Path) -> Images:
    (tmp_path / "state").mkdir(mode=0o700)
    return Images(tmp_path / "state")


def put(store: Images, tmp_path: Path) -> Image:
    file = tmp_path / "archive"
    file.write_bytes(tar_files(make_oci([make_tar(BELOW), make_tar(ABOVE)])))
    return import_image(store, str(file), "a")


def place_of(store: Images, name: str = "a") -> Path:
    opened = store.open(name)
    opened.close()
    return Path(opened.path).parent


def owned(store: Images, name: str = "a") -> dict[str, tuple[int, int, int]]:
    top = place_of(store, name) / TREE
    found = {str(path.relative_to(top)): path.lstat() for path in top.rglob("*")}
    return {path: (one.st_uid - FIRST, one.st_gid - FIRST, stat.S_IMODE(one.st_mode)) for path, one in found.items()}


@needs_root
def test_what_is_not_simply_root_s_is_once_more_in_a_tree_of_ids_that_no_process_has(
    store: Images, tmp_path: Path
) -> None:
    image = put(store, tmp_path)

    place = place_of(store)
    root, over = place / "root", place / TREE
    assert owned(store) == EXPECTED
    assert over.stat().st_uid == FIRST
    assert (over / "bin/su").samefile(over / "bin/again")
    assert (over / "bin/tool").read_bytes() == b"other"
    assert (over / "bin/su").stat().st_mtime == 1_000_000_000
    assert os.getxattr(over / "bin/ping", CAPABILITY) == b"\1\0\0\3" + CAPABLE[4:] + FIRST.to_bytes(4, "little")
    assert {(path.lstat().st_uid, path.lstat().st_mode & 0o6000) for path in root.rglob("*")} == {(0, 0)}
    assert image.left_out == ("owners beyond 65535 aren't taken: 1 entries have such, and are root's",)


@pytest.mark.skipif(IS_ROOT, reason="root has ids for owners")
def test_an_ordinary_user_is_told_that_owners_and_bits_are_lost(store: Images, tmp_path: Path) -> None:
    image = put(store, tmp_path)

    assert "owners besides root, set-id bits and file capabilities aren't taken: 7 entries" in image.left_out[0]
    assert not (place_of(store) / TREE).exists()


@needs_root
def test_a_build_goes_on_with_the_owners_of_its_base_and_gives_what_it_copies(store: Images, tmp_path: Path) -> None:
    put(store, tmp_path)
    (tmp_path / "context" / "d").mkdir(parents=True)
    (tmp_path / "context" / "d" / "f").write_text("f")
    (tmp_path / "context" / "tool").write_text("mine")
    copies = ("--chown=web d /srv/d", "--chown=:mail d/f /srv/f", "tool /bin/tool", "--chown=9:10 d /srv")

    build(store, tmp_path, "FROM a\n" + "".join(f"COPY {words}\n" for words in copies))

    new = {"srv/d": (33, 44, 0o755), "srv/d/f": (33, 44, 0o644)}
    new |= {"srv/f": (9, 10, 0o644)}
    assert owned(store, "b") == {**{path: one for path, one in EXPECTED.items() if path != "bin/tool"}, **new}
    with pytest.raises(BadDockerfile, match="--chown=nobody: /etc/passwd and /etc/group of the image so far"):
        build(store, tmp_path, "FROM a\nCOPY --chown=nobody d /srv/d\n")


@each_row(
    ("given", "kept"),
    [
        (CAPABLE, CAPABLE),
        (THIRD + bytes(4), CAPABLE),
        (THIRD + b"\xe8\x03\0\0", CAPABLE),
        (CAPABLE + bytes(5), b""),
        (CAPABLE[:12], b""),
        (b"\1\0\0\1" + CAPABLE[4:], b""),
    ],
)
def test_a_capability_is_kept_without_the_id_of_a_root_and_none_of_an_unknown_revision(
    given: bytes, kept: bytes
) -> None:
    owners = Owners()

    owners.note("bin/ping", 0, 0, capability=given)

    assert owners.find("bin/ping").capability == kept


@needs_root
def test_files_of_a_stage_or_an_image_keep_owners_bits_and_capabilities(store: Images, tmp_path: Path) -> None:
    put(store, tmp_path)
    (tmp_path / "context").mkdir()
    copies = ("--from=a /bin /bin", "--from=0 /var /given/var", "--from=a --chown=7:8 --chmod=700 /bin/su /su")

    build(store, tmp_path, "FROM a AS one\nFROM scratch\n" + "".join(f"COPY {words}\n" for words in copies))

    found = owned(store, "b")
    kept = {path: EXPECTED[path] for path in ("bin", "bin/su", "bin/again", "bin/ping", "bin/tool")}
    assert found == {**kept, "given": (0, 0, 0o755), "given/var": (0, 0, 0o755)} | {
        "given/var/mail": (0, 8, 0o2775),
        "su": (7, 8, 0o700),
    }
    assert os.getxattr(place_of(store, "b") / TREE / "bin/ping", CAPABILITY)[4:-4] == CAPABLE[4:]


@needs_root
def test_directories_that_a_copy_or_workdir_makes_belong_to_whom_it_names(store: Images, tmp_path: Path) -> None:
    put(store, tmp_path)
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "f").write_text("f")
    (tmp_path / "context" / "t.tar").write_bytes(make_tar([entry("x", b"x")]))
    text = (
        "FROM a\nCOPY --chown=web f /new/deep/f\nADD --chown=9:10 t.tar /tar/in\nCOPY --chown=web <<E /srv/here/\nE\n"
        "WORKDIR /of/root\nUSER web\nWORKDIR /of/web/too\nUSER 33\nWORKDIR /number\nUSER 9\nWORKDIR /nobody\n"
    )
    build(store, tmp_path, text)

    web, expected = (33, 44, 0o755), {"new/deep/f": (33, 44, 0o644), "srv/here/E": (33, 44, 0o644)}
    expected |= dict.fromkeys(("new", "new/deep", "srv/here", "of/web", "of/web/too", "number"), web)
    expected |= {"tar": (9, 10, 0o755), "tar/in": (9, 10, 0o755), "nobody": (9, 0, 0o755), "of": (0, 0, 0o755)}
    assert {path: one for path, one in owned(store, "b").items() if path not in EXPECTED} == expected


@needs_root
def test_a_step_is_done_again_when_an_owner_in_its_stage_has_changed(store: Images, tmp_path: Path) -> None:
    put(store, tmp_path)
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "f").write_text("f")
    ran = []
    for owner in ("1", "1", "2"):
        text = f"FROM scratch\nCOPY --chown={owner} f /f\nFROM a\nCOPY --from=0 /f /srv/f\nRUN after\n"
        made = Build(store, lambda one, *_: ran.append(owner), lambda *_: None, Options())  # noqa: B023
        made.build(parse(text), str(tmp_path / "context"), "b")
        assert owned(store, "b")["srv/f"][0] == int(owner)
    assert ran == ["1", "2"]


def build(store: Images, tmp_path: Path, text: str) -> None:
    made = Build(store, lambda *_: None, lambda *_: None, Options())
    made.build(parse(text), str(tmp_path / "context"), "b")


@needs_root
def test_a_damaged_list_is_told_and_an_image_of_an_earlier_release_has_none(store: Images, tmp_path: Path) -> None:
    put(store, tmp_path)
    (place_of(store) / LIST).write_text("[")

    with pytest.raises(BadStore, match=r"owners\.json is damaged"):
        read_owners(place_of(store))
    (place_of(store) / LIST).unlink()
    assert len(read_owners(place_of(store))) == 0
