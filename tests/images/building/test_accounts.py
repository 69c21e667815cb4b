"""The ids of the users and groups that a Dockerfile names."""

from pathlib import Path

import pytest

from agentos.images.building.accounts import find_owner, find_user
from agentos.images.store import MAX_ACCOUNTS
from agentos.services.snapshots import beneath
from tests.support.runs.rows import each_row

Ids = tuple[int, int] | None

# A comment may be in any encoding.
PASSWD = b"root:x:0:0:r\xf6\xf6t:/:\nweb:x:33:44::/:\nodd:x:33x:1::/:\nlong:x:999999999999:1::/:\nshort\n"
GROUP = b"root:x:0:\nstaff:x:50:\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_bytes(PASSWD)
    (tmp_path / "etc" / "group").write_bytes(GROUP)
    return tmp_path


@each_row(
    ("text", "owner", "user"),
    [
        ("web", (33, 44), (33, 44)),
        ("web:staff", (33, 50), (33, 50)),
        ("web:77", (33, 77), (33, 77)),
        (":staff", (0, 50), (0, 50)),
        ("33", (33, 33), (33, 44)),
        ("77", (77, 77), (77, 0)),
        ("", (0, 0), (0, 0)),
        ("nobody", None, None),
        ("web:nobody", None, None),
        ("odd", None, None),
        ("long", None, None),
        ("short", None, None),
    ],
)
def test_names_and_numbers_are_those_of_the_tree(text: str, owner: Ids, user: Ids, tree: Path) -> None:
    with beneath.open_top(str(tree)) as top:
        assert (find_owner(top, text), find_user(top, text)) == (owner, user)


def test_accounts_of_more_than_the_bound_are_not_read(tree: Path) -> None:
    file = tree / "etc" / "passwd"
    file.write_bytes(PASSWD + b"#" * (MAX_ACCOUNTS - len(PASSWD)))

    with beneath.open_top(str(tree)) as top:
        assert find_owner(top, "web") == (33, 44)
        file.write_bytes(file.read_bytes() + b"#")
        assert find_owner(top, "web") is None
