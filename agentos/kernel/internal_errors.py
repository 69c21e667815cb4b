"""Internal errors: logs each as one short line with a reference; the caller gets only the reference.

A caller may be able to trigger one as often as it likes, and all of this runs in the event loop. So the length and the
number of log lines are bounded. The log handler must not block; that of ``agentos run`` passes lines to a thread.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from attrs import define

from agentos_sdk.errors import Internal

MAX_LINES_PER_SECOND = 5  # log lines
MAX_MESSAGE_CHARS = 200  # characters of an exception's text that are logged
MAX_FRAMES = 6  # innermost traceback frames that are logged

log = logging.getLogger(__name__)


@define
class BugLog:
    """Logs at most ``MAX_LINES_PER_SECOND`` lines a second, counts the rest, and reports the count in the next line."""

    _since: float = 0.0  # start of the current second, monotonic
    _lines: int = 0  # logged in the current second
    _reference: str = ""  # in the last logged line
    _unlogged: int = 0

    def internal(self, bug: BaseException, where: str) -> Internal:
        """Log ``bug`` and return the error to reply. ``where`` names the part of the kernel for the log.

        An error that is only counted gets the reference of the last logged line, which says so.
        """
        now = time.monotonic()
        if now - self._since >= 1:
            self._since, self._lines = now, 0
        if self._lines < MAX_LINES_PER_SECOND:
            self._lines += 1
            self._reference = secrets.token_hex(4)
            before = f" ({self._unlogged} before it were not logged)" if self._unlogged else ""
            last = " (others within this second have this reference)" if self._lines == MAX_LINES_PER_SECOND else ""
            self._unlogged = 0
            log.error("bug %s in %s: %s%s%s", self._reference, where, describe(bug), before, last)
        else:
            self._unlogged += 1
        return Internal(f"a bug in the kernel: look for {self._reference} in its log")


internal = BugLog().internal  # one per process, like the logger


def describe(bug: BaseException) -> str:
    """An exception in one line: type, start of its text, and its innermost frames, the last one first."""
    while isinstance(bug, BaseExceptionGroup):
        bug = bug.exceptions[0]
    try:
        text = str(bug)
    except Exception as error:  # e.g. a KeyError with a key nested too deeply
        text = f"(no text: {type(error).__name__})"
    shown = f": {text[:MAX_MESSAGE_CHARS]!r}{'...' if len(text) > MAX_MESSAGE_CHARS else ''}" if text else ""
    places = " < ".join(reversed(frames(bug)))
    return f"{type(bug).__name__}{shown}{f' at {places}' if places else ''}"


def frames(bug: BaseException) -> Sequence[str]:
    """The innermost frames of a traceback, as ``directory/file.py:line (function)``."""
    kept, traceback = deque[TracebackType](maxlen=MAX_FRAMES), bug.__traceback__
    while traceback is not None:
        kept.append(traceback)
        traceback = traceback.tb_next
    codes = [(at.tb_frame.f_code, at.tb_lineno) for at in kept]
    return [f"{'/'.join(code.co_filename.split('/')[-2:])}:{line} ({code.co_name})" for code, line in codes]
