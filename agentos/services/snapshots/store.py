"""Where the layers of overlays lie, and what is known of them: a directory for each agent in the state directory.

::

    layers/NAME/record.json    the directory, when the layer began, what was applied
    layers/NAME/l-ID/          a layer: ``tree`` and ``work``, as overlayfs wants them; sealed with ``seal.json``
    layers/NAME/r-ID/          a run: its record, and what it has replaced
    snapshots/ID/              a snapshot: its record, which names layers, and the keys that went along

NAME is the agent's lineage. A layer that no record names is garbage, as is a snapshot without a record: so each step
writes files first and then one record, and what a killed kernel leaves is whole or removed at the next start. Snapshots
and forks name layers of other agents, so references change, and layers are removed, under one lock. Everything blocks.
"""

import contextlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from agentos.private_files import UnsafeFile, display_path, hold_directory, read_file, replace_file
from agentos.structs import learn, read_json
from agentos_sdk.values import HostIds

from . import beneath, layers, run
from .layers import Seal
from .records import BadLayer, Record, Run, Snapshot, read_record, read_snapshot

log = logging.getLogger(__name__)

KEPT_RUNS = 5  # applies of one agent that can be undone, and undos whose files are kept
MAX_DEPTH = 32  # sealed layers of one overlay: above that they are merged
_COARSE = 5  # CLOCK_REALTIME_COARSE, which lags behind by a tick
_TICK_POLL = 0.0005  # seconds; a tick takes 1 to 10 ms

learn(Seal)


