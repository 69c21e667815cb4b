"""REPLAY_START, REPLAY_STATUS and REPLAY_STOP: what was recorded, done again without an effect outside."""

from collections.abc import Sequence
from typing import Any, Literal

from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

ReplayState = Literal["IDLE", "RUNNING", "COMPLETED", "ERROR"]


@record
class ReplayStarted(SuccessfulReply):
    """``total_entries`` recorded calls are going to be replayed. ``notes`` say what can't be as it was.

    ``name`` is the agent's that lives the life again; empty for a text.
    """

    state: ReplayState
    total_entries: int
    notes: Sequence[str] = ()
    name: str = ""


@record
class ReplayStart(Request[ReplayStarted]):
    """Have an agent live a recorded life again, in a jail without a network, with its calls answered from there.

    ``path`` is the recording's name or directory, ``agent`` the agent or its life ``NAME/2``; without it all lives are
    replayed, each alone. ``code`` is another directory with the program. Or replay the text of RECORD_STATUS, which is
    ``recording`` as well as ``recording_data``: STORE, FETCH, DELETE and KEYS are done in a scope of the replay's own
    and compared, other calls are skipped. The operator alone; one replay at a time, and ten that go on live.

    With ``path``: calls with a number below ``until`` are answered from the recording. ``then`` says what follows:
    ``stop`` ends the replay, and with ``live`` calls are done, with today's rights. ``edits`` are other answers of
    THINK by the call's number, such as ``{"12": {"content": "no"}}``. Live questions are asked of ``model``, if it is
    given. With ``live``, several lives and no ``agent`` all go on together, once each has come to the number ``until``
    of the recording's order. What goes on live is recorded; with ``hold`` its files stay in an overlay, and its jail is
    there for commands after its end, until it is killed.
    """

    op = Op.REPLAY_START
    recording: str | None = None
    recording_data: str | None = None
    path: str | None = None
    agent: str | None = None
    code: str | None = None
    until: int | None = None
    then: Literal["stop", "live"] | None = None
    edits: dict[str, dict[str, Any]] | None = None
    model: str | None = None
    hold: bool | None = None


@record
class Drift:
    """Words that differ where an answer was found all the same. ``kind`` says what has changed, ``where`` its place."""

    kind: str
    where: str
    recorded: str
    now: str


@record
class LifeProgress:
    """One of several lives that are replayed; fields as in :class:`ReplayProgress`.

    ``agent`` is the one that goes on live in its place, if it is forked.
    """

    life: str
    state: ReplayState
    verdict: str | None
    total_entries: int
    entries_replayed: int
    entries_skipped: int
    divergence: str | None
    error: str | None
    drift: Sequence[Drift]
    masks: dict[str, int]
    sealed: int
    notes: Sequence[str]
    recording: str | None = None
    agent: str | None = None


@record
class ReplayedCall:
    """The recorded call with the number ``n``: made again ``exact``, ``masked``, ``drifted``, or ``diverged``."""

    n: int
    how: str
    differences: Sequence[Drift]


@record
class ReplayProgress(SuccessfulReply):
    """A replay that runs or has ended. ``progress`` goes from 0 to 1, ``current_entry`` to ``total_entries``.

    ``verdict`` is None until it has ended: identical, drifted, diverged, exhausted, unfinished or can't. ``divergence``
    says which call had no answer, or another one, and how it differs; ``error`` why there was no replay. ``masks``
    counts the calls that were equal only after masks, by mask; ``sealed`` attempts to reach the network. ``recording``
    is the directory of the one that is made of it, once it has ended, if it goes on live. Of several ``lives`` the
    verdict is the worst, and the rest their sum. ``calls`` are the last 1,000 that were made again, if they were asked
    for.
    """

    state: ReplayState
    verdict: str | None
    progress: float
    current_entry: int
    total_entries: int
    entries_replayed: int
    entries_skipped: int
    divergence: str | None
    error: str | None
    drift: Sequence[Drift]
    masks: dict[str, int]
    sealed: int
    notes: Sequence[str]
    recording: str | None = None
    lives: Sequence[LifeProgress] = ()
    calls: Sequence[ReplayedCall] | None = None


@record
class ReplayStatus(Request[ReplayProgress]):
    """How far a replay is, by its agent's ``name`` or the last one, and what it has found. The operator alone.

    With ``calls``, also what was found of each recorded call.
    """

    op = Op.REPLAY_STATUS
    name: str | None = None
    calls: bool = False


@record
class ReplayStopped(SuccessfulReply):
    """Nothing of it runs."""

    state: ReplayState


@record
class ReplayStop(Request[ReplayStopped]):
    """End the replay of the agent ``name``, or all, and forget them. The operator alone."""

    op = Op.REPLAY_STOP
    name: str | None = None
