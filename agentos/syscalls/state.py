"""Handlers of STORE, FETCH, DELETE and KEYS."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import trio
from attrs import field, frozen
from outcome import Value

from agentos.agents.state_spaces import StateSpaces
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.drivers import Begin, Done, Result, Withdraw
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import LARGE_BODY_BYTES, Syscall
from agentos.permissions.patterns.prefixes import intersect_prefixes
from agentos.permissions.rule import Kind
from agentos.services.state.batch import Change
from agentos.services.state.rows import Found
from agentos.services.state.spaces import GLOBAL
from agentos.threads import Limiter
from agentos_sdk.calls import state as calls
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, PermissionDenied
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Scope

MAX_FETCHES = 8  # values of one caller that are read and not sent yet
PAGE_KEYS = 500  # keys that are read at a time
KEYS_PER_TURN = 50  # keys about which is decided between two checkpoints: 1 ms

GrantedPrefixes = Callable[[int, Kind], Sequence[str]]


@frozen(eq=False)
class StateCalls:
    """The handlers. ``granted_prefixes`` returns prefixes of all keys that a caller's grants of a kind may match."""

    spaces: StateSpaces
    granted_prefixes: GrantedPrefixes
    _turns: WeakKeyDictionary[Caller, Limiter] = field(
        factory=WeakKeyDictionary, init=False
    )  # further calls of a caller wait

    def prepare_store(self, caller: Caller, request: calls.Store) -> Prepared:
        assert isinstance(request.value, msgspec.Raw)
        value = bytes(request.value)

        def act(caller: Caller) -> Begin:
            account = self.spaces.account(caller) if caller.kind != "operator" else ""
            space = self.spaces.of(caller)[request.scope]
            change = Change(space, request.key, value, account, request.ttl, request.if_version, caller.id)
            return partial(self._begin_store, change)

        return prepare("store", request.key, request.scope, act)

    @asynccontextmanager
    async def prepare_fetch(self, caller: Caller, request: calls.Fetch) -> AsyncIterator[Prepared]:
        async with self._turns.get(caller) or self._turns.setdefault(caller, Limiter(MAX_FETCHES)):
            scope, found = await self._find(self._spaces_of(caller, request), request.key, request.scope)

            async def act(call: Call) -> bytes:
                await caller.allowance.wait_for_reply_room()
                return encode_found(scope, found)

            yield prepare("fetch", request.key, scope, act, request.agent)

    async def prepare_delete(self, caller: Caller, request: calls.Delete) -> Prepared:
        async with self._turns.get(caller) or self._turns.setdefault(caller, Limiter(MAX_FETCHES)):
            scope, _ = await self._find(self.spaces.of(caller), request.key, request.scope)

        async def act(call: Call) -> calls.Deleted:
            space = self.spaces.of(caller)[scope]
            account = self.spaces.account(caller)
            deleted = await self.spaces.state.delete(space, request.key, request.if_version, account, caller.id)
            return calls.Deleted(deleted=deleted, scope=scope if deleted else None)

        return prepare("delete", request.key, scope, act)

    async def prepare_keys(self, caller: Caller, request: calls.Keys) -> Prepared:
        spaces = self._spaces_of(caller, request)

        async def act(call: Call) -> calls.KeyList:
            scopes: list[Scope] = list(spaces) if request.scope is None else [request.scope]
            lists = [await self._list(caller, spaces[scope], request) for scope in scopes]
            found = merge(scopes, lists)
            shown = found[: request.limit]
            return calls.KeyList(
                keys=[key for key, _ in shown],
                scopes=[scope for _, scope in shown],
                count=len(shown),
                next=shown[-1][0] if len(found) > len(shown) else None,
            )

        about = request.prefix if request.agent is None else f"{request.prefix} (agent {request.agent})"
        return Prepared((Right("keys"),), act, about=about)

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(
                Op.STORE,
                calls.Store,
                prepare=self.prepare_store,
                limit=LARGE_BODY_BYTES,
                verbatim=("value",),
                omittable={"value": None},
                audit="outcome",
                deferred=True,
            ),
            Syscall(Op.FETCH, calls.Fetch, prepare=self.prepare_fetch, audit="outcome"),
            Syscall(Op.DELETE, calls.Delete, prepare=self.prepare_delete, audit="outcome"),
            Syscall(Op.KEYS, calls.Keys, prepare=self.prepare_keys, failure={"keys": [], "count": 0}),
        )

    def _begin_store(self, change: Change, done: Done) -> Withdraw:
        def end(version: Result) -> None:
            if isinstance(version, Value):
                version = Value(calls.Stored(key=change.key, version=version.unwrap()))
            done(version)

        return self.spaces.state.begin_store(change, end)

    def _spaces_of(self, caller: Caller, request: calls.Fetch | calls.Keys) -> dict[Scope, str]:
        """The spaces that a request reads: the caller's, or for the operator that of the agent that it names."""
        if request.agent is None:
            return self.spaces.of(caller)
        if caller.kind != "operator":
            raise PermissionDenied("agent: only the operator may read the own keys of another agent")
        if request.scope not in (None, "agent"):
            raise BadRequest(f"scope: with agent only the scope agent can be read, got {request.scope!r}")
        return self.spaces.of_agent(request.agent)

    async def _find(self, spaces: Mapping[Scope, str], key: str, scope: Scope | None) -> tuple[Scope, Found | None]:
        """Where the key is, or if it is nowhere the last scope that was looked in."""
        found = await self.spaces.state.fetch(list(spaces.values()) if scope is None else [spaces[scope]], key)
        if scope is not None:
            return scope, found
        return next((name for name, space in spaces.items() if found and space == found.space), list(spaces)[-1]), found

    async def _list(self, caller: Caller, space: str, request: calls.Keys) -> list[str]:
        """The first keys of a space that the caller may list: one more than it wants, if there are more."""
        wanted, after, found = request.limit + 1, request.after, list[str]()
        if space != GLOBAL:
            return await self.spaces.state.keys(space, [request.prefix], after, wanted)
        prefixes = intersect_prefixes([request.prefix], self.granted_prefixes(caller.id, "state_read"))
        while len(found) < wanted:
            page = await self.spaces.state.keys(space, prefixes, after, PAGE_KEYS)
            for number, key in enumerate(page, 1):
                if caller.authorizer.decide(caller, Right("keys", key)).effect == "allow":
                    found.append(key)
                if not number % KEYS_PER_TURN:
                    await trio.lowlevel.checkpoint()
            if len(page) < PAGE_KEYS:
                break
            after = page[-1]
        return found[:wanted]


