"""SNAPSHOT, SNAPSHOTS and FORK: moments of an agent's overlay, to go back to and to go on from."""

from collections.abc import Sequence
from typing import Annotated

from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.codec import Rule
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

MAX_FORKS = 32
Count = Annotated[int, Rule(lambda count: 1 <= count <= MAX_FORKS, f"a whole number from 1 to {MAX_FORKS}")]
Names = Annotated[Sequence[str], Rule(lambda names: len(names) <= MAX_FORKS, f"at most {MAX_FORKS} names")]


@record
class SnapshotTaken(SuccessfulReply):
    """The snapshot's id; its own layer has ``bytes`` on disk and ``paths``, 0 if nothing was changed since the last."""

    snapshot: str
    bytes: int
    paths: int


@record
class Snapshot(Request[SnapshotTaken]):
    """Keep what the agent ``name`` has changed in its overlay, its private keys, and its unread mail.

    ``NAME@LABEL`` is the moment's address, without a ``label`` it has its id. A program that runs is held still for it,
    and goes on. An agent may take 16 of itself, and of each agent below it.
    """

    op = Op.SNAPSHOT
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
class SnapshotsReply(SuccessfulReply):
    """The oldest first, without those that were removed."""

    snapshots: Sequence[SnapshotInfo]


@record
class Snapshots(Request[SnapshotsReply]):
    """The snapshots of the agent ``name``, or all; with ``remove`` that one is removed first, by its id or label.

    A label needs the ``name``. The operator alone.
    """

    op = Op.SNAPSHOTS
    name: str | None = None
    remove: str | None = None


@record
class ForkedAgent:
    """An agent that goes on from the moment."""

    id: int
    name: str


@record
class Forked(SuccessfulReply):
    """They run."""

    agents: Sequence[ForkedAgent]


@record
class Fork(Request[Forked]):
    """Start ``count`` agents like ``name`` that go on from a ``snapshot``, given by label or id, or from now.

    Each works in an overlay of its own, begins with the private keys of that moment, and has budgets of its own. They
    are called ``NAME-1``, ``NAME-2`` and so on where ``names`` has no names for all; all come up or none. An
    agent may do that with agents below it: the forks are children of the same parent.
    """

    op = Op.FORK
    name: str
    count: Count = 1
    snapshot: str | None = None
    names: Names = ()
