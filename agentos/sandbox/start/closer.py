"""Close descriptors in a thread, a little later: the last one of a namespace costs Linux a millisecond of CPU time."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable

import trio
from attrs import define, field

DELAY = 0.025  # seconds until they are closed: what ended may have a successor, which is started meanwhile
MAX_DELAYED = 200  # descriptors; with more, the first are closed without a delay


@define(eq=False)
class Closer:
    """Closes descriptors soon; at most one thread is at it, however many come at once."""

    busy: bool = False  # a thread is closing
    _fds: deque[int] = field(factory=deque)
    _lock: threading.Lock = field(factory=threading.Lock)  # of ``busy``: a thread with nothing left may be about to end
    _hurried: threading.Event = field(factory=threading.Event)

    def close(self, fds: Iterable[int]) -> None:
        """Close these in :data:`DELAY` seconds, and return at once."""
        with self._lock:
            self._fds.extend(fds)
            if len(self._fds) > MAX_DELAYED:
                self.hurry()
            if self.busy:
                return
            self.busy = True
        try:
            trio.lowlevel.start_thread_soon(self._close_all, lambda result: result.unwrap())
        except RuntimeError:  # no thread can be started
            self._close_now()

    def hurry(self) -> None:
        """Close without a delay what is not closed yet: something waits for it, such as an image to be unmounted."""
        self._hurried.set()

    def _close_all(self) -> None:
        self._hurried.wait(DELAY)
        self._hurried.clear()
        self._close_now()

    def _close_now(self) -> None:
        while True:
            with self._lock:
                if not self._fds:
                    self.busy = False
                    return
                fd = self._fds.popleft()
            with contextlib.suppress(OSError):  # it is closed all the same; the next ones must be closed, too
                os.close(fd)
