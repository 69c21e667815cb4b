"""Runs an agent's program again, in a jail of its own, with a recorded life to answer its calls."""

import os
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field
from msgspec.structs import replace

from agentos.access.callers import Callers
from agentos.agents.life.life import wait_first
from agentos.agents.paths import KINDS
from agentos.agents.registry import Agent, Registry, StartError
from agentos.agents.spec import AgentSpec
from agentos.agents.tree.supervision import Supervision
from agentos.kernel.caller import Caller
from agentos.recordings.format import Life
from agentos.recordings.reader import Recording
from agentos.services.events import ReplayDiverged
from agentos_sdk.errors import BadRequest, CallError, NotFound, Unavailable

from .files import StartFiles
from .keys import ScratchKeys
from .life import LifeReplay
from .progress import Progress, ReplayFailed
from .tree.names import FORK_SUFFIX, MAX_NAME, find_free

SUFFIX = "-replay"  # of the agent's name
KEEPER = ("sleep", "3660")  # longer than EXEC's longest command


def choose_life(recording: Recording, wanted: str | None) -> Life:
    """The first life of the agent ``wanted``, or the life of that name. Raises ``NotFound``, ``BadRequest``."""
    lives = recording.manifest.lives
    names = list(dict.fromkeys(life.agent for life in lives))
    if wanted is None and len(names) > 1:
        raise BadRequest(f"agent: the recording has the agents {', '.join(names)[:500]}: name one of them")
    found = [life for life in lives if wanted is None or wanted in (life.life, life.agent)]
    if not found:
        raise NotFound(f"agent: the recording has no life{f' of {wanted!r:.100}' if wanted else ''}")
    return found[0]


def find_directory(spec: AgentSpec, is_fork: bool) -> str | None:
    """The agent's own directory, over which a fork has an overlay if it can't begin with the recorded files."""
    return spec.workspace if is_fork and spec.workspace not in KINDS else None


def describe_replay(
    spec: AgentSpec, code: str | None, is_fork: bool = False, directory: str | None = None
) -> AgentSpec:
    """The spec of an agent that lives a recorded life again, with the program as it is, or as it is in ``code``.

    Its workspace is an overlay of ``directory``, or without one empty. A fork, which goes on live, is recorded in its
    turn; a number may be added to its name.
    Raises ``BadRequest`` if its network can't be shut.
    """
    if not spec.has_own_network:
        what = "no jail" if not spec.jailed else "the host's network"
        raise BadRequest(f"agent: {spec.name} has {what}, so that a replay could reach the network")
    script = spec.script
    if code is not None and script is not None:
        script = os.path.join(code, os.path.relpath(script, spec.code or os.path.dirname(script)))
    return replace(
        spec.as_spawned(spec.name[:MAX_NAME] + (FORK_SUFFIX if is_fork else SUFFIX)),
        script=script,
        code=code if code is not None else spec.code,
        restart="temporary",
        workspace=directory or "tmp",
        workspace_mode="overlay" if directory is not None else "direct",
        watchdog=None,
        health=None,
        record=is_fork,
    )


def choose_name(spec: AgentSpec, is_taken: Callable[[str], bool]) -> AgentSpec:
    """The spec with its name, or with that and the first free number."""
    return replace(spec, name=find_free(spec.name, is_taken))


def describe_files(directory: str | None) -> str:
    """What the workspace of a replay has that begins without the recorded files."""
    what = "was empty at the begin" if directory is None else f"is an overlay of {directory} as it is now"
    return f"the workspace {what}"


def find_spec(registry: Registry, name: str, is_declared: bool) -> AgentSpec:
    """The declared agent's, or unless it must be one, of the last that was spawned. Raises ``NotFound``."""
    agent = registry.find_by_name(name)
    if agent is None or (is_declared and not agent.declared):
        why = "" if is_declared else ", and none was spawned that the kernel still knows"
        raise NotFound(f"agent: the configuration declares no {name}{why}: its program can't be found")
    if agent.spec.copied:
        raise NotFound(f"agent: the script of {name} was copied from its spawner's jail, and went with it")
    return agent.spec


@define(eq=False)
class AgentReplay:
    """A :class:`~.progress.Replay` of one life, started for ``caller``.

    Without ``files`` the agent's workspace is used as it is found, without ``keys`` its private keys.
    """

    supervision: Supervision
    callers: Callers
    spec: AgentSpec
    life: LifeReplay
    caller: Caller
    flush: Callable[[], Awaitable[None]]  # returns when what was recorded has been written
    hold: bool = False  # its jail is there again after its end
    files: StartFiles | None = None
    keys: ScratchKeys | None = None
    parent: Callable[[], Agent | None] = lambda: None  # when it starts
    agent: Agent | None = None  # once it has come up
    begun: trio.Event = field(factory=trio.Event)
    has_ended: bool = False  # by itself

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_fork(self) -> bool:
        return self.life.switch.live

    @property
    def progress(self) -> Progress:
        return self.life.progress

    async def run(self) -> None:
        await self.live_again()
        await self.keep_jail()

    async def live_again(self) -> None:
        """Run the program until it ends, or diverges, and judge that. Raises ``ReplayFailed``."""
        name, life = self.spec.name, self.life
        if self.callers.registry.is_taken(name):
            raise ReplayFailed(f"there is an agent {name} already")
        agent: Agent | None = None
        given = [one for one in (self.files, self.keys) if one is not None]
        for one in given:
            await one.begin(name)
        self.callers.standing_in[name] = life
        try:
            try:
                above = self.parent()
                agent = await self.supervision.spawn(self.spec, above.caller if above else self.caller, above)
            finally:
                del self.callers.standing_in[name]
            self.agent = agent
            self.begun.set()
            await wait_first(agent.over.wait, life.over.wait)
        except StartError as error:
            if not life.over.is_set() and not life.progress.replayed:
                said = "; ".join(error.stderr[-3:])
                raise ReplayFailed(f"{name} did not start: {error}{f' ({said})' if said else ''}") from None
        except (CallError, Unavailable) as error:
            raise ReplayFailed(f"{name} did not start: {error}") from None
        finally:
            with trio.CancelScope(shield=True):
                agent = agent or self.callers.registry.find_by_name(name)
                await self._end(agent)
                if agent is not None and agent.recording is not None:
                    await self.flush()
                    life.progress.recording = agent.recording
                for one in given:
                    await one.end(name)
        end = agent.end if agent is not None and not life.over.is_set() else None
        life.judge(end.reason if end is not None else None)
        self.has_ended = end is not None
        if life.progress.divergence is not None:
            number = agent.id if agent is not None else 0
            self.callers.registry.publish(ReplayDiverged(number, name, life.life, str(life.progress.verdict)))

    async def keep_jail(self) -> None:
        """If asked to, start an agent that does nothing in a jail like the one that has ended, over the same files."""
        if not self.hold or not self.has_ended or self.progress.divergence is not None:
            return
        spec = replace(self.spec, script=None, command=KEEPER, args=(), ready=None, runtime="exec", record=False)
        try:
            await self.supervision.spawn(spec, self.caller, None)
        except (StartError, CallError, Unavailable) as error:
            self.progress.notes.append(f"there is no jail for commands after its end: {error}")

    async def _end(self, agent: Agent | None) -> None:
        """No agent is left; one that was to start may not have begun."""
        if agent is not None and not agent.over.is_set():
            await self.supervision.kill(agent, 0.0, "REPLAY_STOP")
