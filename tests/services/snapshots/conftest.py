"""A directory of the host's, and an overlay of it whose layer a test fills as overlayfs does."""

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from attrs import define

from agentos.services.snapshots import beneath
from agentos.services.snapshots.choice import Wanted
from agentos.services.snapshots.overlays import Diff, Outcome, Overlays
from agentos_sdk.values import HostIds

ROOT = os.geteuid() == 0
OWNER = 4321 if ROOT else os.geteuid()
AGENT = HostIds(1610699000, 1610699000) if ROOT else None
Tree = dict[str, str | None]
"""Contents by path, and None for a directory."""


@define
class Overlaid:
    """The directory, its overlay's layer, and the calls."""

    project: Path
    state: Path
    overlays: Overlays
    name: str = "w"
    upper: Path = Path()

    @property
    def tree(self) -> Path:
        return self.upper / "tree"

    async def open(self) -> None:
        self.upper = Path((await self.overlays.open(self.name, str(self.project), AGENT)).upper)

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        """A file of the agent's, in directories that the project has as well."""
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def make(self, path: str) -> Path:
        """A new directory of the agent's: nothing of the project's is seen in it."""
        (self.tree / path).mkdir(parents=True)
        os.setxattr(self.tree / path, "user.overlay.opaque", b"y")
        return self.tree / path

    def delete(self, path: str) -> None:
        """Hide a name of the project's."""
        (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(self.tree / path, stat.S_IFCHR, 0)

    async def diff(self, *paths: str, texts: bool = False) -> Diff:
        return await self.overlays.diff(self.name, paths, texts)

    async def apply(self, *paths: str, also: Sequence[str] = (), **resolve: str) -> Outcome:
        """Apply what is changed now; ``resolve`` has sides by path, with ``__`` for a dot."""
        sides = {path.replace("__", "."): side for path, side in resolve.items()}
        shown = await self.diff(*paths)
        return await self.overlays.apply(self.name, Wanted(shown.digest, paths, also, sides))  # type: ignore[arg-type]

    async def undo(self, apply: str | None = None) -> Outcome:
        return await self.overlays.undo(self.name, apply)


def read_tree(top: Path) -> Tree:
    """All that is below a directory; links as ``-> TARGET``."""
    found: Tree = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = path.read_text() if path.is_file() else None
    return found


def fill(top: Path) -> None:
    """The project of these tests."""
    for name, text in {"a.txt": "a\n", "sub/b.txt": "b\n", "sub/c.txt": "c\n", "old/deep/d.txt": "d\n"}.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    (top / "link").symlink_to("a.txt")
    if ROOT:
        for path in (top, *top.rglob("*")):
            os.chown(path, OWNER, OWNER, follow_symlinks=False)


@pytest.fixture
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aos-", dir="/var/tmp"))
    yield made
    with beneath.open_top(str(made.parent)) as parent:  # any depth
        beneath.remove_tree(parent, made.name)


@pytest.fixture
async def overlaid(place: Path) -> Overlaid:
    """An overlay of a filled project, opened for a life."""
    (place / "project").mkdir()
    (place / "state").mkdir(mode=0o700)
    fill(place / "project")
    found = Overlaid(place / "project", place / "state", Overlays(place / "state"))
    await found.open()
    return found
