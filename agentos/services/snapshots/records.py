"""What is known of an agent's overlay, and of a snapshot: the values of their records."""

from pathlib import Path

import msgspec
from msgspec import Struct

from agentos.private_files import UnsafeFile, display_path, hold_directory, read_file
from agentos.structs import learn

from .beneath import Stamp
from .changes import Base


class BadLayer(Exception):
    """A layer can't be used; the text says why and what to do."""


class Record(Struct):
    """What is known of an agent's overlay. ``since`` is its beginning, in nanoseconds, ``inode`` the directory's.

    ``layer`` is the upper one, empty if the next life makes it, and ``sealed`` are those beneath it, ``NAME/l-ID``
    each, the newest first. ``snapshot`` is the id of the one that it was last, ``returning`` of that which the next
    life goes back to, and ``forked_from`` is NAME@LABEL.

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
    sealed: list[str] = []
    snapshot: str = ""
    returning: str = ""
    forked_from: str = ""

    @property
    def base(self) -> Base:
        return Base(self.since, self.stamps)


class Snapshot(Struct):
    """A moment of an agent's overlay: the ``layers`` that it had, the newest first, over which directory.

    ``name`` is the agent's lineage, ``at`` seconds since the epoch, ``parent`` the id of the snapshot before it.
    ``since`` and ``stamps`` are those of the agent's record. ``account`` is whose keys went along. ``bytes`` and
    ``paths`` are those of the layer that was sealed for it. ``by_agent``: another caller than the operator took it;
    ``recorded``: a recording names it, and it is listed for nothing else.
    """

    id: str
    name: str
    at: float
    layers: list[str]
    directory: str
    inode: int
    since: int
    stamps: dict[str, Stamp] = {}
    label: str = ""
    parent: str = ""
    account: str = ""
    bytes: int = 0
    paths: int = 0
    by_agent: bool = False
    recorded: bool = False

    @property
    def address(self) -> str:
        return f"{self.name}@{self.label or self.id}"


learn(Record, Snapshot)


def read_record(place: Path) -> Record | None:
    """The record in an agent's directory, None if there is none. Raises :class:`BadLayer`."""
    try:
        return msgspec.json.decode(read_file(place / "record.json"), type=Record)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise BadLayer(f"{place}/record.json is damaged ({error}): move {place} away") from None


def read_snapshot(place: Path) -> Snapshot | None:
    """The record in a snapshot's directory, None if there is none. Raises :class:`BadLayer`."""
    try:
        with hold_directory(place) as held:
            return msgspec.json.decode(read_file(held / "record.json"), type=Snapshot)
    except FileNotFoundError:  # it is being made or removed
        return None
    except (UnsafeFile, msgspec.MsgspecError) as error:
        raise BadLayer(f"{display_path(place)}: the snapshot's record can't be used ({error}): move it away") from None
