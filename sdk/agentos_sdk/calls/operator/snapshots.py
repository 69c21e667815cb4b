"""SNAPSHOT and SNAPSHOTS: moments of an agent's overlay that it can go back to."""

from collections.abc import Sequence

from agentos_sdk.calls.request import Request
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op


@record
class SnapshotTaken:
    """The snapshot's id; its own layer has ``bytes`` on disk and ``paths``, 0 if nothing was changed since the last."""

    success: bool = True
    snapshot: str
    bytes: int
    paths: int


@record
class Snapshot(Request[SnapshotTaken]):
    """Keep what the agent ``name`` has changed in its overlay, its private keys, and its unread mail.

    ``NAME@LABEL`` is the moment's address, without a ``label`` it has its id. A program that runs is held still for it,
    and goes on; the operator alone.
    """

    op = Op.SNAPSHOT
    reply = SnapshotTaken
    name: str
    label: str | None = None


@record
class SnapshotInfo:
    """A snapshot of the agent ``name``, taken ``at`` seconds since the epoch; ``parent`` is the id of the one before.

    ``bytes`` are those of its own layer on disk.
    """

    snapshot: str
    name: str
    label: str | None
    at: float
    bytes: int
    parent: str | None


@record
class SnapshotsReply:
    """The oldest first, without those that were removed."""

    success: bool = True
    snapshots: Sequence[SnapshotInfo]


@record
class Snapshots(Request[SnapshotsReply]):
    """The snapshots of the agent ``name``, or all; with ``remove`` that one is removed first, by its id or label.

    A label needs the ``name``. The operator alone.
    """

    op = Op.SNAPSHOTS
    reply = SnapshotsReply
    name: str | None = None
    remove: str | None = None
