"""``agentos image`` and IMAGES beside a kernel that runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentos.images.store import Images
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.images import entry, make_oci, make_tar, write_files
from tests.support.kernel import Kernel, environment, until
from tests.system.agents import ask, relay

LITTLE_MEMORY = """
import re, resource
import agentos.images.importer, agentos.userland.cli.files.images
from agentos.__main__ import main
with open("/proc/self/status") as file:
    used = int(re.search(r"VmData:\\s+(\\d+)", file.read())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (8 << 20), resource.RLIM_INFINITY))
main()
"""
FILES = make_tar([entry("bin/tool", b"x" * 5000, mode=0o4755)])


def agentos(kernel: Kernel, *words: str, status: int = 0) -> str:
    ended = run_agentos(words, kernel.place, {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket})
    assert ended.returncode == status, ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture
def layout(tmp_path: Path) -> str:
    config = {"Cmd": ["tool"], "Env": ["PATH=/bin"], "Healthcheck": {}}
    return write_files(tmp_path / "layout", make_oci([FILES], config))


def test_an_image_is_imported_listed_looked_at_counted_and_removed(kernel: Kernel, layout: str) -> None:
    place = ["--state-dir", str(kernel.state_dir)]

    made = agentos(kernel, "image", "import", layout, "tool", *place)

    assert "HEALTHCHECK isn't taken" in made
    assert ("set-id bits" in made) == (os.geteuid() != 0)
    assert "tool is made of the oci layout: 3 entries" in made
    assert "tool" in agentos(kernel, "image", "ls")
    shown = json.loads(agentos(kernel, "image", "inspect", "tool", "--json"))
    assert shown["config"]["cmd"] == ["tool"]
    assert shown["image_layers"] == 1
    assert "command    tool" in agentos(kernel, "image", "inspect", "tool")
    held = json.loads(agentos(kernel, "storage", *place, "--json"))["storage"]
    assert next(one for one in held if one["kind"] == "images")["bytes"] > 5000
    assert "tool is removed" in agentos(kernel, "image", "rm", "tool")
    assert "no images" in agentos(kernel, "image", "ls")
    assert "there is no image 'tool'" in agentos(kernel, "image", "rm", "tool", status=1)
    assert "there is no image 'tool'" in agentos(kernel, "image", "inspect", "tool", status=1)


def test_an_archive_of_names_that_fill_the_memory_is_refused(kernel: Kernel, tmp_path: Path) -> None:
    """Within 1 GiB, or less where the process may take less."""
    names = f"{'d' * 200}/" * 19
    (tmp_path / "names.tar").write_bytes(make_tar(entry(f"{names}{number}", b"") for number in range(3_000)))
    command = ("image", "import", str(tmp_path / "names.tar"), "names", "--state-dir", str(kernel.state_dir))

    ended = subprocess.run([sys.executable, "-c", LITTLE_MEMORY, *command], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.search(r"^agentos: names wasn't made: .*memory$", ended.stderr, re.MULTILINE), ended.stderr
    assert "no images" in agentos(kernel, "image", "ls")
    Images(kernel.state_dir).collect()
    assert not [*(kernel.state_dir / "images" / "trees").iterdir()]


def test_an_archive_that_is_refused_is_told_in_one_line(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "cut.tar").write_bytes(FILES[:2000])
    place = ["--state-dir", str(kernel.state_dir)]

    cut = agentos(kernel, "image", "import", str(tmp_path / "cut.tar"), "cut", *place, status=1)
    missing = agentos(kernel, "image", "import", str(tmp_path / "none"), "cut", *place, status=1)

    assert cut.splitlines()[-1].endswith("cut wasn't made: the archive: it is cut within bin/tool")
    assert missing.splitlines()[-1].endswith(f"cut wasn't made: {tmp_path / 'none'}: No such file or directory")


def test_an_agent_neither_lists_nor_removes_images(kernel: Kernel) -> None:
    with kernel.client() as client:
        allowed = {"level": "sandboxed", "allow": {"send": ["*"], "calls": ["*"]}}
        number = relay(kernel, client, "asks", permissions=allowed)

        answers = [ask(client, number, "images"), ask(client, number, "images", remove="any")]
        client.kill("asks")

    assert [answer["code"] for answer in answers] == ["permission_denied"] * 2


def test_files_that_no_image_has_are_gone_after_a_start(own_kernel: OwnKernel, layout: str) -> None:
    kernel = own_kernel()
    trees = kernel.state_dir / "images" / "trees"
    agentos(kernel, "image", "import", layout, "tool", "--state-dir", str(kernel.state_dir))
    (trees / "0123456789abcdef" / "root").mkdir(parents=True)

    kernel.stop()
    kernel.start_again()

    until(lambda: len(list(trees.iterdir())) == 1, "one tree")
    assert "tool" in agentos(kernel, "image", "ls")
