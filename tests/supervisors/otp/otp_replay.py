"""Replays recorded traces of OTP's supervisor against this one: ``python -m tests.supervisors.otp.otp_replay FILE``.

The format is otp-supervisor-traces/1. Time is virtual. Prints each mismatch, then ``N scenarios, M mismatches``; the
exit status is 0 only where M is 0.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio
import trio.testing
from msgspec.structs import astuple

from supervisors import ChildSpec, Ended, Handle, SpecError, StartFailed, Supervisor, SupervisorError
from tests.supervisors.otp.otp_world import Freezer, Json, Nested, Process, World, child_spec, supervisor_spec

PATIENCE = 60  # seconds of real time for one scenario; they take milliseconds, but a deadlock would take for ever


# -- Steps -------------------------------------------------------------------------------------------------------------


async def settle() -> None:
    """Until nothing runs and no time-out is under way."""
    while True:
        await trio.testing.wait_all_tasks_blocked()
        pause = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if pause == float("inf"):
            return
        await trio.sleep(max(pause, 0))


class Replay:
    """One scenario under way."""

    def __init__(self, tree: Json, nursery: trio.Nursery) -> None:
        self.tree = tree
        self.nursery = nursery
        self.world = World()
        self.stop = trio.Event()
        self.handles: dict[str, Handle] = {}  # of dynamic children, by label

    # Entry 0 ------------------------------------------------------------------------------------

    async def start(self) -> Json:
        try:
            supervisor_spec(self.world, self.tree)
        except SpecError as error:
            return ["error", named(error)]
        try:
            await self.nursery.start(self.run_root)
        except StartFailed as failure:
            return ["error", {"failed_to_start_child": list(failure.path)}]
        return ["ok", self.world.latest[self.tree["id"]].label]

    async def run_root(self, *, task_status: trio.TaskStatus[object]) -> None:
        with contextlib.suppress(Ended):  # the owner never restarts anything
            await Nested(self.world, self.tree).run(self.stop, task_status=task_status)

    # The others ---------------------------------------------------------------------------------

    async def step(self, step: Json) -> Json:
        match step:
            case {"batch": name, "do": items}:
                return await self.batch(self.living(name), items)
            case {"sleep_past_period": name}:
                return await self.sleep_past(name)
            case _:
                return await (await self.item(step))()

    async def sleep_past(self, name: str) -> Json:
        supervisor = self.living(name)
        period = find(self.tree, name).get("period", 5) if supervisor is None else supervisor.spec.period
        await trio.sleep(period + 1.1)
        return "ok"

    async def batch(self, supervisor: Supervisor | None, items: Sequence[Json]) -> Json:
        freezer = Freezer()
        if supervisor is not None:
            self.nursery.start_soon(self.freeze, supervisor, freezer)
            await settle()
        answers: list[Json] = [None] * len(items)

        async def answer(index: int, ask: Callable[[], Awaitable[Json]]) -> None:
            answers[index] = await ask()

        async with trio.open_nursery() as callers:
            for index, step in enumerate(items):
                callers.start_soon(answer, index, await self.item(step))
                await settle()
            freezer.release.set()
        return answers

    async def freeze(self, supervisor: Supervisor, freezer: Freezer) -> None:
        if supervisor.spec.simple:
            await supervisor.start_child(freezer)
        else:
            await supervisor.start_child(ChildSpec("frozen", freezer, restart="temporary"))

    async def item(self, step: Json) -> Callable[[], Awaitable[Json]]:
        """What a step asks for; an end takes place at once, a call when the result is awaited."""
        match step:
            case {"exit": name, "reason": reason}:
                return said(self.end(name, lambda process: process.end(reason)))
            case {"kill": name}:
                return said(self.end(name, Process.kill))
            case {"stop": True}:
                return said(self.end(self.tree["id"], lambda process: self.stop.set()))
            case {"start_child": [name, node]}:
                return partial(self.call, name, lambda supervisor: self.start_child(supervisor, node))
            case {"restart_child": [name, child]}:
                return partial(self.call, name, lambda supervisor: started(supervisor.restart_child(child)))
            case {"delete_child": [name, child]}:
                return partial(self.call, name, lambda supervisor: done(supervisor.delete_child(child)))
            case {"terminate_child": [name, child], "by": "pid"}:
                self.note_handles(self.living(name))
                process = self.world.latest.get(child)  # which it is decides itself now, not when the call is handled
                return partial(self.call, name, lambda supervisor: self.terminate_by_pid(supervisor, process))
            case {"terminate_child": [name, child]}:
                return partial(self.call, name, lambda supervisor: done(supervisor.terminate_child(child)))
            case {"which_children": name}:
                return partial(self.call, name, self.which)
            case {"count_children": name}:
                return partial(self.call, name, count)
            case _:
                raise ValueError(f"no such step: {step}")

    def end(self, name: str, how: Callable[[Process], None]) -> Json:
        process = self.world.latest.get(name)
        if process is None or not process.alive:
            return ["error", "not_alive"]
        how(process)
        return "ok"

    # Calls --------------------------------------------------------------------------------------

    async def call(self, name: str, ask: Callable[[Supervisor], Awaitable[Json]]) -> Json:
        supervisor = self.living(name)
        if supervisor is None:
            return ["error", "noproc"]
        try:
            return await ask(supervisor)
        except SupervisorError as error:
            return ["error", named(error)]

    async def start_child(self, supervisor: Supervisor, node: Json) -> Json:
        if supervisor.spec.simple:
            return await started(supervisor.start_child(node))
        try:
            spec = child_spec(self.world, node)
        except SpecError:
            await supervisor.count_children()  # a supervisor that is gone says so first
            raise
        return await started(supervisor.start_child(spec))

    def note_handles(self, supervisor: Supervisor | None) -> None:
        for info in supervisor.children() if supervisor is not None else ():
            if info.handle is not None and info.child != "restarting":
                self.handles[self.label(info.child)] = info.handle

    async def terminate_by_pid(self, supervisor: Supervisor, process: Process | None) -> Json:
        if process is None:
            return ["error", "not_found"]
        if process.label not in self.handles:  # it was gone before anybody could have asked for it
            return "ok"
        return await done(supervisor.terminate_child(self.handles[process.label]))

    async def which(self, supervisor: Supervisor) -> Json:
        return self.children(supervisor, await supervisor.which_children())

    # State --------------------------------------------------------------------------------------

    def living(self, name: str) -> Supervisor | None:
        process = self.world.latest.get(name)
        return process.supervisor if process is not None and process.alive else None

    def label(self, value: object) -> str:
        if isinstance(value, Process):
            return value.label
        return next(process.label for process in self.world.supervisors if process.supervisor is value)

    def children(self, supervisor: Supervisor, infos: Sequence[Any]) -> Json:
        rows: list[Json] = []
        for info in infos:
            child = info.child if info.child in (None, "restarting") else self.label(info.child)
            rows.append([self.shown(supervisor, info.id, child), child])
        return sorted(rows, key=json.dumps) if supervisor.spec.simple else rows

    @staticmethod
    def shown(supervisor: Supervisor, name: str, child: str | None) -> str | None:
        if not supervisor.spec.simple:
            return name
        return None if child in (None, "restarting") else str(child).split("#")[0]

    async def state(self) -> Json:
        root = self.living(self.tree["id"])
        found: dict[str, Json] = {}
        if root is not None:
            await self.add_state(root, found)
        return found

    async def add_state(self, supervisor: Supervisor, found: dict[str, Json]) -> None:
        self.note_handles(supervisor)
        infos = await supervisor.which_children()
        found[supervisor.id] = {
            "inc": int(self.label(supervisor).split("#")[1]),
            "children": self.children(supervisor, infos),
            "count": await count(supervisor),
        }
        for info in infos:
            if isinstance(info.child, Supervisor):
                await self.add_state(info.child, found)


def said(answer: Json) -> Callable[[], Awaitable[Json]]:
    async def ask() -> Json:
        return answer

    return ask


async def started(call: Awaitable[object]) -> Json:
    value = await call
    if isinstance(value, Supervisor):
        return ["ok", value]
    return ["ok", value.label if isinstance(value, Process) else None]


async def done(call: Awaitable[None]) -> Json:
    await call
    return "ok"


async def count(supervisor: Supervisor) -> Json:
    return list(astuple(await supervisor.count_children()))


def named(error: SupervisorError) -> Json:
    if isinstance(error, SpecError) and error.code == "duplicate_child":
        return {"duplicate_child": error.id}
    return error.code


def find(node: Json, name: str) -> Json:
    """The node of that id in the tree; empty for one that was added later."""
    if node["id"] == name:
        return node
    found = (find(child, name) for child in node.get("children", ()))
    return next((child for child in found if child), {})


# -- Comparing ---------------------------------------------------------------------------------------------------------


def flat(events: Json) -> list[str]:
    if isinstance(events, str):
        return [events]
    return [event for part in (events["any"] if isinstance(events, dict) else events) for event in flat(part)]


def in_order(sequence: Json, position: dict[str, int]) -> bool:
    for part in sequence:
        if isinstance(part, dict) and not all(in_order(each, position) for each in part["any"]):
            return False
    return all(
        max(position[event] for event in flat(earlier)) < min(position[event] for event in flat(later))
        for earlier, later in itertools.pairwise(sequence)
    )


def events_match(expected: Json, actual: Sequence[str]) -> bool:
    position = {event: index for index, event in enumerate(actual)}
    return sorted(flat(expected)) == sorted(actual) and in_order(expected, position)


def as_set(result: Json) -> Json:
    """Dynamic children that wait for a restart have no name, so which place they sort to is nobody's promise."""
    if not isinstance(result, list):
        return result
    unnamed = any(isinstance(row, list) and row[:1] == [None] for row in result)
    return sorted(result, key=json.dumps) if unnamed else [as_set(part) for part in result]