def prepare(action: str, key: str, scope: Scope, act: Callable[[Any], object], agent: str | None = None) -> Prepared:
    """The right to a global key by its name. About a private key, the caller's own, only the call is decided.

    ``agent``: the agent that the key belongs to, if it isn't the caller.
    """
    if scope == "global":
        return Prepared((Right(action, key),), act)
    return Prepared((Right(action),), act, about=f"{key} ({scope}{f' {agent}' if agent else ''})")


def merge(scopes: Iterable[Scope], lists: Iterable[Iterable[str]]) -> list[tuple[str, Scope]]:
    """Sorted keys of several scopes in one list; a key in several of them is in the first one's."""
    scope_of: dict[str, Scope] = {}
    for scope, keys in zip(scopes, lists, strict=True):
        for key in keys:
            scope_of.setdefault(key, scope)
    return sorted(scope_of.items())


def encode_found(scope: Scope, found: Found | None) -> bytes:
    """FETCH's reply, assembled around a value that is JSON already."""
    if found is None:
        return codec.encode(calls.Fetched(exists=False, value=None, scope=None, version=0))
    left = "null" if found.expires is None else f"{max(0.0, found.expires - time.time()):.3f}"
    return b'{"success":true,"exists":true,"value":%s,"scope":"%s","version":%d,"expires_in":%s}' % (
        found.value,
        scope.encode(),
        found.version,
        left.encode(),
    )