class Store:
    """The layers and snapshots of one kernel. ``state`` is its directory, held."""

    def __init__(self, state: Path) -> None:
        self._layers, self._snapshots = state / "layers", state / "snapshots"
        self.references = threading.RLock()  # held while a record begins or ceases to name layers
        self.making: set[str] = set()  # ids of snapshots, and layers, that no record names yet

    def make_place(self) -> str:
        with hold_directory(self._layers) as held:
            return display_path(held)

    def make_empty(self) -> str:
        """An empty directory, by a path that other processes can use."""
        with hold_directory(self._layers.parent / "empty") as held:
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
            return read_record(place)

    def save(self, name: str, record: Record) -> None:
        with self.hold(name) as place:
            replace_file(place / "record.json", msgspec.json.encode(record))

    def begin(self, name: str, directory: str, owner: HostIds | None) -> Record:
        """A new layer over a directory, whose record replaces the former one; the former layer is removed."""
        with self.references, self.hold(name) as place:
            former, shown = read_record(place), os.stat(directory, follow_symlinks=False)
            layer = _new_name()
            _make_layer(place / layer, stat.S_IMODE(shown.st_mode), owner)
            record = Record(directory, shown.st_ino, _begin_clock(place / layer), layer)
            if former is not None and former.directory == directory:
                record = msgspec.structs.replace(record, applied=former.applied, runs=former.runs)
            replace_file(place / "record.json", msgspec.json.encode(record))
        if former is not None:
            self.collect({name, *(layer.partition("/")[0] for layer in former.sealed)})
        return record

    def add_upper(self, name: str, record: Record, owner: HostIds | None) -> None:
        """A new upper layer for a record that has none, over its sealed ones."""
        shown = self.find_tree(record.sealed[0]) if record.sealed else Path(record.directory)
        with self.references, self.hold(name) as place:
            record.layer = _new_name()
            _make_layer(place / record.layer, stat.S_IMODE(os.stat(shown, follow_symlinks=False).st_mode), owner)
            self.save(name, record)

    def find_tree(self, layer: str) -> Path:
        """The tree of a layer ``NAME/l-ID``, by a path that other processes can use."""
        name, _, part = layer.partition("/")
        with self.hold(name) as place:
            return place / part / "tree"

    def forget(self, name: str) -> None:
        """Remove all that is known of an agent, with its layers; no other record names these."""
        with self.references, hold_directory(self._layers) as held, beneath.open_top(display_path(held)) as top:
            beneath.remove_tree(top, name)

    def forget_unless_named(self, name: str) -> None:
        """As :meth:`forget`, unless a snapshot or another agent names one of its layers."""
        with self.references:
            if not any(layer.startswith(f"{name}/") for layer in self._list_named()):
                self.forget(name)

    def written_at(self, name: str) -> float:
        """When a record was last written, in seconds since the epoch."""
        with self.hold(name) as place:
            return (place / "record.json").stat().st_mtime

    def is_empty(self, name: str, layer: str) -> bool:
        """Whether nothing is in a layer of this agent's."""
        return not os.listdir(self.find_tree(f"{name}/{layer}"))

    def sweep(self, name: str) -> None:
        """Remove what neither the agent's record nor, of its layers, any other record names."""
        with self.references, self.hold(name) as place:
            try:
                record, layers = read_record(place), self._list_named()
            except BadLayer as error:
                log.warning("layers of %s that may not be needed any more stay: %s", name, error)
                return
            named = {"record.json", *(one.removeprefix(f"{name}/") for one in layers if one.startswith(f"{name}/"))}
            if record is not None:
                named |= {record.layer, f"r-{record.doing}", *(f"r-{one}" for one in record.runs)}
            with beneath.open_top(str(place)) as top:
                for other in set(os.listdir(top)) - named:
                    if stat.S_ISDIR(os.stat(other, dir_fd=top, follow_symlinks=False).st_mode):
                        beneath.remove_tree(top, other)

    def _list_named(self) -> AbstractSet[str]:
        """The sealed layers that records and snapshots name."""
        records = [self.load(name) for name in self.list_names()]
        found = {layer for record in records if record is not None for layer in record.sealed}
        return found | self.making | {layer for snapshot in self.list_snapshots() for layer in snapshot.layers}

    # -- Snapshots ---------------------------------------------------------------------------------------------------

    def list_snapshots(self) -> list[Snapshot]:
        """All snapshots, the oldest first. Raises :class:`BadLayer`."""
        if not self._snapshots.is_dir():
            return []
        try:
            with hold_directory(self._snapshots) as held:
                found = [read_snapshot(held / name) for name in os.listdir(held)]
        except UnsafeFile as error:
            raise BadLayer(f"{error.filename}: {error.strerror}") from None
        return sorted((one for one in found if one is not None), key=lambda one: (one.at, one.id))

    def find_snapshot(self, name: str, moment: str) -> Snapshot | None:
        """An agent's snapshot by its label or its id."""
        own = [one for one in self.list_snapshots() if one.name == name]
        return next((one for one in own if one.label == moment), None) or next(
            (one for one in own if one.id == moment), None
        )

    def add_snapshot(self, snapshot: Snapshot, kept: bytes) -> None:
        """Write a snapshot, with what is kept besides layers; they are synced before."""
        with hold_directory(self._snapshots) as held, hold_directory(held / snapshot.id) as place:
            replace_file(place / "kept.json", kept)
            replace_file(place / "record.json", msgspec.json.encode(snapshot))

    def read_kept(self, snapshot: Snapshot) -> str:
        with hold_directory(self._snapshots / snapshot.id) as place:
            return read_file(place / "kept.json")

    def remove_snapshot(self, snapshot: Snapshot) -> None:
        """Remove a snapshot, and its layers unless an agent or another snapshot has them."""
        with self.references:
            with hold_directory(self._snapshots / snapshot.id) as place:
                (place / "record.json").unlink()
            self.collect(layer.partition("/")[0] for layer in snapshot.layers)

    def collect(self, names: Iterable[str] | None = None) -> None:
        """Remove what no agent and no snapshot names; the layers of these agents alone, if they are given."""
        with self.references:
            if self._snapshots.is_dir():
                with hold_directory(self._snapshots) as held, beneath.open_top(display_path(held)) as top:
                    for name in os.listdir(top):
                        if name not in self.making and not (held / name / "record.json").exists():
                            beneath.remove_tree(top, name)
            found = os.listdir(self._layers) if self._layers.is_dir() else []
            for name in set(found if names is None else names):
                if (self._layers / name).is_dir():
                    self.sweep(name)

    # -- Sealed layers -----------------------------------------------------------------------------------------------

    def copy(self, name: str, layers_: Sequence[str]) -> str:
        """A new layer of an agent's, not yet named, with what layers show together, the newest first; synced."""
        with self.hold(name) as place, contextlib.ExitStack() as stack:
            tops = [stack.enter_context(beneath.open_top(str(self.find_tree(one)))) for one in layers_]
            made = _new_name()
            self.making.add(f"{name}/{made}")
            (place / made).mkdir(mode=0o700)
            try:
                (place / made / "tree").mkdir(mode=0o700)
                with beneath.open_top(str(place / made / "tree")) as target:
                    layers.copy_layers(tops, target)
                    beneath.sync(target)
            except BaseException:
                self.making.discard(f"{name}/{made}")
                with beneath.open_top(str(place)) as top:
                    beneath.remove_tree(top, made)
                raise
        return f"{name}/{made}"

    def seal(self, layer: str) -> Seal:
        """The seal of a layer, which is made if it has none: nothing may change it from now on."""
        tree = self.find_tree(layer)
        path = tree.parent / "seal.json"
        with contextlib.suppress(FileNotFoundError):
            return read_json(path, Seal)
        with beneath.open_top(str(tree)) as top:
            beneath.sync(top)
            found = layers.compute_seal(top)
        replace_file(path, msgspec.json.encode(found))
        return found

    def check(self, snapshot: Snapshot) -> None:
        """Raise :class:`BadLayer` unless all layers of a snapshot are what they were."""
        for layer in snapshot.layers:
            tree = self.find_tree(layer)
            advice = f"{snapshot.address} can't be used: remove it (`agentos snapshots --remove {snapshot.id}`)"
            try:
                with beneath.open_top(str(tree)) as top:
                    expected, found = self.seal(layer), layers.compute_seal(top)
            except OSError as error:
                raise BadLayer(f"{tree}: {error.strerror}: {advice}") from None
            if found.uid != expected.uid:
                raise BadLayer(f"{tree} belongs to uid {found.uid}, and was sealed as uid {expected.uid}'s: {advice}")
            if found.digest != expected.digest:
                raise BadLayer(f"{tree} was changed since it was sealed: its digest doesn't match: {advice}")

    def finish(self, name: str) -> None:
        """Finish the run that a killed kernel has left, or drop it."""
        record = self.load(name)
        if record is None or not record.doing:
            return
        with self.hold(name) as place:
            found = run.resume(place / f"r-{record.doing}")
            self.end_run(name, record, found)
        self.sweep(name)

    def end_run(self, name: str, record: Record, done: Run | None) -> None:
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


