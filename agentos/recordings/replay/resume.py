"""Lets the life of an agent go on after a crash: its program runs again, and gets the recorded answers first."""

# A program whose memory is gone comes to the same point when it is told the same, so what was asked of the model isn't
# paid again, and what was done outside isn't done again. The call under way at the crash has no recorded reply and is
# made live, so it may be done twice. The new life is recorded whole, answered calls too, so the next crash finds them.
# What must stay true: a life that leaves the recorded one ends, and the next begins anew; and so does the one after a
# life that crashed without a reply beyond those that it was given, for it would crash there again. But a question that
# had failed, as a stream does that breaks off, is asked live by a life whose program wouldn't. docs/decisions/0112.

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from attrs import evolve, field, frozen

from agentos.access.callers import Callers
from agentos.agents.registry import Agent
from agentos.recordings.format import SUFFIX, Life, encode_line, parse_json, plain_name, read_body, write_body
from agentos.recordings.kept import list_names
from agentos.recordings.masks import BadMask, join_masks
from agentos.recordings.own import Marks
from agentos.recordings.reader import BadRecording, RecordedCall, Recording, read_recording
from agentos.recordings.recorder.recorder import Recorder, is_failed
from agentos.services.events import LifeResumed, ResumeFailed
from agentos.threads import Limiter, run_in_thread
from agentos_sdk.opcodes import Op
from agentos_sdk.values import End

from .life import LifeReplay, load_calls
from .progress import ReplayFailed, describe_differences
from .switch import Switch

log = logging.getLogger("agentos.agents")

AGENT_KEYS = frozenset({"agent", "agent_id", "parent"})  # whose values are ids of agents
OF_AGENTS = frozenset({"LIST", "INSPECT", "TREE", "WAIT", "LOGS", "EXPLAIN"})  # calls in which `id` is one, too
LEFT = "it left the recorded life"
STUCK = "it crashed again, with no reply beyond the {answers} recorded ones"
MAX_TOLD = 5  # differences, of a life
NO_FILES = 'what its commands of EXEC changed has ended with its workspace: set workspace = "keep" or a directory'


@frozen
class Resumer:
    """Finds what the agents of one kernel go on with."""

    recorder: Recorder
    callers: Callers
    _turn: Limiter = field(factory=lambda: Limiter(1))  # a recording may take 256 MiB

    async def prepare(self, agent: Agent) -> "ResumedLife | None":
        """What the agent's next life goes on with; None if it begins anew, which is reported after a crash."""
        await self.recorder.queue.flush()
        recording = await run_in_thread(find_last, self.recorder.directory, self.recorder.marks, agent.name)
        if recording is None or not has_crashed(recording, agent.end):
            return None
        life = recording.manifest.lives[0]
        if (life.reason or "").startswith(LEFT):
            return None  # that was reported when it happened
        try:
            replay, leased = await run_in_thread(self._load, agent, recording, life, limiter=self._turn)
        except (BadMask, BadRecording, ReplayFailed, OSError) as error:
            report_failed(self.callers, agent, life.life, str(error))
            return None
        if not replay.left:
            return None
        return ResumedLife(self.recorder, self.callers, agent, replay, recording.manifest.name, leased)

    def _load(self, agent: Agent, recording: Recording, life: Life) -> tuple[LifeReplay, Mapping[int, float]]:
        """Read the life's calls, and the messages that it had leased. Blocks.

        Raises ``BadMask``, ``BadRecording``, ``ReplayFailed``, ``OSError``.
        """
        calls = load_calls(recording, life)
        ran = any(call.call == "EXEC" and call.reply and call.reply.get("success") for call in calls)
        if ran and agent.spec.workspace == "tmp":
            raise ReplayFailed(NO_FILES)
        facts = recording.manifest.agents.get(life.agent)
        if facts is not None and facts.id != agent.id:  # another kernel has given it
            calls = [renumber(call, facts.id, agent.id) for call in calls]
        replay, failed = self._begin(agent, recording, life, calls), find_failed(calls)
        is_stuck = life.failed and life.resumed is not None and replay.left <= life.answers
        if failed is not None and life.failed and (is_stuck or failed is calls[-1]):
            calls = [call for call in calls if call.begin < failed.begin]
            replay = self._begin(agent, recording, life, calls)
            is_stuck = is_stuck and not replay.left
        if is_stuck:
            raise ReplayFailed(STUCK.format(answers=life.answers))
        return replay, find_leased(calls)

    def _begin(self, agent: Agent, recording: Recording, life: Life, calls: Sequence[RecordedCall]) -> LifeReplay:
        replay = LifeReplay(
            agent.id,
            agent.name,
            life.life,
            self.recorder.maker.mark_secrets,
            repeats_files=agent.spec.workspace == "tmp",
            switch=Switch(live=True),
            hash_seed=life.hash_seed,
            masks=join_masks(recording.manifest.masks, self.recorder.settings.masks),
            give_rights=lambda caller, life, whole: self.callers.go_live(caller, None, whole),
        )
        replay.load(calls)
        return replay


