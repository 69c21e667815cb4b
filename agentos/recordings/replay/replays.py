"""The replay that a kernel runs: one at a time, in the background of the call that starts it."""

import trio
from attrs import define, field

from agentos_sdk.errors import AlreadyExists

from .progress import Progress, Replay, ReplayFailed


@define(eq=False)
class Replays:
    """Runs it; :meth:`serve` must be running. The last one's progress stays until the next begins or it is dropped."""

    progress: Progress = field(factory=Progress)
    _nursery: trio.Nursery | None = None
    _scope: trio.CancelScope | None = None
    _ended: trio.Event = field(factory=trio.Event)

    async def serve(self) -> None:
        """Run replays until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def check_free(self) -> None:
        """Raise ``AlreadyExists`` while a replay runs."""
        if self.progress.state == "RUNNING":
            raise AlreadyExists("a replay runs: wait for its end, or end it by REPLAY_STOP")

    def start(self, replay: Replay) -> Progress:
        """Run a replay; raises ``AlreadyExists`` while another one runs."""
        assert self._nursery is not None, "calls are answered while it runs"
        self.check_free()
        self.progress, self._scope, self._ended = replay.progress, trio.CancelScope(), trio.Event()
        self.progress.state = "RUNNING"
        self._nursery.start_soon(self._run, replay, self._scope, self._ended)
        return self.progress

    async def stop(self) -> None:
        """End the one that runs, if there is one, and forget the last: the state is IDLE again."""
        if self._scope is not None:
            self._scope.cancel()
            await self._ended.wait()
        self.progress, self._scope = Progress(), None

    async def _run(self, replay: Replay, scope: trio.CancelScope, ended: trio.Event) -> None:
        progress = replay.progress
        try:
            with scope:
                await replay.run()
                progress.state = "COMPLETED"
        except ReplayFailed as error:
            progress.state, progress.verdict, progress.error = "ERROR", "can't", str(error)
        finally:
            ended.set()
