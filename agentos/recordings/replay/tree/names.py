"""The names and ids in a forked tree: its members call each other as their recorded originals did."""

# A program was told ids and names in the recording, keeps them in its memory, and writes them into messages. So they
# hold among the members when they go on live: what a member asks is changed to its fellows' own ids and names, and what
# it is told is changed back. An id is never used twice in a state directory, so that no other caller has one of these.

import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import wraps
from inspect import iscoroutinefunction, unwrap
from typing import Any

import attrs
import msgspec
from attrs import define, field
from msgspec.structs import replace

from agentos.agents.registry import Registry
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.structs import learn
from agentos_sdk.calls.messages import Sent
from agentos_sdk.errors import NotFound
from agentos_sdk.opcodes import Op

ABOUT_AGENTS = frozenset({Op.EXPLAIN, Op.INSPECT, Op.KILL, Op.WAIT, Op.PAUSE, Op.RESUME, Op.LOGS, Op.SEND, Op.FETCH,
                          Op.KEYS, Op.EXEC, Op.USAGE, Op.GET_PERMS, Op.SET_PERMS, Op.METRICS_AGENT})  # fmt: skip
OWN_FIELDS = ("name", "id", "agent", "agent_id", "to", "to_name")  # of these calls, which name an agent
ADAPTED = ABOUT_AGENTS | {Op.RECV, Op.SPAWN}
FORK_SUFFIX = "-fork"  # of the names of agents that go on live
MAX_NAME = 54  # characters of a name that a suffix and a number follow


class _Letter(msgspec.Struct):
    """A message in a reply of RECV; its body isn't read."""

    id: int
    attempt: int
    from_id: int
    from_: int = msgspec.field(name="from")
    from_name: str
    from_kind: str
    message: msgspec.Raw
    sent_at: float
    age_ms: int


class _Received(msgspec.Struct):
    success: bool
    count: int
    messages: list[_Letter]


learn(_Received)


@define(eq=False)
class TreeNames:
    """Recorded ids and names, and those of the fork's members. ``gone`` are those of agents that had ended."""

    registry: Registry
    gone: Collection[str | int]
    _now: dict[str | int, str | int] = field(factory=dict)  # by what is recorded
    _told: dict[int, tuple[int, str]] = field(factory=dict)  # recorded id and name, by the member's id

    def add(self, number: int, names: Sequence[str], caller: Caller) -> None:
        """A member has come up, of which these were the recorded id and names, the last one first."""
        self._now[number] = caller.id
        self._now.update(dict.fromkeys(names, caller.name))
        self._told[caller.id] = number, names[0]

    def find(self, recorded: Any) -> Any:
        """What a recorded id or name is now; others stay. Raises ``NotFound`` for those of agents that had ended."""
        if type(recorded) not in (int, str):
            return recorded
        if recorded in self.gone and recorded not in self._now:
            raise NotFound(f"{recorded!r} had ended when its tree was forked")
        return self.find_sender(recorded)

    def find_sender(self, recorded: Any) -> Any:
        """The same of the sender of a message that waits, which may have ended."""
        return self._now.get(recorded, recorded)

    def tell(self, number: int, name: str) -> tuple[int, str]:
        """The recorded id and name of a member; those of others are as they are."""
        return self._told.get(number, (number, name))

    def adapt(self, request: Any) -> Any:
        """The request about an agent, as it is done."""
        given = {key: value for key in OWN_FIELDS if (value := getattr(request, key, None)) is not None}
        changed = {key: now for key, value in given.items() if (now := self.find(value)) != value}
        return change(request, changed)

    def open(self, calls: Iterable[Syscall]) -> Sequence[Syscall]:
        """These calls as members make them."""
        return [self.wrap(each) if each.op in ADAPTED else each for each in calls]

    def wrap(self, syscall: Syscall) -> Syscall:
        """One of :data:`ADAPTED`."""
        if syscall.op is Op.RECV:
            return self._wrap_recv(syscall)
        prepare: Any = syscall.prepare
        op = syscall.op
        assert prepare is not None, "all of these need rights"
        if op is not Op.SPAWN:

            @wraps(prepare)
            def prepare_adapted(caller: Caller, request: Any) -> Any:
                found = prepare(caller, self.adapt(request))
                return replace(found, act=self._tell_receiver(found.act)) if op is Op.SEND else found

            return replace(syscall, prepare=prepare_adapted)
        assert iscoroutinefunction(unwrap(prepare)), "it reads files"

        @wraps(prepare)
        async def prepare_spawn(caller: Caller, request: Any) -> Prepared:
            name = self.choose_name(request.name)
            found: Prepared = await prepare(caller, change(request, {"name": name} if name != request.name else {}))
            return replace(found, act=self._tell_spawned(found.act, request.name))

        return replace(syscall, prepare=prepare_spawn)

    def choose_name(self, name: str) -> str:
        """That of an agent that a member spawns: none that an agent has or had, such as the original's child."""
        own = self._now.get(name)
        if isinstance(own, str) and self.registry.is_taken(own):
            return own  # which is refused, as it was for the original
        if self.registry.find_by_name(name) is None:
            return name
        return find_free(f"{name[:MAX_NAME]}{FORK_SUFFIX}", self.registry.is_taken)

    def _tell_receiver(self, act: Callable[[Caller], Any]) -> Callable[[Caller], Any]:
        def send(caller: Caller) -> Any:
            sent = act(caller)
            if not isinstance(sent, Sent):  # to a mailbox that is kept, which no member has
                return sent
            return change(sent, {"delivered_to": self.tell(sent.delivered_to, "")[0]})

        return send

    def _tell_spawned(self, act: Callable[[Call], Awaitable[Any]], name: str) -> Callable[[Call], Awaitable[Any]]:
        async def spawn(call: Call) -> Any:
            spawned = await act(call)
            self._now[name] = spawned.name
            self._told[spawned.id] = spawned.id, name
            return change(spawned, {"name": name})

        return spawn

    def _wrap_recv(self, syscall: Syscall) -> Syscall:
        handler = syscall.handler
        assert handler is not None, "it needs no right"

        async def recv(call: Call, request: Any) -> bytes:
            found = msgspec.json.decode(await handler(call, request), type=_Received)
            for one in found.messages:
                one.from_id, one.from_name = self.tell(one.from_id, one.from_name)
                one.from_ = one.from_id
            return msgspec.json.encode(found)

        return replace(syscall, handler=recv)


def find_free(name: str, is_taken: Callable[[str], bool]) -> str:
    """The name, or that and the first free number."""
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if not is_taken(one))


def change(value: Any, changed: dict[str, object]) -> Any:
    """A request or a reply with these fields."""
    if not changed:
        return value
    return replace(value, **changed) if isinstance(value, msgspec.Struct) else attrs.evolve(value, **changed)