@frozen(eq=False)
class ResumedLife:
    """One life that goes on: an :class:`agentos.agents.life.life.Resumed`."""

    recorder: Recorder
    callers: Callers
    agent: Agent
    replay: LifeReplay
    recording: str
    leased: Mapping[int, float]

    @property
    def over(self) -> trio.Event:
        return self.replay.over

    def begin(self) -> None:
        agent, answers = self.agent, self.replay.left
        self.callers.resume(agent.caller, self.replay)
        self.callers.mail.leases.lease_again(self.callers.mail.by_id(agent.id), self.leased)
        agent.hash_seed = self.replay.hash_seed or agent.hash_seed
        self.recorder.note_resumed(agent.caller, self.recording, answers, agent.hash_seed)
        self.callers.registry.publish(LifeResumed(agent.id, agent.name, self.replay.life, self.recording, answers))
        text = f"goes on after the crash of {self.replay.life} with {answers} recorded answers of {self.recording}"
        agent.output.add("kernel", text)
        log.info("%s %s", agent.name, text)

    def leave(self) -> str:
        first, *differences = (self.replay.progress.divergence or "").splitlines()
        reason = f"{LEFT}: {first}"
        self.recorder.miss(self.agent.caller, reason)
        report_failed(self.callers, self.agent, self.replay.life, reason, differences)
        return reason

    def end(self) -> None:
        self.callers.go_live(self.agent.caller, None, whole=True)
        for line in describe_differences(self.replay.progress.drift[:MAX_TOLD]):
            self.agent.output.add("kernel", f"got a recorded answer though this differs: {line}")


def renumber(call: RecordedCall, former: int, present: int) -> RecordedCall:
    """The call with the agent's present id in the place of the former one, which its program isn't told any more."""
    if call.call == Op.THINK.name:
        return call
    keys = AGENT_KEYS | {"id"} if call.call in OF_AGENTS else AGENT_KEYS

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: present if key in keys and each == former else change(each) for key, each in value.items()}
        return [change(each) for each in value] if isinstance(value, list) else value

    reply = call.reply
    if reply is not None and reply.keys() == {"base64"}:  # a list
        try:
            body = change(parse_json(write_body(reply)))
        except ValueError:
            return call
        reply = read_body(encode_line(body))
    return evolve(call, request=change(call.request), reply=change(reply))


def find_leased(calls: Sequence[RecordedCall]) -> Mapping[int, float]:
    """The ids of messages that were leased and not acknowledged, with the seconds of their leases."""
    leased = dict[int, float]()
    for call in calls:
        reply = call.reply or {}
        if call.call == "RECV" and call.request.get("lease") is not None:
            leased |= {message["id"]: call.request["lease"] for message in reply.get("messages", ())}
        elif call.call == "ACK" and reply.get("success"):
            leased = {number: seconds for number, seconds in leased.items() if number not in call.request["ids"]}
    return leased


def find_failed(calls: Sequence[RecordedCall]) -> RecordedCall | None:
    """The last question that was answered by an error."""
    failed = (call for call in calls if call.call == Op.THINK.name and (call.reply or {}).get("success") is False)
    return max(failed, key=lambda call: call.begin, default=None)


def find_last(directory: Path, marks: Marks, agent: str) -> Recording | None:
    """The own recording of the agent's last life that was recorded by itself. Raises ``OSError``. Blocks."""
    found = list[Recording]()
    for name in list_names(directory):
        if name.rpartition("-")[0] == plain_name(agent):
            with suppress(BadRecording):
                recording = read_recording(directory / f"{name}{SUFFIX}")
                manifest = recording.manifest
                is_of_agent = manifest.automatic and [life.agent for life in manifest.lives] == [agent]
                if is_of_agent and marks.is_own(manifest):
                    found.append(recording)
    return max(found, key=lambda each: each.manifest.began, default=None)


def has_crashed(recording: Recording, end: End | None) -> bool:
    """Whether the life in it failed, or ended with the kernel. ``end``: how the agent's last life in this one ended."""
    life = recording.manifest.lives[0]
    if life.ended is not None:
        return life.failed
    return recording.manifest.ended is None or is_failed(end)


def report_failed(callers: Callers, agent: Agent, life: str, reason: str, more: Sequence[str] = ()) -> None:
    callers.registry.publish(ResumeFailed(agent.id, agent.name, life, reason))
    text = f"begins anew after the crash of {life}: {reason}"
    log.warning("%s: %s", agent.name, text)
    for line in (text, *more):
        agent.output.add("kernel", line)
