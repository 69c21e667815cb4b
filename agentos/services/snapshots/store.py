"""Where the layers of overlays lie, and what is known of them: a directory for each agent in the state directory.

::

    layers/NAME/record.json    the directory, when the layer began, what was applied
    layers/NAME/l-ID/          a layer: ``tree`` and ``work``, as overlayfs wants them
    layers/NAME/r-ID/          a run: its record, and what it has replaced

NAME is the agent's lineage. Everything blocks.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec
from msgspec import Struct

from agentos.private_files import display_path, hold_directory, read_file, replace_file
from agentos_sdk.values import HostIds

from . import beneath, run
from .beneath import Stamp
from .changes import Base

KEPT_RUNS = 5  # applies of one agent that can be undone, and undos whose files are kept
MAX_DEPTH = 32  # sealed layers of one overlay: above that they are merged
_COARSE = 5  # CLOCK_REALTIME_COARSE, which lags behind by a tick
_TICK_POLL = 0.0005  # seconds; a tick takes 1 to 10 ms


class BadLayer(Exception):
    """A layer can't be used; the text says why and what to do."""


class Record(Struct):
    """What is known of an agent's overlay. ``since`` is its beginning, in nanoseconds, ``inode`` the directory's.

    ``stamps`` are the entries of the directory as applies left them. ``applied`` are the ids of applies that can be
    undone, the last one last, and ``runs`` all whose files are kept. ``doing`` is the run that isn't finished.
    ``declined`` are changes that the operator doesn't want, by path. ``settled``: the last apply has left nothing.
    ``discarded``: the next life begins a new layer.
    """

    directory: str
    inode: int
    since: int
    layer: str
    stamps: dict[str, Stamp] = {}
    applied: list[str] = []
    runs: list[str] = []
    doing: str = ""
    declined: dict[str, str] = {}
    settled: bool = False
    discarded: bool = False

    @property
    def base(self) -> Base:
        return Base(self.since, self.stamps)


class Store:
    """The layers of one kernel. ``state`` is its directory, held."""

    def __init__(self, state: Path) -> None:
        self._layers = state / "layers"

    def make_place(self) -> str:
        with hold_directory(self._layers) as held:
            return display_path(held)

    def list_names(self) -> AbstractSet[str]:
        """The lineages with a layer."""
        found = os.listdir(self._layers) if self._layers.is_dir() else []
        return {name for name in found if (self._layers / name / "record.json").exists()}

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[Path]:
        """The directory of one agent, by a path that other processes can use."""
        with hold_directory(self._layers), hold_directory(self._layers / name) as held:
            yield Path(display_path(held))

    def load(self, name: str) -> Record | None:
        """What is known of an agent's overlay, None if it has none."""
        if "/" in name or not (self._layers / name / "record.json").is_file():
            return None
        with self.hold(name) as place:
            return _read(place)

    def save(self, name: str, record: Record) -> None:
        with self.hold(name) as place:
            replace_file(place / "record.json", msgspec.json.encode(record))

    def begin(self, name: str, directory: str, owner: HostIds | None) -> Record:
        """A new layer over a directory, whose record replaces the former one; the former layer is removed."""
        with self.hold(name) as place:
            former, shown = _read(place), os.stat(directory, follow_symlinks=False)
            layer = f"l-{secrets.token_hex(8)}"
            record = Record(directory, shown.st_ino, _begin_clock(), layer)
            if former is not None and former.directory == directory:
                record = msgspec.structs.replace(record, applied=former.applied, runs=former.runs)
            _make_layer(place / layer, shown, owner)
            self.save(name, record)
        self.sweep(name)
        return record

    def sweep(self, name: str) -> None:
        """Remove what an agent's record doesn't name."""
        with self.hold(name) as place:
            record = _read(place)
            named = {"record.json", *((record.layer, *(f"r-{one}" for one in record.runs)) if record else ())}
            if record is not None and record.doing:
                named.add(f"r-{record.doing}")
            with beneath.open_top(str(place)) as top:
                for other in set(os.listdir(top)) - named:
                    if stat.S_ISDIR(os.stat(other, dir_fd=top, follow_symlinks=False).st_mode):
                        beneath.remove_tree(top, other)

    def finish(self, name: str) -> None:
        """Finish the run that a killed kernel has left, or drop it."""
        record = self.load(name)
        if record is None or not record.doing:
            return
        with self.hold(name) as place:
            found = run.resume(place / f"r-{record.doing}")
            self.end_run(name, record, found)
        self.sweep(name)

    def end_run(self, name: str, record: Record, done: run.Run | None) -> None:
        """Write into the record what a run has done; None: nothing."""
        record.doing = ""
        if done is not None:
            for step in done.steps:
                if step.done and step.left is not None and not stat.S_ISDIR(step.left.mode):
                    record.stamps[step.path] = step.left
                elif step.done:
                    record.stamps.pop(step.path, None)
            record.runs = [*record.runs, done.id][-KEPT_RUNS:]
            if done.undoes:
                record.applied = [one for one in record.applied if one != done.undoes]
                record.settled = False
            elif any(step.done for step in done.steps):
                record.applied.append(done.id)
            record.applied = [one for one in record.applied if one in record.runs]
        self.save(name, record)


def _begin_clock() -> int:
    """This instant, in nanoseconds, by a clock that parts all ctimes: of what is changed after the return none is less.

    ctime is CLOCK_REALTIME where a program has looked at the former one (Linux 6.13), and else the coarse clock.
    """
    now = time.time_ns()
    while time.clock_gettime_ns(_COARSE) <= now:
        time.sleep(_TICK_POLL)
    return now


def _read(place: Path) -> Record | None:
    try:
        return msgspec.json.decode(read_file(place / "record.json"), type=Record)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise BadLayer(f"{place}/record.json is damaged ({error}): move {place} away") from None


def _make_layer(layer: Path, shown: os.stat_result, owner: HostIds | None) -> None:
    """Make an empty layer, owned by ``owner``; ``shown`` is the directory, whose mode the layer's top replaces."""
    layer.mkdir(mode=0o700)
    for part in (layer / "tree", layer / "work"):
        part.mkdir(mode=0o700)
    os.chmod(layer / "tree", stat.S_IMODE(shown.st_mode) & 0o777)
    if owner is not None:
        for part in (layer / "tree", layer / "work", layer):
            os.chown(part, owner.uid, owner.gid, follow_symlinks=False)
