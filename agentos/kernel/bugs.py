"""Internal errors: each is logged as one short line under a reference, and the caller is told the reference alone.

A caller may be able to provoke one as often as it likes, and all this runs in the event loop: neither the length of a
line nor their number depends on it. The log's handler must not block; that of ``agentos run`` hands lines to a thread.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from attrs import define

from agentos_sdk.errors import Internal

PER_SECOND = 5  # lines
MESSAGE = 200  # characters of an exception's text that are logged
FRAMES = 6  # of its traceback, the innermost

log = logging.getLogger(__name__)


@define
class BugLog:
    """Logs at most ``PER_SECOND`` lines a second, counts the rest, and tells with the next line how many those were."""

    _since: float = 0.0  # when this second began
    _lines: int = 0  # in it
    _reference: str = ""  # of the last line
    _unlogged: int = 0

    def internal(self, bug: BaseException, where: str) -> Internal:
        """The error to reply. ``where`` is for the log: which part of the kernel it was.

        What is only counted has the reference of the line that says so.
        """
        now = time.monotonic()
        if now - self._since >= 1:
            self._since, self._lines = now, 0
        if self._lines < PER_SECOND:
            self._lines += 1
            self._reference = secrets.token_hex(4)
            before = f" ({self._unlogged} before it were not logged)" if self._unlogged else ""
            last = " (others within this second have this reference)" if self._lines == PER_SECOND else ""
            self._unlogged = 0
            log.error("bug %s in %s: %s%s%s", self._reference, where, describe(bug), before, last)
        else:
            self._unlogged += 1
        return Internal(f"a bug in the kernel: look for {self._reference} in its log")


internal = BugLog().internal  # one for the process, like the logger


def describe(bug: BaseException) -> str:
    """An exception in one line: type, the beginning of its text, and its innermost frames, the last one first."""
    while isinstance(bug, BaseExceptionGroup):
        bug = bug.exceptions[0]
    try:
        text = str(bug)
    except Exception as error:  # e.g. a KeyError of something nested too deeply
        text = f"(no text: {type(error).__name__})"
    shown = f": {text[:MESSAGE]!r}{'...' if len(text) > MESSAGE else ''}" if text else ""
    places = " < ".join(reversed(frames(bug)))
    return f"{type(bug).__name__}{shown}{f' at {places}' if places else ''}"


def frames(bug: BaseException) -> Sequence[str]:
    """The innermost of its traceback, as ``directory/file.py:line (function)``."""
    kept, traceback = deque[TracebackType](maxlen=FRAMES), bug.__traceback__
    while traceback is not None:
        kept.append(traceback)
        traceback = traceback.tb_next
    codes = [(at.tb_frame.f_code, at.tb_lineno) for at in kept]
    return [f"{'/'.join(code.co_filename.split('/')[-2:])}:{line} ({code.co_name})" for code, line in codes]
