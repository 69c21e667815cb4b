"""DIFF, APPLY, UNDO and ROLLBACK: what an agent has changed in its overlay of a host directory."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.codec import Rule
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

MAX_PATHS = 1000
Paths = Annotated[Sequence[str], Rule(lambda paths: len(paths) <= MAX_PATHS, f"at most {MAX_PATHS} paths")]


@record
class OverlayChange:
    """A path that differs from the host's directory. ``size`` in bytes; ``mode`` in octal; of a deleted one the old.

    ``obeyed`` says why it is applied only with ``also``, and ``root`` is the name to give there. ``conflict`` says why
    one side must be chosen, ``blocked`` why it can't be applied. ``diff`` is a text's difference.
    """

    path: str
    change: Literal["created", "changed", "deleted", "type"]
    kind: Literal["file", "link", "directory", "other"]
    size: int
    mode: str
    obeyed: str | None = None
    root: str | None = None
    conflict: str | None = None
    blocked: str | None = None
    diff: str | None = None


@record
class BranchCommits:
    """New ``commits`` on a ``branch`` of the ``repository``, ``""`` at the top. ``dropped`` ones the branch loses."""

    repository: str
    branch: str
    commits: int
    dropped: int


@record
class Diffed(SuccessfulReply):
    """The changes by path, of which ``more`` are left out of a long list; ``digest`` is of all of them.

    ``commits`` are those of git repositories, of which objects and refs are among the changes.
    """

    changes: Sequence[OverlayChange]
    digest: str
    more: int = 0
    commits: Sequence[BranchCommits] = ()


@record
class Diff(Request[Diffed]):
    """What the agent ``name`` has changed in its overlay: at and below ``paths``, or everywhere.

    With ``content`` text files have their differences.
    """

    op = Op.DIFF
    name: str
    paths: Paths = ()
    content: bool = False


@record
class RolledBack(SuccessfulReply):
    """The agent works from that moment on; ``restarted``: it ran, and was started again."""

    restarted: bool


@record
class Rollback(Request[RolledBack]):
    """Throw away what the agent ``name`` has changed since a snapshot, given by label or id, or since ``start``.

    To a snapshot it also gets its private keys and unread mail back.
    """

    op = Op.ROLLBACK
    name: str
    snapshot: str


@record
class LeftPath:
    """A path that was left as it is, and why."""

    path: str
    reason: str


@record
class Applied(SuccessfulReply):
    """The paths that were applied, and what was left; ``apply`` is the id for UNDO, None if nothing was applied.

    ``more`` paths are left out of long lists.
    """

    applied: Sequence[str]
    conflicts: Sequence[LeftPath]
    apply: str | None = None
    more: int = 0


@record
class Apply(Request[Applied]):
    """Make the changes of an agent's overlay in the host's directory; the operator alone.

    ``digest`` is that of the DIFF of the same ``paths`` that was shown. Names that programs of the host obey are
    applied if ``also`` has them. ``resolve`` decides conflicts by path: ``ours`` is the agent's version, ``theirs`` the
    host's.
    """

    op = Op.APPLY
    name: str
    digest: str
    paths: Paths = ()
    also: Paths = ()
    resolve: Mapping[str, Literal["ours", "theirs"]] = {}


@record
class Undone(SuccessfulReply):
    """The paths that are as they were, and those that were left because the host has changed them since."""

    undone: Sequence[str]
    conflicts: Sequence[LeftPath]
    more: int = 0


@record
class Undo(Request[Undone]):
    """Take back an APPLY of this agent's changes, by default the last one; the operator alone."""

    op = Op.UNDO
    name: str
    apply: str | None = None
