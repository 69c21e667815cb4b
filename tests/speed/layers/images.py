"""Images: how long one is imported, and what it adds to the start of an agent."""

import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from compileall import compile_dir
from functools import partial
from pathlib import Path
from statistics import median

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
        with place.serve() as kernel, Caller(kernel.socket) as caller:
            import_pythons(Images(kernel.socket.parent / "state"), place.directory)
            yield from starts(caller, 10 if place.quick else 30)


def import_pythons(store: Images, directory: Path) -> None:
    """Two images with a Python; of the one that is called so the modules are compiled, as the host's are."""
    root, archive = directory / "root", directory / "python.tar"
    root.mkdir()
    add_python(make_root(root))
    for name in ("uncompiled", "python"):
        archive.write_bytes(tar_root(root))
        import_image(store, str(archive), name)
        [encodings] = root.glob("usr/local/lib/python3.*/encodings")  # all others that it starts with are in its binary
        compile_dir(encodings, quiet=1, stripdir=root)


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
    uncompiled = {**inside, "image": "uncompiled"}
    ways: Mapping[str, Callable[[str], float]] = {
        "host": lambda name: spawned(caller, {"name": name, "command": host}),
        "image": lambda name: spawned(caller, {"name": name, **inside}),
        "uncompiled": lambda name: spawned(caller, {"name": name, **uncompiled}),
        "root": lambda name: spawned(caller, {"name": name, **inside, "user": "root"}),
    }
    taken = in_turn(ways, rounds)
    more = {way: [one - host for one, host in zip(taken[way], taken["host"], strict=True)] for way in taken}
    note = f"of Python's modules none compiled {median(more['uncompiled']):.1f} ms"
    yield Result.of(ROWS[1], more["image"], note=note)
    yield Result.of(ROWS[2], more["root"])
