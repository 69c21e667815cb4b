"""What a program of RUN has left is merged into the tree: no list of rights, no owner and no bit gets lost or stays."""

import errno
import os
import struct
from pathlib import Path

import pytest

from agentos.images.building.trees import merge
from agentos.images.errors import BadArchive
from agentos.images.owners import Owners
from agentos.sandbox.host_ids import STORE_IDS
from agentos.services.snapshots import beneath, layers

USER_OBJECT, USER, GROUP_OBJECT, MASK, OTHER = 1, 2, 4, 16, 32
NOBODY_SPECIAL = 0xFFFFFFFF
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, rights, number)
    for tag, rights, number in (
        (USER_OBJECT, 6, NOBODY_SPECIAL),
        (USER, 6, STORE_IDS[0] + 5),
        (GROUP_OBJECT, 4, NOBODY_SPECIAL),
        (MASK, 6, NOBODY_SPECIAL),
        (OTHER, 4, NOBODY_SPECIAL),
    )
)


@pytest.fixture
def merged(tmp_path: Path) -> tuple[Path, Path]:
    """An upper tree, and the one that it is merged into."""
    for name in ("upper", "root"):
        (tmp_path / name).mkdir()
    return tmp_path / "upper", tmp_path / "root"


def merge_all(upper: Path, root: Path, user: tuple[int, int] | None = None) -> Owners:
    owners = Owners()
    with beneath.open_top(str(upper)) as here, beneath.open_top(str(root)) as there:
        assert merge(here, there, owners, user) == []
    return owners


def test_no_list_of_rights_stays_as_it_names_ids_that_an_agent_lacks(merged: tuple[Path, Path]) -> None:
    upper, root = merged
    (upper / "file").write_text("x")
    try:
        os.setxattr(upper / "file", "system.posix_acl_access", ACL)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this file system has no lists of rights")

    merge_all(upper, root)

    assert os.listxattr(root / "file") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to ids of the store")
def test_each_name_of_a_file_has_its_owner_and_bits(merged: tuple[Path, Path]) -> None:
    upper, root = merged
    (upper / "one").write_text("x")
    os.chown(upper / "one", STORE_IDS[0] + 33, STORE_IDS[0] + 44)
    os.chmod(upper / "one", 0o4755)
    for name in ("two", "three"):
        os.link(upper / "one", upper / name)

    owners = merge_all(upper, root)

    for name in ("one", "two", "three"):
        found = owners.find(name)
        assert (found.uid, found.gid, found.bits) == (33, 44, 0o4000), name
        assert (root / name).stat().st_mode & 0o7777 == 0o755
    assert owners.beyond == 0
    assert (root / "one").stat().st_nlink == 3


@pytest.mark.parametrize("name", ["d" * 200, "é" * 100], ids=["ascii", "two bytes each"])
def test_a_path_of_more_bytes_than_linux_takes_is_refused(merged: tuple[Path, Path], name: str) -> None:
    upper, root = merged
    here = os.open(upper, os.O_PATH)
    for _ in range(21):  # only a descriptor leads to the last
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)

    with pytest.raises(BadArchive, match="longer than Linux takes"):
        merge_all(upper, root)


def test_a_path_of_as_many_bytes_as_linux_takes_is_merged(
    merged: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    upper, root = merged
    (upper / "é" / "é").mkdir(parents=True)

    monkeypatch.setattr(layers, "MAX_PATH", 5)
    merge_all(upper, root)
    assert (root / "é" / "é").is_dir()
    monkeypatch.setattr(layers, "MAX_PATH", 4)
    with pytest.raises(BadArchive, match="longer than Linux takes"):
        merge_all(upper, root)