def drop_layers(store: Store, name: str, record: Record) -> None:
    """Remove the layers of an overlay that no snapshot and no other agent names; its runs stay. Nothing uses it."""
    others = {layer.partition("/")[0] for layer in record.sealed}
    record.layer, record.sealed, record.stamps, record.discarded = "", [], {}, True
    with store.references:
        store.save(name, record)
        store.collect({name, *others})


def _begin_clock(layer: Path) -> int:
    """This instant, in nanoseconds, by a clock that parts all ctimes: of what is changed after the return none is less.

    ctime is the coarse clock, but from Linux 6.13 on CLOCK_REALTIME where a program has looked at the former one, and
    of what is changed afterwards none is less than that. So a ``layer``'s own is changed and looked at, twice.
    """
    now = time.time_ns()
    for _ in range(2):
        os.chmod(layer, 0o700)
        if os.stat(layer).st_ctime_ns > now:
            return now
    while time.clock_gettime_ns(_COARSE) <= now:
        time.sleep(_TICK_POLL)
    return now


def _new_name() -> str:
    return f"l-{secrets.token_hex(8)}"


def _make_layer(layer: Path, mode: int, owner: HostIds | None) -> None:
    """Make an empty layer, owned by ``owner``; ``mode`` is that of the directory, which the layer's top replaces."""
    layer.mkdir(mode=0o700)
    for part in (layer / "tree", layer / "work"):
        part.mkdir(mode=0o700)
    os.chmod(layer / "tree", mode & 0o777)
    if owner is not None:
        for part in (layer / "tree", layer / "work", layer):
            os.chown(part, owner.uid, owner.gid, follow_symlinks=False)
