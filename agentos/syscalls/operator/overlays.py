"""Handlers of DIFF, APPLY and UNDO: what an agent has changed in its overlay of a host directory."""

import contextlib
import math
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from weakref import WeakKeyDictionary

import msgspec
import trio
from attrs import Factory, frozen

from agentos.agents.jail.jail import lineage
from agentos.agents.registry import Agent, Registry
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.sandbox.files.root_files import WORKSPACE
from agentos.services.snapshots.changes import Change, TooManyChanges
from agentos.services.snapshots.choice import BadChoice, Wanted
from agentos.services.snapshots.overlays import Changed, NoOverlay, Overlays
from agentos.services.snapshots.records import BadLayer, CannotApply
from agentos.services.snapshots.snapshots import Taken
from agentos.threads import run_in_thread
from agentos_sdk.calls.operator import overlays as calls
from agentos_sdk.errors import AlreadyExists, BadRequest, CallError, Conflict, NotFound, PermissionDenied, Unavailable
from agentos_sdk.opcodes import Op

PAUSE = 4.0  # times the duration of its last call that a caller other than the operator waits before the next one
MAX_LISTED = 1 << 20  # bytes of JSON with paths in one reply
MAX_BRANCHES = 100  # with commits in one reply
DAMAGED = "a layer of the overlay can't be used: the operator is told why by the same call"


class Pace:
    """Has one caller wait after each call that reads an overlay, so that its share of the kernel's time is bounded."""

    def __init__(self) -> None:
        self._turn, self._next = trio.Lock(), -math.inf

    @asynccontextmanager
    async def take_turn(self) -> AsyncIterator[None]:
        async with self._turn:
            await trio.sleep_until(self._next)
            began = trio.current_time()
            try:
                yield
            finally:
                self._next = trio.current_time() + PAUSE * (trio.current_time() - began)


@frozen
class Paces:
    """That of each caller other than the operator, for all calls about overlays together."""

    _paces: WeakKeyDictionary[Caller, Pace] = Factory(WeakKeyDictionary)

    def take_turn(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        if caller.kind == "operator":
            return contextlib.nullcontext()
        return self._paces.setdefault(caller, Pace()).take_turn()


@frozen
class OverlayCalls:
    """Answers them."""

    registry: Registry
    overlays: Overlays
    paces: Paces

    async def prepare_diff(self, caller: Caller, request: calls.Diff) -> Prepared:
        paths = [normalize(path) for path in request.paths]
        key, right, error = find_overlay(self.registry, caller, request.name, "diff")
        by_agent = caller.kind != "operator"
        if by_agent and request.content:
            error = PermissionDenied(
                "content: only the operator gets texts: an agent may not read all that it can hide"
            )

        async def act(call: Call) -> calls.Diffed:
            async with self.paces.take_turn(caller):
                with explaining(caller):
                    found = await self.overlays.diff(key, paths, request.content, by_agent)
                listed, more = await run_in_thread(list_changes, found.changes, found.texts)
            commits = [
                calls.BranchCommits(
                    repository=one.repository, branch=one.branch, commits=one.commits, dropped=one.dropped
                )
                for one in found.commits[:MAX_BRANCHES]
            ]
            return calls.Diffed(changes=listed, digest=found.digest, more=more, commits=commits)

        return Prepared((right,), act, about=request.name, error=error)

    async def prepare_apply(self, caller: Caller, request: calls.Apply) -> Prepared:
        paths, also = ([normalize(path) for path in given] for given in (request.paths, request.also))
        wanted = Wanted(request.digest, paths, also, {normalize(path): side for path, side in request.resolve.items()})
        key, right, error = find_overlay(self.registry, caller, request.name, "apply")

        async def act(call: Call) -> calls.Applied:
            with explaining(caller):
                done = await self.overlays.apply(key, wanted)
            call.remark = f"{len(done.paths)} applied, {len(done.left)} left"
            (applied, more), (left, unlisted) = cut(done.paths), list_left(done.left)
            return calls.Applied(applied=applied, conflicts=left, apply=done.id or None, more=more + unlisted)

        return Prepared((right,), act, about=request.name, error=error)

    async def prepare_undo(self, caller: Caller, request: calls.Undo) -> Prepared:
        key, right, error = find_overlay(self.registry, caller, request.name, "undo")

        async def act(call: Call) -> calls.Undone:
            with explaining(caller):
                done = await self.overlays.undo(key, request.apply)
            call.remark = f"{len(done.paths)} undone, {len(done.left)} left"
            (undone, more), (left, unlisted) = cut(done.paths), list_left(done.left)
            return calls.Undone(undone=undone, conflicts=left, more=more + unlisted)

        return Prepared((right,), act, about=request.name, error=error)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(Op.DIFF, calls.Diff, prepare=self.prepare_diff, audit="outcome"),
            Syscall(Op.APPLY, calls.Apply, prepare=self.prepare_apply, audit="intent"),
            Syscall(Op.UNDO, calls.Undo, prepare=self.prepare_undo, audit="intent"),
        )


