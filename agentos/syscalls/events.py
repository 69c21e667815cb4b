"""Handlers of SUBSCRIBE, UNSUBSCRIBE, POLL_EVENTS and EMIT."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import trio
from attrs import field, frozen

from agentos.access.event_sight import CallerRules, family_of
from agentos.agents.registry import Registry
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared, require_still
from agentos.kernel.syscall import LARGE_BODY_BYTES, Syscall
from agentos.permissions.authorizer import PermissionAuthorizer
from agentos.services.event_log.ring import EventLog, Page, Start
from agentos.services.event_log.subscription import Filter, Subscription, Viewer
from agentos.services.events import CustomEvent
from agentos.services.rate_limit import Rate
from agentos_sdk.calls import events as calls
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest, QuotaExceeded
from agentos_sdk.opcodes import Op

MAX_FILTERS = 32  # of one caller: those that it polls, and its streams
MAX_PAGE_BYTES = 256 << 10  # of events in one reply
MAX_FRAME_BYTES = 20 << 10  # … in one CHUNK frame: what a reader that stops holds, twice
FRAME_SECONDS = 0.05  # between two CHUNK frames of a stream
MAX_DATA_BYTES = 16 << 10  # of an emitted event
EMITS_PER_SECOND, EMIT_BURST = 100.0, 500.0  # of an agent with its descendants, or of a guest
MAX_RATES = 4096  # families with a remembered rate
NOTHING = Start(0)
HALF_PAIR = re.compile("[\ud800-\udfff]")


@frozen(eq=False)
class EventCalls:
    """The handlers, with the streams and the EMIT rates of all callers."""

    log: EventLog
    registry: Registry
    authorizer: PermissionAuthorizer
    _streams: Counter[int] = field(factory=Counter, init=False)  # by caller
    _rates: dict[str, Rate] = field(factory=dict, init=False)  # of EMIT, by family

    def __attrs_post_init__(self) -> None:
        self.authorizer.observers.append(self.log.judge_again)

    # -- SUBSCRIBE and UNSUBSCRIBE ---------------------------------------------------------------------------------

    async def prepare_subscribe(self, caller: Caller, request: calls.Subscribe) -> Prepared:
        if not request.event_types:
            raise BadRequest("event_types: expected at least one, such as AGENT_* or *")
        check_since(request.since, request.boot)
        agents = frozenset(request.agents) if request.agents is not None else None
        wanted = Filter(tuple(dict.fromkeys(request.event_types)), agents, request.prefix)
        rights = self._rights(request.agents or ())

        async def act(call: Call) -> calls.Subscribed:
            polled = self.log.polled.get(caller.id)
            filters = polled.filters if polled is not None else []
            if (request.stream or wanted not in filters) and self._streams[caller.id] + len(filters) >= MAX_FILTERS:
                raise QuotaExceeded(f"a caller has at most {MAX_FILTERS} subscriptions: end one with UNSUBSCRIBE")
            if request.stream:
                call.require_stream("stream")
                return await self._stream(call, wanted, request, rights)
            return self._begin(polled or self._poll(caller), wanted, request)

        return Prepared(rights, act, about=", ".join(request.event_types))

    def _rights(self, agents: Sequence[int | str]) -> tuple[Right, ...]:
        """The rights to events of those of these agents that exist."""
        found = [self.registry.get(one) if isinstance(one, int) else self.registry.find_by_name(one) for one in agents]
        return tuple(Right("subscribe", agent=one.id) for one in found if one is not None) or (Right("subscribe"),)

    def _poll(self, caller: Caller) -> Subscription:
        """Add a subscription for a caller to poll."""
        found = self.log.polled[caller.id] = self._construct(caller)
        self.log.subscribe(found)
        return found

    def _construct(self, caller: Caller) -> Subscription:
        judge = CallerRules(caller, self.registry, self.authorizer)
        return Subscription(Viewer(self.log.boot, caller.id, judge, self.authorizer), [])

    def _begin(self, subscription: Subscription, wanted: Filter, request: calls.Subscribe) -> calls.Subscribed:
        """Add a filter to a subscription, and move its cursor if the request says ``since``."""
        if wanted not in subscription.filters:
            self.log.look()
            subscription.add_filter(wanted)
            self.log.change(subscription)
        start = self._move(subscription, request.since, request.boot)
        return calls.Subscribed(
            subscribed=list_types(subscription),
            boot=self.log.boot,
            seq=self.log.next - 1,
            boot_changed=start.boot_changed,
            cut_off=start.cut_off,
            missed=start.missed,
        )

    def _move(self, subscription: Subscription, since: int | None, boot: str | None) -> Start:
        """Move a subscription's cursor behind the event ``since``."""
        if since is None:
            return NOTHING
        start = self.log.locate(since, boot)
        subscription.move(start.place)
        return start

    def prepare_unsubscribe(self, caller: Caller, request: calls.Unsubscribe) -> Prepared:
        def act(caller: Caller) -> calls.Unsubscribed:
            found = self.log.polled.get(caller.id)
            if found is None:
                return calls.Unsubscribed(unsubscribed=())
            self.log.look()
            ended = found.forget_types(list_types(found) if request.all else request.event_types)
            if found.filters:
                self.log.change(found)
            else:
                self.log.forget(caller.id)
            return calls.Unsubscribed(unsubscribed=ended)

        if request.all == bool(request.event_types):
            raise BadRequest("event_types: expected exactly one of event_types and all")
        return Prepared((Right("unsubscribe"),), act)

    # -- Reading ---------------------------------------------------------------------------------------------------

    async def _stream(
        self, call: Call, wanted: Filter, request: calls.Subscribe, rights: Sequence[Right]
    ) -> calls.Subscribed:
        """Send frames until the client withdraws the call, or rules no longer allow it."""
        subscription = self._construct(call.caller)
        with self._counted(call.caller, subscription):
            begun = self._begin(subscription, wanted, request)
            await call.send(self._encode_page(Page(missed=begun.missed), begun))
            while True:
                await self.log.wait(subscription)
                require_still(call.caller, rights)
                page = await self.log.read(subscription, calls.MAX_EVENTS, MAX_FRAME_BYTES)
                if page.events or page.missed:
                    next_frame = trio.current_time() + FRAME_SECONDS
                    frame = self._encode_page(page)
                    del page  # so that a reader that stops holds only the frame
                    await call.send(frame)
                    await trio.sleep_until(next_frame)

    @contextlib.contextmanager
    def _counted(self, caller: Caller, subscription: Subscription) -> Iterator[None]:
        self._streams[caller.id] += 1
        self.log.subscribe(subscription)
        try:
            yield
        finally:
            self.log.unsubscribe(subscription)
            self._streams[caller.id] -= 1
            if not self._streams[caller.id]:
                del self._streams[caller.id]

    async def prepare_poll(self, caller: Caller, request: calls.PollEvents) -> Prepared:
        right = Right("poll_events")
        check_since(request.since, request.boot)

        async def act(call: Call) -> bytes:
            await caller.allowance.wait_for_reply_room()
            subscription = self.log.polled.get(caller.id)
            if subscription is None:
                if request.timeout > 0:
                    raise BadRequest("timeout: you are subscribed to nothing, so nothing would come: SUBSCRIBE first")
                return b'{"success":true,' + self._encode_page(Page())[1:]
            start = self._move(subscription, request.since, request.boot)
            limit = min(request.max, calls.MAX_EVENTS)
            page = await self.log.read(subscription, limit, MAX_PAGE_BYTES)
            with trio.move_on_after(request.timeout):
                while not page.events and not page.missed and subscription.filters and request.timeout > 0:
                    await self.log.wait(subscription)
                    require_still(caller, [right])
                    page = await self.log.read(subscription, limit, MAX_PAGE_BYTES)
            call.undelivered = lambda: subscription.put_back(page.place, page.missed)
            return b'{"success":true,' + self._encode_page(page, start)[1:]

        return Prepared((right,), act)

    def _encode_page(self, page: Page, begun: calls.Subscribed | Start = NOTHING) -> bytes:
        """A page as JSON, assembled around events that are JSON already."""
        missed = page.missed + (begun.missed if isinstance(begun, Start) else 0)
        more = b""
        if isinstance(begun, calls.Subscribed):
            more = b',"subscribed":%s,"seq":%d' % (codec.encode(begun.subscribed), begun.seq)
        return b'{"events":[%s],"count":%d,"missed":%d,"boot":"%s","boot_changed":%s,"cut_off":%s%s}' % (
            *(b",".join(page.events), len(page.events), missed, self.log.boot.encode()),
            *(codec.encode(begun.boot_changed), codec.encode(begun.cut_off), more),
        )

    # -- EMIT ------------------------------------------------------------------------------------------------------

    def prepare_emit(self, caller: Caller, request: calls.Emit) -> Prepared:
        if (request.event_type is None) == (request.event is None):
            raise BadRequest("event_type: expected CUSTOM, TASK_STEP or custom.NAME, once")
        kind = request.event_type or request.event or ""
        data = bytes(request.data) if isinstance(request.data, msgspec.Raw) else b"{}"
        if len(data) > MAX_DATA_BYTES:
            raise BadRequest(f"data: expected at most {MAX_DATA_BYTES} bytes of JSON, got {len(data)}")
        data = replace_half_pairs(data)

        def act(caller: Caller) -> calls.Emitted:
            self._charge(caller)
            event = CustomEvent(caller.id, caller.shown_name, kind, msgspec.Raw(data), family_of(caller))
            self.registry.publish(event)
            return calls.Emitted(event=kind, delivered_to=self.log.count_readers())

        return Prepared((Right("emit"),), act, about=kind)

    def _charge(self, caller: Caller) -> None:
        """Take a token of the rate of the caller's family; the operator has none."""
        if caller.kind == "operator":
            return
        if len(self._rates) >= MAX_RATES:
            self._rates.clear()
        rate = self._rates.setdefault(caller.family, Rate(EMITS_PER_SECOND, EMIT_BURST))
        if (wait := rate.wait(trio.current_time())) > 0:
            raise QuotaExceeded(
                f"{caller.name} may emit {EMITS_PER_SECOND:g} events per second, with all that it spawned: "
                f"the next in {wait:.2f} s"
            )

    def syscalls(self) -> tuple[Syscall, ...]:
        nothing = {"events": [], "count": 0, "missed": 0}
        return (
            Syscall(Op.SUBSCRIBE, calls.Subscribe, prepare=self.prepare_subscribe),
            Syscall(Op.UNSUBSCRIBE, calls.Unsubscribe, prepare=self.prepare_unsubscribe),
            Syscall(Op.POLL_EVENTS, calls.PollEvents, prepare=self.prepare_poll, failure=nothing),
            Syscall(Op.EMIT, calls.Emit, prepare=self.prepare_emit, limit=LARGE_BODY_BYTES, verbatim=("data",)),
        )


def check_since(since: int | None, boot: str | None) -> None:
    if boot is not None and since is None:
        raise BadRequest("boot: expected only with since")


def replace_half_pairs(data: bytes) -> bytes:
    """JSON with U+FFFD for each half of a surrogate pair, which UTF-8 can't encode and many parsers refuse.

    It isn't refused: an agent that reports its steps may have it from a file's name or from the model.
    """
    if rb"\ud" not in data and rb"\uD" not in data:
        return data
    text = json.dumps(codec.parse(data), ensure_ascii=False, separators=(",", ":"))  # whole pairs are one character
    replaced = HALF_PAIR.sub("\ufffd", text)
    return data if replaced == text else replaced.encode()


def list_types(subscription: Subscription) -> Sequence[str]:
    return list(dict.fromkeys(kind for one in subscription.filters for kind in one.types))
