"""Forks a recorded tree: all lives are lived again up to a cut, and when all are there they go on live together."""

from collections.abc import Callable, Mapping
from typing import Any

import trio
from attrs import define, field, frozen

from agentos.agents.registry import Agent
from agentos.kernel.caller import Caller
from agentos.recordings.replay.agent import AgentReplay
from agentos.recordings.replay.progress import Progress, ReplayFailed
from agentos.recordings.replay.waiting_messages import WaitingMessages
from agentos_sdk.errors import CallError

from .cut import Member
from .lives import sum_progress
from .names import TreeNames

STOPPED = "stopped before anything was live: {} did not come to the cut"


@frozen
class Branch:
    """One member of the fork: its replay, and the messages that wait for it."""

    member: Member
    replay: AgentReplay
    waiting: WaitingMessages


@define(eq=False)
class TreeFork:
    """A :class:`~agentos.recordings.replay.progress.Replay` of several lives that go on live at one cut.

    Nothing is done live until each has made the calls again that it had made before; if one doesn't, all are stopped.
    ``deliver`` puts messages into a member's mailbox, and notes what it is a fork of.
    """

    name: str
    branches: Mapping[str, Branch]  # by the agents' recorded names, parents first
    names: TreeNames
    gate: trio.Event
    deliver: Callable[[Caller, WaitingMessages, Callable[[Any], Any]], None]
    notes: list[str] = field(factory=list)
    is_fork = True
    _whole: Progress = field(factory=Progress)
    _failed: str | None = None

    @property
    def progress(self) -> Progress:
        """The sum of all lives."""
        parts = {branch.member.life.life: branch.replay.progress for branch in self.branches.values()}
        for branch in self.branches.values():
            parts[branch.member.life.life].agent = branch.replay.name
        return sum_progress(self._whole, parts, self.notes)

    def find_agent(self, recorded: str | None) -> Agent | None:
        """The member in the place of this agent."""
        branch = self.branches.get(recorded or "")
        return branch.replay.agent if branch is not None else None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._open_gate, nursery.cancel_scope)
            for branch in self.branches.values():
                nursery.start_soon(self._run, branch, nursery.cancel_scope)
        for branch in self.branches.values():
            progress = branch.replay.progress
            if progress.verdict is None:
                progress.verdict = "unfinished"
                progress.divergence = STOPPED.format(self._failed)
            if progress.state == "RUNNING":
                progress.state = "COMPLETED"
        if self._failed is None:
            for branch in self.branches.values():  # not before all have ended: it takes the member's name
                await branch.replay.keep_jail()

    async def _run(self, branch: Branch, scope: trio.CancelScope) -> None:
        replay, progress = branch.replay, branch.replay.progress
        parent = self.branches.get(branch.member.parent or "")
        progress.state = "RUNNING"
        try:
            if parent is not None:
                await parent.replay.begun.wait()
            await replay.live_again()
            progress.state = "COMPLETED"
        except (CallError, ReplayFailed, OSError) as error:
            progress.state, progress.verdict, progress.error = "ERROR", "can't", str(error)
        if not self.gate.is_set() and not (replay.begun.is_set() and replay.life.answered.is_set()):
            self._failed = self._failed or branch.member.life.life
            scope.cancel()

    async def _open_gate(self, scope: trio.CancelScope) -> None:
        """Let all go on live once each is where its recorded life was at the cut."""
        for branch in self.branches.values():
            await branch.replay.begun.wait()
            await branch.replay.life.answered.wait()
        present = [(agent, branch) for branch in self.branches.values() if (agent := branch.replay.agent) is not None]
        for agent, branch in present:
            self.names.add(branch.member.number, branch.member.names, agent.caller)
        for agent, branch in present:
            try:
                if not agent.over.is_set():
                    self.deliver(agent.caller, branch.waiting, self.names.find_sender)
            except CallError as error:  # its mailbox has no room for what the recording says
                self._failed, branch.replay.progress.error = branch.member.life.life, str(error)
                scope.cancel()
                return
        self.gate.set()
