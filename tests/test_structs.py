"""Records in files of the kernel's own, whatever has become of these."""

from pathlib import Path

import msgspec
import pytest

from agentos.private_files import UnsafeFile, replace_file
from agentos.structs import read_json
from tests.support.runs.rows import each_row


class Record(msgspec.Struct, frozen=True):
    name: str


@each_row(
    "content",
    [
        b"",
        b'{"name": "a"',
        b'{"name": 1}',
        b'["a"]',
        b'{"name": "\xff"}',
        b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b', "name": "a"}',
        b'{"name": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_record_is_one_kind_of_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(msgspec.DecodeError):
        read_json(path, Record)


def test_a_record_is_read_from_a_private_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(FileNotFoundError):
        read_json(path, Record)

    replace_file(path, b'{"name": "a", "of a later release": [[]]}')
    assert read_json(path, Record) == Record("a")

    (tmp_path / "link.json").symlink_to(path)
    with pytest.raises(UnsafeFile):
        read_json(tmp_path / "link.json", Record)
