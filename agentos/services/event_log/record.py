"""Events in the log: the callers that each concerns, and its JSON, encoded once for all readers and the file."""

import time
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from agentos_sdk.encoding import codec

Severity = Literal["info", "warning", "error"]
Party: TypeAlias = int | str
"""A caller, by its id; or what several connections or lives share: ``guest ada``, ``account boss/worker``."""

Share: TypeAlias = tuple[Party, Party]
"""What an event is charged to: a family, which is the outermost caller above its source, and the source itself."""

KERNEL: Final = "kernel"  # the name that events without an agent concern; no agent has it
OPERATOR: Final = "operator"  # the party of all connections of the operator


class Draft(Struct, frozen=True):
    """An event without a number. ``data`` is a JSON object.

    ``agent_ids`` and ``names`` are the callers that it concerns. ``key_scope`` and ``key`` are those of STATE_CHANGED.
    ``parties`` see it too, and so do the parties above them. It is charged to the caller ``charged_to``, or to its
    source. ``emitted``: it comes from EMIT, so the descendants of its
    source see it as well.
    """

    type: str
    data: bytes
    severity: Severity = "info"
    source_agent_id: int = 0  # 0 is the kernel
    agent_ids: tuple[int, ...] = ()
    names: tuple[str, ...] = (KERNEL,)
    parties: tuple[Party, ...] = ()
    charged_to: int | None = None
    key_scope: str | None = None
    key: str | None = None
    emitted: bool = False


class Record(Struct, frozen=True, gc=False):
    """An event of the log. ``seq`` counts up without gaps within a ``boot``; ``at`` is seconds since the epoch.

    ``above`` are the parties above ``agent_ids``, which see it too. All descendants of ``below`` see an emitted event.
    ``share`` is what it is charged to. ``text`` is the event's JSON without its age and the closing brace.
    """

    seq: int
    boot: str
    type: str
    source_agent_id: int
    agent_ids: tuple[int, ...]
    names: tuple[str, ...]
    above: tuple[Party, ...]
    below: Party | None
    severity: Severity
    at: float
    key_scope: str | None
    key: str | None
    share: Share
    text: bytes

    def encode(self, now: float) -> bytes:
        """The event's JSON; ``now`` is seconds since the epoch."""
        return b'%s,"age_ms":%d}' % (self.text, max(0.0, now - self.at) * 1000)


def number(draft: Draft, seq: int, boot: str, above: tuple[Party, ...], below: Party | None, share: Share) -> Record:
    """The record of an event that happens now."""
    at = time.time()
    text = b'{"type":%s,"data":%s,"source_agent_id":%d,"seq":%d,"boot":"%s","severity":"%s","at":%.6f' % (
        codec.encode(draft.type),
        draft.data,
        draft.source_agent_id,
        seq,
        boot.encode(),
        draft.severity.encode(),
        at,
    )
    names, key = (draft.agent_ids, draft.names, above, below), (draft.key_scope, draft.key)
    return Record(seq, boot, draft.type, draft.source_agent_id, *names, draft.severity, at, *key, share, text)
