"""Images that ``agentos image build`` makes, beside those that buildah makes of the same Dockerfile and directory."""

import base64
import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from attrs import frozen

from agentos.images.building.build import Build, Options
from agentos.images.building.dockerfile import Instruction, parse
from agentos.images.building.plan import Run
from agentos.images.importer import import_image
from agentos.images.owners import read_owners
from agentos.images.store import Images
from agentos.userland.cli.files.image_build import run_step
from tests.support.images import tar_root
from tests.support.kernel import Kernel, running
from tests.support.runs.rounds import rounds

from .dockerfiles import DOCKERFILES, WITHOUT_HEREDOCS, make_base, make_context

OF_A_PROGRAM = {"proc", "sys", "dev", "run", "etc/hosts", "etc/resolv.conf", "etc/hostname"}  # each has its own there
AGENT: Mapping[str, Any] = {
    "network": "none",
    "permissions": {"level": "minimal"},
    "restart": "temporary",
    "ready": None,
}
CASES = {**{name: (text, text) for name, text in DOCKERFILES.items()}, **WITHOUT_HEREDOCS}


@frozen
class Made:
    """An image: each path with its type, mode, owner and content, and what it says of its programs."""

    tree: Mapping[str, str]
    config: Mapping[str, Any]


@frozen
class Builders:
    """Both with an image ``base`` of the same files."""

    place: Path
    kernel: Kernel

    def build(self, text: str) -> Made:
        """Build by this product."""
        images = Images(self.kernel.state_dir)

        def run(one: Instruction, act: Run, image: str) -> None:
            with self.kernel.client() as client:
                run_step(client, one, act, {**AGENT, "name": image, "image": image}, 60)

        options = Options(cached=False)
        made = Build(images, run, lambda one, cached: None, options).build(
            parse(text), str(self.place / "context"), "made"
        )
        opened = images.open("made")
        try:
            top = Path(os.path.realpath(opened.path))
            owners = read_owners(top.parent)
            found = {path: owners.find(path) for path in _walk(top)}
            tree = {path: _describe(top / path, (one.uid, one.gid), one.bits) for path, one in found.items()}
        finally:
            opened.close()
        config = made.config
        return Made(
            tree,
            {"env": dict(config.env), "dir": config.working_dir or "/", "user": config.user, "cmd": list(config.cmd)},
        )

    def build_by_buildah(self, text: str) -> Made:
        file = self.place / "Dockerfile"
        file.write_text(text)
        self.buildah(
            "bud",
            "--isolation",
            "chroot",
            "--layers=false",
            "--format",
            "docker",
            "--pull-never",
            "-f",
            str(file),
            "-t",
            "made",
            str(self.place / "context"),
        )
        images = json.loads((self.place / "store" / "vfs-images" / "images.json").read_text())
        [image] = (one for one in images if "localhost/made:latest" in one.get("names", ()))
        top = self.place / "store" / "vfs" / "dir" / image["layer"]
        tree = {path: _describe(top / path, _ids(top / path), 0) for path in _walk(top)}
        name = "=" + base64.b64encode(f"sha256:{image['id']}".encode()).decode()
        said = json.loads((self.place / "store" / "vfs-images" / image["id"] / name).read_text())["config"]
        env = dict(one.split("=", 1) for one in said.get("Env", ()))
        user = said.get("User", "").partition(":")[0]
        return Made(tree, {"env": env, "dir": said.get("WorkingDir") or "/", "user": user, "cmd": said.get("Cmd", [])})

    def buildah(self, *words: str) -> None:
        places = ("--root", str(self.place / "store"), "--runroot", str(self.place / "run"))
        done = subprocess.run(
            ["buildah", *places, "--storage-driver", "vfs", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _walk(top: Path) -> Sequence[str]:
    paths = (str(path.relative_to(top)) for path in top.rglob("*"))
    return [path for path in paths if not {path, path.split("/")[0]} & OF_A_PROGRAM]


def _ids(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid


def _describe(path: Path, ids: tuple[int, int], bits: int) -> str:
    mode, owner = path.lstat().st_mode, f"{ids[0]}:{ids[1]}"
    if stat.S_ISLNK(mode):
        return f"{owner} -> {os.readlink(path)}"
    shown = f"{owner} {stat.S_IMODE(mode) | bits:o}"
    if stat.S_ISDIR(mode):
        return f"{shown} directory"
    assert stat.S_ISREG(mode), path
    data = path.read_bytes()
    return f"{shown} {hashlib.sha256(data).hexdigest() if len(data) > 200 else data!r}"


@pytest.fixture(scope="module")
def builders(kernels: None) -> Iterator[Builders]:
    if shutil.which("buildah") is None:
        pytest.skip("nothing to compare with: this host has no buildah (`apt-get install buildah`)")
    if os.geteuid() != 0:
        pytest.skip("an image's owners are kept by a kernel with root only")
    with tempfile.TemporaryDirectory(prefix="aos-buildah-", dir="/var/tmp") as place, running() as kernel:
        base = tar_root(make_base(Path(place) / "root"))
        context = Path(place) / "context"
        context.mkdir()
        make_context(context)
        Path(place, "base").mkdir()
        Path(place, "base", "base.tar").write_bytes(base)
        Path(place, "base", "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        both = Builders(Path(place), kernel)
        import_image(Images(kernel.state_dir), f"{place}/base/base.tar", "base")
        both.buildah("bud", "--isolation", "chroot", "-t", "base", f"{place}/base")
        yield both


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("case", [*CASES][: rounds(3)])
def test_an_image_is_the_one_that_buildah_makes(case: str, builders: Builders) -> None:
    text, other = (dedent(each).lstrip() for each in CASES[case])

    made, expected = builders.build(text), builders.build_by_buildah(other)

    paths = {*made.tree, *expected.tree}
    differing = {path: (made.tree.get(path), expected.tree.get(path)) for path in paths}
    assert {path: pair for path, pair in differing.items() if pair[0] != pair[1]} == {}
    assert made.config == expected.config
