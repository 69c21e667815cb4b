"""Files that commands write where there is no room for them: the error names the file, and no part of it is left."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.userland.cli.main import cli
from agentos.userland.whole_files import replacing
from tests.support.kernel import Kernel, environment

ROOM = 200  # bytes that a file may have


@contextmanager
def little_room() -> Iterator[None]:
    """Writing more than so much to a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("is_there", [False, True])
def test_init_leaves_no_half_of_a_configuration(tmp_path: Path, is_there: bool) -> None:
    file = tmp_path / "agentos.toml"
    if is_there:
        file.touch()
    with little_room():
        failed = CliRunner().invoke(cli, ["init", str(file)])

    assert (failed.exit_code, failed.output) == (1, f"agentos: {file}: File too large\n")
    assert file.read_bytes() == b""
    assert CliRunner().invoke(cli, ["init", str(file)]).exit_code == 0


@pytest.mark.parametrize("template", ["echo", "loop", "pipeline"])
def test_new_leaves_no_half_of_an_agent(tmp_path: Path, template: str) -> None:
    place = tmp_path / "agent"
    with little_room():
        failed = CliRunner().invoke(cli, ["new", str(place), "--template", template])

    assert (failed.exit_code, failed.output.startswith(f"agentos: {place}")) == (1, True), failed.output
    assert [*place.iterdir()] == []
    assert CliRunner().invoke(cli, ["new", str(place), "--template", template]).exit_code == 0


@pytest.mark.parametrize("size", [ROOM + 1, 1 << 20])
def test_a_file_that_is_replaced_keeps_what_it_had(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.write_text("former")

    with pytest.raises(OSError, match="File too large") as error, little_room(), replacing(file) as out:
        out.write(b"x" * size)

    assert (error.value.filename, file.read_text()) == (str(file), "former")
    assert [*tmp_path.iterdir()] == [file]


def test_a_directory_that_is_gone_is_named_by_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error, replacing(tmp_path / "gone/file"):
        pass

    assert error.value.filename == str(tmp_path / "gone/file")


COPIES = [
    (("box:/workspace/large", "PLACE/large"), b"", "large: File too large"),
    (("box:/workspace", "PLACE"), b"", "workspace/large: File too large"),
    (("-", "box:/workspace/in"), b"x" * 1_000_000, "stdin, which is kept in "),
]


def test_a_copy_that_has_no_room_is_named_and_not_left(kernel: Kernel, tmp_path: Path) -> None:
    kernel.spawn("box")
    with kernel.client() as client:
        assert client.exec(["sh", "-c", "head -c 1000000 /dev/zero > large"], name="box")["exit_code"] == 0
    bounded = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh"]  # blocks
    for words, given, said in COPIES:
        put = [word.replace("PLACE", str(tmp_path)) for word in words]
        command = [*bounded, sys.executable, "-m", "agentos", "cp", "--socket", kernel.socket, *put]

        done = subprocess.run(command, input=given, capture_output=True, env=environment(kernel.place), check=False)

        assert (done.returncode, said in done.stderr.decode()) == (1, True), done
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
