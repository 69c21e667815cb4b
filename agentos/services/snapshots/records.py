"""What is known of an agent's overlay, of a snapshot, and of a run of changes: the values of their records."""

import stat
from pathlib import Path
from typing import Literal, cast

import msgspec
from msgspec import Struct

from agentos.private_files import UnsafeFile, display_path, hold_directory, replace_file
from agentos.structs import learn, read_json

from .beneath import Stamp
from .changes import Base

Act = Literal["remove", "rmdir", "mkdir", "chmod", "put"]
Phase = Literal["staging", "acting", "done"]


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
        return read_json(place / "record.json", Record)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise BadLayer(f"{place}/record.json is damaged ({error}): move {place} away") from None


def read_snapshot(place: Path) -> Snapshot | None:
    """The record in a snapshot's directory, None if there is none. Raises :class:`BadLayer`."""
    try:
        with hold_directory(place) as held:
            return read_json(held / "record.json", Snapshot)
    except FileNotFoundError:  # it is being made or removed
        return None
    except (UnsafeFile, msgspec.MsgspecError) as error:
        raise BadLayer(f"{display_path(place)}: the snapshot's record can't be used ({error}): move it away") from None


class Look(Struct, omit_defaults=True):
    """How an entry looks besides its content; ``owner`` None: that of the directory. Times are nanoseconds."""

    mode: int = 0
    mtime: int = 0
    owner: tuple[int, int] | None = None
    target: str = ""  # of a symbolic link
    xattrs: dict[str, str] = {}  # values in base64


class Step(Struct, omit_defaults=True):
    """One change of one name. ``expected`` is what lies there before, None: nothing.

    ``source`` is the path of the file to put, in the directory that the run takes files from, and ``content`` the
    sha256 that it must have, or else ``origin`` the state that it must be in; a put without a source makes a symbolic
    link. ``saved`` is what was there, ``kept`` the sha256 of its copy, if it was copied, and ``left`` what is there
    since. ``staged`` is the inode of what was staged. ``conflict`` is why it wasn't done.
    """

    act: Act
    path: str
    expected: Stamp | None = None
    source: str = ""
    content: str = ""
    origin: Stamp | None = None
    look: Look = msgspec.field(default_factory=Look)
    saved: Look | None = None
    kept: str = ""
    staged: int = 0
    left: Stamp | None = None
    done: bool = False
    conflict: str = ""


class Run(Struct, omit_defaults=True):
    """The record of a run. ``undoes`` is the id of the apply that it undoes.

    ``moves``: its staging directory can be moved into its own.
    """

    id: str
    directory: str
    steps: list[Step]
    undoes: str = ""
    stage_inode: int = 0  # of its staging directory
    moves: bool = False
    phase: Phase = "staging"

    @property
    def stage(self) -> str:
        """The name of its staging directory."""
        return f".agentos-apply-{self.id}"


learn(Run)


class CannotApply(Exception):
    """A run can't be done, and has changed nothing; the text says why."""


def write_run(place: Path, run: Run) -> None:
    """Write a run's record, with its directory; synced."""
    place.mkdir(mode=0o700, exist_ok=True)
    replace_file(place / "run.json", msgspec.json.encode(run))


def read_run(place: Path) -> Run:
    """A run's record. ``FileNotFoundError`` if there is none, :class:`CannotApply` if it is damaged."""
    try:
        return read_json(place / "run.json", Run)
    except msgspec.MsgspecError as error:
        raise CannotApply(f"{place}/run.json is damaged: {error}") from None


def inverse(run: Run) -> list[Step]:
    """The steps that undo a run, in their order; files to put are at their number in its directory ``old``."""
    steps = []
    for number, step in reversed([*enumerate(run.steps)]):
        if not step.done:
            continue
        old, left = step.expected, step.left
        if step.act == "chmod" and old is not None:
            steps.append(Step("chmod", step.path, left, look=Look(stat.S_IMODE(old.mode))))
        elif old is None:
            steps.append(Step("rmdir" if step.act == "mkdir" else "remove", step.path, left))
        else:
            look, act = step.saved or Look(), "mkdir" if stat.S_ISDIR(old.mode) else "put"
            source = str(number) if stat.S_ISREG(old.mode) else ""
            origin = old if source and run.moves else None
            steps.append(Step(cast(Act, act), step.path, left, source, step.kept, origin, look))
    return steps
