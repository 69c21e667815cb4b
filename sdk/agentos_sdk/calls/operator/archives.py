"""EXPORT and IMPORT: an agent as a file, for another kernel."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.codec import Rule
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

Part: TypeAlias = Literal["agent", "state", "mailbox", "workspace"]
Parts: TypeAlias = Annotated[Sequence[Part], Rule(lambda parts: parts, "at least one part")]
Path: TypeAlias = Annotated[str, Rule(bool, "a path")]


@record
class ArchivePart:
    """A piece of the archive, base64."""

    data: str


@record
class Exported(SuccessfulReply):
    """The archive's ``size`` in bytes, and what of the agent it doesn't have."""

    size: int
    left_out: Sequence[str]


@record
class Export(Request[Exported]):
    """Write an agent as a tar archive, which comes in CHUNK frames: all of it, or what ``include`` lists.

    Those are its declaration with its script (``agent``), its private keys (``state``), its unread messages
    (``mailbox``) and its files (``workspace``). A program that runs is held still for it. ``stream`` must be true.
    """

    op = Op.EXPORT
    name: str
    include: Parts = ("agent", "state", "mailbox", "workspace")
    stream: bool = True


@record
class ArchiveInput:
    """A CHUNK that a client sends to IMPORT: a piece of the archive, base64; ``eof``: it is the last one."""

    data: str = ""
    eof: bool = False


@record
class ImportedAgent:
    """An agent that runs, with what came with it: ``keys``, ``messages``, and entries of its workspace, ``files``."""

    id: int
    name: str
    keys: int
    messages: int
    files: int


@record
class Imported(SuccessfulReply):
    """``left_out`` is what the archive doesn't have of the agent, such as its permissions."""

    imported: Sequence[ImportedAgent]
    left_out: Sequence[str]


@record
class Import(Request[Imported]):
    """Start the agent of the archive at ``path`` on the kernel's host, called ``as_`` or as before.

    Without ``path`` the archive is sent in CHUNK frames (protocol 2), the last one with ``eof``. The agent has the
    default permissions, its files in a kept workspace, and budgets of its name on this kernel.
    """

    op = Op.IMPORT
    path: Path | None = None
    as_: str | None = None