def differs(expected: Json, actual: Json) -> bool:
    return (
        as_set(expected["result"]) != as_set(actual["result"])
        or expected["state"] != actual["state"]
        or not events_match(expected["events"], actual["events"])
    )


async def replayed(scenario: Json) -> str | None:
    """The first mismatch, in words; None if there is none."""
    async with trio.open_nursery() as nursery:
        replay = Replay(scenario["tree"], nursery)
        steps: list[Json] = ["start", *scenario["steps"]]
        for number, (step, expected) in enumerate(zip(steps, scenario["trace"], strict=True)):
            replay.world.events.clear()
            result = await (replay.start() if number == 0 else replay.step(step))
            await settle()
            events = list(replay.world.events)
            actual = {"result": plain(replay, result), "events": events, "state": await replay.state()}
            if differs(expected, actual):
                nursery.cancel_scope.cancel()
                got = json.dumps(actual, default=repr)
                return f"step {number} {json.dumps(step)}\n  expected {json.dumps(expected)}\n  got {got}"
        nursery.cancel_scope.cancel()
    return None


def plain(replay: Replay, result: Json) -> Json:
    """A result in which supervisors are named, as their labels are known only once they are up."""
    if isinstance(result, list):
        return [plain(replay, part) for part in result]
    return replay.label(result) if isinstance(result, Supervisor) else result


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"nothing came of it in {PATIENCE} s of real time")


def replay(scenario: Json) -> str | None:
    """Replay one scenario in virtual time; one that breaks the replay is a mismatch too."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(PATIENCE)
    try:
        mismatch = trio.run(replayed, scenario, clock=clock)
    except KeyboardInterrupt:
        raise
    except BaseException:  # groups of cancellations too: whatever it was, it is this scenario's alone
        mismatch = traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return None if mismatch is None else f"{scenario.get('name')}: {mismatch}"


def load(path: str) -> list[Json]:
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if document.get("format") != "otp-supervisor-traces/1":
        raise ValueError(f"{path}: not otp-supervisor-traces/1")
    scenarios: list[Json] = document["scenarios"]
    return scenarios


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="otp_replay", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    scenarios = load(options.file)
    mismatches = 0
    with multiprocessing.Pool(max(options.jobs, 1)) as pool:
        for mismatch in pool.imap(replay, scenarios, chunksize=8):
            if mismatch is not None:
                mismatches += 1
                print(mismatch)
    print(f"{len(scenarios)} scenarios, {mismatches} mismatches")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
