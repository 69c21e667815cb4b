"""SHUTDOWN and STATUS: the kernel as a whole."""

from collections.abc import Mapping, Sequence

from agentos_sdk.encoding.codec import Seconds
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .inspect import ModelState
from .request import Request, SuccessfulReply


@record
class Stopping(SuccessfulReply):
    stopping: bool


@record
class Shutdown(Request[Stopping]):
    """Stop the kernel: all agents in order, then the kernel itself, which closes all connections.

    Answers when that has begun. No agent gets more than ``grace`` seconds between SIGTERM and SIGKILL.
    """

    op = Op.SHUTDOWN
    grace: Seconds | None = None


@record
class Attention:
    """Something for a person to act on: its ``kind``, the agent's ``name`` if it is about one, and a sentence.

    Kinds: ``failed``, ``restarts``, ``late``, ``isolation``, ``budget``, ``model``, ``approval``, ``mail``, ``audit``
    and ``storage``.
    """

    kind: str
    name: str | None = None
    text: str


@record
class AuditStatus:
    """The audit log: the number of the last entry on disk, and of entries that are lost so far.

    ``checked_at``, in seconds since the epoch, is when the kernel checked the end of the log, as it does when it
    starts; ``problem`` is what it found then, or why the log can't be written now.
    """

    entries: int
    lost: int
    checked_at: float
    problem: str | None


@record
class KernelStatus(SuccessfulReply):
    """The kernel's state. ``agents`` are counted by state; those that have ended are, too.

    ``model`` is None without one; ``isolation`` until the layers have been tried; ``config``, the path of the
    configuration file, for a kernel without one and for callers other than the operator. ``openai_endpoint``: agents
    find the model by HTTP, too.
    """

    kernel_version: str
    up_ms: int
    agents: Mapping[str, int]
    attention: Sequence[Attention]
    model: ModelState | None
    openai_endpoint: bool
    isolation: str | None
    audit: AuditStatus
    config: str | None


@record
class Status(Request[KernelStatus]):
    """Get the state of the kernel as a whole, and what needs attention."""

    op = Op.STATUS