def find_overlay(registry: Registry, caller: Caller, name: str, action: str) -> tuple[str, Right, CallError | None]:
    """The key of an agent's overlay and the right to it; for the operator also that of an agent of the past."""
    agent = registry.find_by_name(name)
    if agent is not None:
        return lineage(agent), Right(action, agent=agent.id), None
    error = None if caller.kind == "operator" else NotFound(f"no agent is called {name!r}")
    return name, Right(action), error


def require_descendant(registry: Registry, caller: Caller, agent: Agent | None) -> CallError | None:
    """Why a caller may not have this agent go back, or fork it, whatever a rule grants."""
    if caller.kind == "operator" or (agent is not None and agent.id != caller.id and registry.is_own(caller, agent.id)):
        return None
    return PermissionDenied("name: only the operator, and agents above it, may do that with an agent")


def normalize(path: str) -> str:
    """A path in the workspace, relative to that; ``""`` is the workspace. ``BadRequest`` for one that leaves it."""
    found = os.path.normpath(os.path.join(WORKSPACE, path))
    if found != WORKSPACE and not found.startswith(f"{WORKSPACE}/"):
        raise BadRequest(f"paths: expected a path in the workspace, got {path!r}")
    return found.removeprefix(WORKSPACE).lstrip("/")


@contextlib.contextmanager
def explaining(caller: Caller) -> Iterator[None]:
    """The errors of overlays as those of calls; paths of the host are told to the operator alone."""
    try:
        yield
    except NoOverlay as error:
        raise NotFound(str(error)) from None
    except BadChoice as error:
        raise BadRequest(str(error)) from None
    except Taken as error:
        raise AlreadyExists(str(error)) from None
    except Changed as error:
        raise Conflict(f"digest: {error}") from None
    except BadLayer as error:
        raise Unavailable(str(error) if caller.kind == "operator" else DAMAGED) from None
    except (CannotApply, TooManyChanges) as error:
        raise Unavailable(str(error)) from None
    except OSError as error:
        place = f"{error.filename}: " if caller.kind == "operator" and error.filename else ""
        raise Unavailable(f"the overlay or its directory can't be used: {place}{error.strerror}") from None


def list_changes(changes: Sequence[Change], texts: Mapping[str, str]) -> tuple[list[calls.OverlayChange], int]:
    """The changes that a reply has room for, and how many it hasn't. Blocks: there may be many."""
    listed: list[calls.OverlayChange] = []
    room = MAX_LISTED
    for change in changes:
        one = calls.OverlayChange(
            path=change.shown_path,
            change=change.what,
            kind=change.kind,
            size=change.size,
            mode=f"{change.mode:04o}",
            obeyed=change.obeyed or None,
            root=change.root or None,
            conflict=change.conflict or None,
            blocked=change.blocked or None,
            diff=texts.get(change.path),
        )
        room -= len(msgspec.json.encode((one.path, one.root)))
        if room < 0:
            break
        listed.append(one)
    return listed, len(changes) - len(listed)


def cut(paths: Sequence[str]) -> tuple[Sequence[str], int]:
    """The paths that a reply has room for, and how many it hasn't."""
    if len(msgspec.json.encode(paths)) <= MAX_LISTED:
        return paths, 0
    found, room = [], MAX_LISTED
    for path in paths:
        room -= len(msgspec.json.encode(path)) + 1
        if room < 0:
            break
        found.append(path)
    return found, len(paths) - len(found)


def list_left(left: Mapping[str, str]) -> tuple[list[calls.LeftPath], int]:
    paths, more = cut([*left])
    return [calls.LeftPath(path=path, reason=left[path]) for path in paths], more
