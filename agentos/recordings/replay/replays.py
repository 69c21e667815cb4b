"""The replays that a kernel runs, in the background of the calls that start them."""

import trio
from attrs import define, field

from agentos_sdk.errors import AlreadyExists, Busy, NotFound

from .progress import Progress, Replay, ReplayFailed

MAX_FORKS = 10  # that run at once
MAX_KEPT = 100  # that have ended, and whose progress can still be asked for


@define(eq=False)
class _Run:
    replay: Replay
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event = field(factory=trio.Event)


@define(eq=False)
class Replays:
    """Runs them; :meth:`serve` must be running. Progress stays until another one has the name, or it is dropped."""

    _runs: dict[str, _Run] = field(factory=dict)  # by the replay's name, the last one last
    _nursery: trio.Nursery | None = None

    async def serve(self) -> None:
        """Run replays until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def check_free(self, is_fork: bool) -> None:
        """Raise ``AlreadyExists`` while a replay runs, and ``Busy`` for a fork while ten of them do."""
        running = sum(not run.ended.is_set() and run.replay.is_fork == is_fork for run in self._runs.values())
        if is_fork and running >= MAX_FORKS:
            raise Busy(f"{MAX_FORKS} forks run: wait for the end of one, or end it by REPLAY_STOP")
        if running and not is_fork:
            raise AlreadyExists("a replay runs: wait for its end, or end it by REPLAY_STOP")

    def is_known(self, name: str) -> bool:
        """Whether a replay has this name that can be asked for."""
        return name in self._runs

    def find(self, name: str | None) -> Progress:
        """That of the replay with this name, or of the last one. Raises ``NotFound``."""
        if name is None:
            return next(reversed(self._runs.values())).replay.progress if self._runs else Progress()
        if name not in self._runs:
            raise NotFound(f"name: no replay is called {name!r:.100}")
        return self._runs[name].replay.progress

    def start(self, replay: Replay) -> Progress:
        """Run a replay; raises what :meth:`check_free` does."""
        assert self._nursery is not None, "calls are answered while it runs"
        self.check_free(replay.is_fork)
        self._runs.pop(replay.name, None)
        over = [name for name, run in self._runs.items() if run.ended.is_set()]
        for name in over[: max(len(over) - MAX_KEPT + 1, 0)]:
            del self._runs[name]
        run = self._runs[replay.name] = _Run(replay)
        replay.progress.state = "RUNNING"
        self._nursery.start_soon(self._run, run)
        return replay.progress

    async def stop(self, name: str | None) -> None:
        """End the one with this name, or all that run, and forget it or them. Raises ``NotFound``."""
        if name is not None:
            self.find(name)
        stopped = {name: self._runs[name]} if name is not None else dict(self._runs)
        for run in stopped.values():
            run.scope.cancel()
        for key, run in stopped.items():
            await run.ended.wait()
            if self._runs.get(key) is run:
                del self._runs[key]

    async def _run(self, run: _Run) -> None:
        progress = run.replay.progress
        try:
            with run.scope:
                await run.replay.run()
                progress.state = "COMPLETED"
        except ReplayFailed as error:
            progress.state, progress.verdict, progress.error = "ERROR", "can't", str(error)
        finally:
            run.ended.set()
