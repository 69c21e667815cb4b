"""The processes of a recorded scenario, as children for this library: what each does is in its node."""

from typing import Any

import attrs
import trio

from supervisors import ChildSpec, Ended, Exit, Ignore, SpecError, Supervisor, SupervisorSpec, Template

Json = Any  # what json.load gives; its shape is in the format's words, not in types


class Process:
    """One incarnation in a scenario: ``end`` makes it end by itself, ``kill`` from outside."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.alive = True
        self.scope = trio.CancelScope()
        self.told = trio.Event()
        self.wish = Exit("normal")
        self.supervisor: Supervisor | None = None

    def end(self, reason: Json) -> None:
        self.wish = Exit(reason)
        if self.supervisor is not None:
            self.supervisor.stop(self.wish)
        self.told.set()

    def kill(self) -> None:
        self.wish = Exit("killed")
        self.told.set()
        if self.supervisor is not None:
            self.scope.cancel()


class World:
    """What a scenario's processes share: attempts counted by id, the latest process of each, the events so far."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}
        self.latest: dict[str, Process] = {}
        self.supervisors: list[Process] = []  # all there ever were
        self.events: list[str] = []

    def attempt(self, node: Json) -> Process:
        """The next start of a node, if its plan lets it succeed."""
        name = node["id"]
        number = self.attempts[name] = self.attempts.get(name, 0) + 1
        plan = node.get("starts", {}).get(str(number))
        if plan is not None:
            self.events.append(f"!{name}#{number} {plan}")
            raise Ignore if plan == "ignore" else RuntimeError(plan)
        process = self.latest[name] = Process(f"{name}#{number}")
        self.events.append(f"+{process.label}")
        return process

    def ended(self, process: Process, reason: str) -> None:
        process.alive = False
        self.events.append(f"-{process.label} {reason}")


@attrs.frozen
class Worker:
    """A child that does what its node says."""

    world: World
    node: Json

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        process = self.world.attempt(self.node)
        task_status.started(process)
        ending = Exit("killed")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.heed, stop, process)
                await process.told.wait()
                nursery.cancel_scope.cancel()
            ending = process.wish
        finally:
            self.world.ended(process, ending.reason)
        if ending.reason != "normal":
            raise Ended(ending)

    async def heed(self, stop: trio.Event, process: Process) -> None:
        await stop.wait()
        match self.node.get("on_shutdown", "stop"):
            case "stop":
                process.end("shutdown")
            case "normal" | "crash" as reason:
                process.end(reason)
            case "slow":
                await trio.sleep(self.node.get("slow_ms", 0) / 1000)
                process.end("shutdown")
            case "ignore":
                await trio.sleep_forever()


@attrs.frozen
class Nested:
    """A supervisor as a child, that can be killed from outside too. Its spec is read only when it is started."""

    world: World
    node: Json

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        try:
            supervisor = Supervisor(supervisor_spec(self.world, self.node), id=self.node["id"])
        except SpecError:
            number = self.world.attempts[self.node["id"]] = self.world.attempts.get(self.node["id"], 0) + 1
            self.world.events.append(f"!{self.node['id']}#{number} error")
            raise
        process = self.world.attempt(self.node)
        process.supervisor = supervisor
        self.world.supervisors.append(process)
        try:
            with process.scope:
                await supervisor.run(stop, task_status=task_status)
        finally:
            ending = supervisor.exit or Exit("crash")
            self.world.ended(process, ending.reason)
        raise Ended(ending)


@attrs.frozen
class Freezer:
    """Holds a supervisor in a start handshake, so that its inbox fills; then declines, and leaves nothing behind."""

    release: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
        await self.release.wait()
        raise Ignore


# -- From nodes to specs -----------------------------------------------------------------------------------------------


def startable(world: World, node: Json) -> Worker | Nested:
    return Nested(world, node) if node.get("type") == "supervisor" else Worker(world, node)


def terms(node: Json) -> dict[str, Any]:
    shutdown = node.get("shutdown")
    return {
        "restart": node.get("restart", "permanent"),
        "shutdown": shutdown / 1000 if isinstance(shutdown, int) else shutdown,
        "significant": node.get("significant", False),
        "type": "supervisor" if node.get("type") == "supervisor" else "worker",
    }


def child_spec(world: World, node: Json) -> ChildSpec:
    return ChildSpec(node["id"], startable(world, node), **terms(node))


def supervisor_spec(world: World, node: Json) -> SupervisorSpec:
    template = node.get("template")

    def dynamic(instance: Json) -> Worker | Nested | Freezer:
        return instance if isinstance(instance, Freezer) else startable(world, {**template, **instance})

    flags = SupervisorSpec(  # first without children: OTP looks at a supervisor's flags before its children
        strategy=node.get("strategy", "one_for_one"),
        intensity=node.get("intensity", 1),
        period=node.get("period", 5),
        auto_shutdown=node.get("auto_shutdown", "never"),
        template=None if template is None else Template(dynamic, **terms(template)),
    )
    return attrs.evolve(flags, children=[child_spec(world, child) for child in node.get("children", ())])
