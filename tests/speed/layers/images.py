"""Images: how long one is imported, and what it adds to the start of an agent."""

import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from agentos.images.importer import import_image
from agentos.images.store import Images
from tests.speed.caller import Caller
from tests.speed.layers.overlays import run, timed
from tests.speed.place import Place
from tests.speed.processes import ROOT, pinned
from tests.speed.results import Result, Row
from tests.speed.starts.jails import BARE, in_turn, spawned
from tests.support.images import add_python, entry, make_root, tar_root

DIRECTORIES, FILES, SIZE = 700, 11_000, 21_800  # bytes of each file
MEGABYTES = FILES * SIZE // 1_000_000
ROWS = (
    Row(f"image of {MEGABYTES} MB: import", " s", most=8, floor="tar, sync"),
    Row("SPAWN in an image: to its first call, more than without", " ms", most=3),
    Row("SPAWN of root inside an image: to its first call, more than without", " ms"),
)


def images(place: Place) -> Iterator[Result]:
    with pinned(place.cpu):
        yield imported(place, 1 if place.quick else 3)
        root = place.directory / "root"
        root.mkdir()
        add_python(make_root(root))
        archive = place.directory / "python.tar"
        archive.write_bytes(tar_root(root))
        with place.serve() as kernel, Caller(kernel.socket) as caller:
            import_image(Images(kernel.socket.parent / "state"), str(archive), "python")
            yield from starts(caller, 10 if place.quick else 30)


def imported(place: Place, rounds: int) -> Result:
    """By the command, its own start included, beside GNU tar."""
    archive, tree, state = (place.directory / name for name in ("image.tar", "tree", "state"))
    write_root(archive)
    state.mkdir(mode=0o700)
    agentos = (sys.executable, "-m", "agentos", "image", "import", str(archive))
    ours, theirs = [], []
    for number in range(rounds):
        tree.mkdir()
        theirs.append(timed(lambda: (run("tar", "-xf", str(archive), "-C", str(tree)), run("sync", "-f", str(tree)))))
        run("rm", "-r", str(tree))
        argv = (*agentos, f"image-{number}", "--state-dir", str(state))
        ours.append(timed(partial(run, *argv, cwd=ROOT)))
    return Result.of(ROWS[0], [ms / 1000 for ms in ours], [ms / 1000 for ms in theirs])


def write_root(archive: Path) -> None:
    with tarfile.open(archive, "w") as tar:
        for number in range(DIRECTORIES):
            tar.addfile(entry(f"usr/dir-{number}/", mode=0o755)[0])
        for number in range(FILES):
            info, content = entry(f"usr/dir-{number % DIRECTORIES}/file-{number}", os.urandom(SIZE))
            tar.addfile(info, io.BytesIO(content))


def starts(caller: Caller, rounds: int) -> Iterator[Result]:
    host = [os.path.realpath(sys.executable), "-I", "-S", "-c", BARE]
    inside = {"image": "python", "command": ["/usr/local/bin/python3", *host[1:]]}
    ways: Mapping[str, Callable[[str], float]] = {
        "host": lambda name: spawned(caller, {"name": name, "command": host}),
        "image": lambda name: spawned(caller, {"name": name, **inside}),
        "root": lambda name: spawned(caller, {"name": name, **inside, "user": "root"}),
    }
    taken = in_turn(ways, rounds)
    for row, way in zip(ROWS[1:], ("image", "root"), strict=True):
        more = [one - host for one, host in zip(taken[way], taken["host"], strict=True)]
        yield Result.of(row, more)
