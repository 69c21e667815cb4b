"""Notices for a person: the operator's command gets each as JSON on standard input.

What agents wrote is data there, never an argument or a word of a shell. One command runs at a time, and none sooner
than :data:`MIN_INTERVAL` after the one before; what comes meanwhile goes to the next. Nothing waits for it.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio
from attrs import define, field

from agentos.sandbox.policy import Program
from agentos.sandbox.status import Status
from agentos.services.events import Event
from agentos_sdk.errors import CallError

from .output_streams import Tail
from .run import CommandRequest, CommandRunner, OnHost

log = logging.getLogger("agentos.notices")

MIN_INTERVAL: Final = 2.0  # seconds from the start of a command until that of the next
TIMEOUT: Final = 10.0  # seconds that a command may take; then it and all that it started are killed
MAX_WAITING: Final = 64  # notices; of further ones only the number is kept
MAX_OF_FAMILY: Final = 8  # of these, of an agent with all its descendants, or of a guest
MAX_BYTES: Final = 256 << 10  # bytes of one command's input
MAX_LOGGED_CHARS: Final = 300  # characters of a failed command's output


@define(eq=False)
class Notices:
    """Runs ``command``, none if empty, in ``directory`` on the host, as the kernel's user, with this environment.

    ``key`` is the command's in the configuration, ``listed`` the name of the list in its input. ``describe`` gives the
    family of an event, and its notice as JSON; None: no notice. Families take turns.
    """

    key: str
    command: Sequence[str]
    directory: str
    environment: Mapping[str, str]
    runner: CommandRunner
    listed: str
    describe: Callable[[Event], tuple[str, bytes] | None]
    _waiting: dict[str, deque[bytes]] = field(factory=dict)  # notices by family; none is empty
    _missed: int = 0
    _news: trio.Event = field(factory=trio.Event)

    def take_event(self, event: Event) -> None:
        """A subscriber of events."""
        if (described := self.describe(event)) is None:
            return
        family, notice = described
        if self._make_room(family):
            self._waiting.setdefault(family, deque()).append(notice)
        else:
            self._missed += 1
        self._news.set()

    def _make_room(self, family: str) -> bool:
        """Whether a notice of this family may wait. Where all places are taken, a family with more gives one up."""
        own = len(self._waiting.get(family, ()))
        if own >= MAX_OF_FAMILY:
            return False
        if sum(map(len, self._waiting.values())) < MAX_WAITING:
            return True
        longest = max(self._waiting.values(), key=len)
        if len(longest) <= own + 1:
            return False
        longest.pop()
        self._missed += 1
        return True

    async def serve(self) -> None:
        """Run the command for what is new, until cancelled."""
        while True:
            await self._news.wait()
            began = trio.current_time()
            await self._run(self._take_input())
            await trio.sleep_until(began + MIN_INTERVAL)

    def _take_input(self) -> bytes:
        """As many notices as fit into one input, and the number of those that were dropped."""
        notices: list[bytes] = []
        room = MAX_BYTES
        while self._waiting and (room > 0 or not notices):
            notices.append(self._take_next())
            room -= len(notices[-1])
        missed, self._missed = self._missed, 0
        if not self._waiting:
            self._news = trio.Event()
        return b'{"%s":[%s],"missed":%d}\n' % (self.listed.encode(), b",".join(notices), missed)

    def _take_next(self) -> bytes:
        """The oldest notice of the family whose turn it is, which then waits behind the others."""
        family = next(iter(self._waiting))
        queue = self._waiting.pop(family)
        found = queue.popleft()
        if queue:
            self._waiting[family] = queue
        return found

    async def _run(self, given: bytes) -> None:
        out, err = Tail(), Tail()
        program = Program(tuple(self.command), self.environment, self.directory, stdin=given)
        try:
            done = await self.runner.run(OnHost(), CommandRequest(program, TIMEOUT, "notify", 0, out, err))
        except CallError as error:
            log.warning("%s can't be run: %s", self.key, error)
            return
        if done.timed_out:
            log.warning("%s was killed: it didn't end within %g s", self.key, TIMEOUT)
        elif done.status != Status(0, None):
            text = (bytes(err.kept) or bytes(out.kept)).decode(errors="replace").strip()[-MAX_LOGGED_CHARS:]
            log.warning("%s failed, %s%s", self.key, done.status, f": {text}" if text else "")
