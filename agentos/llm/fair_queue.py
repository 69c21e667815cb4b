"""Fair queue of LLM requests: the agent that was served the fewest tokens goes next.

Each agent has its own FIFO. Agents are compared by the tokens they used, with the virtual token counter of "Fairness in
Serving Large Language Models" (Sheng et al., OSDI 2024). A request is charged its input when it is chosen and its
output as it arrives. The counter of an agent that begins to wait is lifted to the least counter of the waiting agents,
so idle time gives no credit. Between equal counters the older request is chosen.

Agents form a tree. Each branch (an agent with its descendants) has one share among its siblings, however many agents it
spawns: the same choice is made at every level, from the root down, with one counter per branch.

Guarantee, with ``L(x)`` the largest charge of one request of x, ``w(x)`` its weight, and k requests in flight at most:
while i waits for its next turn, a sibling j gets at most ``k * (L(j) + L(i) * w(j) / w(i))`` tokens. With equal weights
and one worker that is one request of each. If requests may be charged more at first than they use in the end, j may
also get back the excess, ``k * L(j)``. The number of requests that wait elsewhere doesn't matter.

Every request belongs to a lane: its model. The requests of a closed lane are parked. A parked request keeps its number
and counts towards the limits, but is not chosen and doesn't compete. An agent that has only parked requests counts as
idle and gains no credit.

No I/O, no clock: times are arguments, in seconds on any monotonic clock.
"""

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Generic, Literal, TypeAlias, TypeVar

from attrs import define, field

from agentos_sdk.errors import Busy
from agentos_sdk.values import Waits

MAX_WAITING_PER_AGENT = 100  # waiting requests of one agent
MAX_WAITING = 1000  # waiting requests of all agents; see FairQueue.put
OUTPUT_WEIGHT = 2  # one output token counts as this many input tokens, as in the paper: it occupies the worker longer
MIN_CHARGE = 1  # tokens charged for every chosen request; otherwise an agent refunded in full would always be next
MAX_WAIT_SAMPLES = 256  # wait times kept per agent

T = TypeVar("T")
Path: TypeAlias = tuple[str, ...]  # an agent: the names from the root of the tree down to its own


def weighted_cost(tokens_in: float, tokens_out: float = 0) -> float:
    """Cost of a request in input tokens."""
    return tokens_in + OUTPUT_WEIGHT * tokens_out


def jain_index(values: Iterable[float]) -> float:
    """Jain's fairness index: 1 if all got the same or all got nothing, 1/n if one of n got everything."""
    got = list(values)
    squares = sum(value * value for value in got)
    return sum(got) ** 2 / (len(got) * squares) if squares else 1.0


class QueueFull(Busy):
    """The queue is full; ``which``: the queue of the ``agent``, or that of ``all``."""

    def __init__(self, message: str, which: Literal["agent", "all"]) -> None:
        super().__init__(message, which=which)
        self.which = which


@define(eq=False)
class Ticket(Generic[T]):
    """A request, waiting or in flight. ``number``: order of arrival."""

    item: T
    path: Path
    cost: float  # tokens, charged when chosen
    queued_at: float  # seconds
    number: int
    state: Literal["waiting", "chosen", "withdrawn"]
    charged: float  # tokens so far
    lane: str
    _leaf: "_Leaf[T]"


@define(eq=False)
class _Share(Generic[T]):
    """A node that competes with its siblings. ``served`` is its counter: tokens per weight, lifted after idling."""

    parent: "_Branch[T] | None"
    weight: float = 1.0
    served: float = 0.0


@define(eq=False)
class _Leaf(_Share[T]):
    """One agent's own queue."""

    waiting: deque[Ticket[T]] = field(factory=deque)  # by number
    parked: dict[Ticket[T], None] = field(factory=dict)  # requests of closed lanes
    waits: deque[float] = field(factory=lambda: deque(maxlen=MAX_WAIT_SAMPLES))
    used: float = 0.0  # tokens
    activations: int = 0  # how often it went from idle to waiting

    @property
    def depth(self) -> int:
        return len(self.waiting) + len(self.parked)


@define(eq=False)
class _Branch(_Share[T]):
    """An agent with its descendants; the agent's own queue is one of the children that share its part."""

    own: _Leaf[T] = field(init=False)
    children: dict[str, "_Branch[T]"] = field(factory=dict)
    active: dict[_Share[T], None] = field(factory=dict)  # those of own and children that have requests waiting
    floor: float = 0.0  # the least counter of the active children at the last choice or arrival; never decreases

    def __attrs_post_init__(self) -> None:
        self.own = _Leaf(self)

    def lift(self, child: _Share[T]) -> None:
        """Make a child active; its counter is raised to the least counter of the active children."""
        self.floor = max(self.floor, min((each.served for each in self.active), default=self.floor))
        child.served = max(child.served, self.floor)
        self.active[child] = None

    def next_child(self) -> _Share[T]:
        """The child to be served next."""
        if len(self.active) == 1:
            return next(iter(self.active))
        served = min(child.served for child in self.active)
        tied = [child for child in self.active if child.served == served]
        return tied[0] if len(tied) == 1 else min(tied, key=lambda child: _head(child).number)


def _head(share: _Share[T]) -> Ticket[T]:
    while isinstance(share, _Branch):
        share = share.next_child()
    assert isinstance(share, _Leaf)
    return share.waiting[0]


def _in_order(share: _Share[T]) -> Iterator[Ticket[T]]:
    """Waiting requests in order of choice, if no more arrive and each uses what it is charged at first."""
    if isinstance(share, _Leaf):
        yield from share.waiting
    elif isinstance(share, _Branch):
        for _, _, ticket in heapq.merge(*map(_turns, share.active)):
            yield ticket


def _turns(share: _Share[T]) -> Iterator[tuple[float, int, Ticket[T]]]:
    served = share.served
    for ticket in _in_order(share):
        yield served, ticket.number, ticket
        served += ticket.cost / share.weight


def _waiting_leaves(share: _Share[T], part: float = 1.0) -> Iterator[tuple[_Leaf[T], float]]:
    """The queues with waiting requests, each with the share of the whole that it is due."""
    if isinstance(share, _Leaf):
        yield share, part
    elif isinstance(share, _Branch):
        weights = sum(child.weight for child in share.active)
        for child in share.active:
            yield from _waiting_leaves(child, part * child.weight / weights)


def _leaves(branch: _Branch[T]) -> Iterator[_Leaf[T]]:
    """The queues of an agent and its descendants."""
    yield branch.own
    for child in branch.children.values():
        yield from _leaves(child)


def _number(ticket: Ticket[T]) -> int:
    return ticket.number


class FairQueue(Generic[T]):
    """All requests that wait for the model; ``Line`` takes from it when a worker is free."""

    def __init__(self, per_agent: int = MAX_WAITING_PER_AGENT, in_all: int = MAX_WAITING) -> None:
        self._per_agent, self._in_all = per_agent, in_all
        self._root: _Branch[T] = _Branch(None)
        self._waiting = 0  # requests, parked ones included
        self._arrivals = 0
        self._lanes: dict[str, dict[Ticket[T], None]] = {}  # the waiting requests, by lane and number
        self._closed: set[str] = set()

    def __len__(self) -> int:
        return self._waiting

    @property
    def ready(self) -> bool:
        """Whether a request waits that is not parked."""
        return bool(self._root.active)

    @property
    def closed(self) -> Collection[str]:
        """The closed lanes."""
        return self._closed

    def put(self, path: Path, item: T, cost: float, now: float, *, lane: str = "", again: bool = False) -> Ticket[T]:
        """Queue a request; ``cost`` in tokens is charged when it is chosen, :meth:`charge` corrects it.

        Raises :class:`QueueFull`. A full queue still accepts a request of an agent that has none waiting, so that other
        agents can't lock it out: at most ``in_all`` requests wait, plus one per agent. A request that was chosen before
        may wait ``again``, beyond these limits.
        """
        leaf = self._branch(path).own
        if not again and leaf.depth >= self._per_agent:
            raise QueueFull(f"{leaf.depth} requests of yours wait for the model: let some be answered", "agent")
        if not again and self._waiting >= self._in_all and leaf.depth:
            raise QueueFull(
                f"{self._waiting} requests wait for the model, some of yours among them: try again later", "all"
            )
        ticket = Ticket(item, path, max(cost, MIN_CHARGE), now, self._arrivals, "waiting", 0.0, lane, leaf)
        self._arrivals += 1
        self._waiting += 1
        self._lanes.setdefault(lane, {})[ticket] = None
        if lane in self._closed:
            leaf.parked[ticket] = None
        else:
            self._enqueue(ticket)
        return ticket

    def close(self, lane: str) -> None:
        """Park all requests of a lane, also those that arrive later, until it is opened."""
        if lane not in self._closed:
            self._closed.add(lane)
            for ticket in self._lanes.get(lane, ()):
                self._dequeue(ticket)
                ticket._leaf.parked[ticket] = None

    def open(self, lane: str) -> None:
        """Let the requests of a lane compete again, each in its former place in its agent's queue."""
        if lane in self._closed:
            self._closed.remove(lane)
            for ticket in self._lanes.get(lane, ()):
                del ticket._leaf.parked[ticket]
                self._enqueue(ticket)

    def waiting_in(self, lane: str) -> list[Ticket[T]]:
        """The waiting requests of a lane, parked or not, by number."""
        return list(self._lanes.get(lane, ()))

    def take(self, now: float) -> Ticket[T] | None:
        """Choose the next request, which is then in flight. ``None``: no request waits that isn't parked."""
        if not self._root.active:
            return None
        share: _Share[T] = self._root
        while isinstance(share, _Branch):
            child = share.next_child()
            share.floor = max(share.floor, child.served)
            share = child
        assert isinstance(share, _Leaf)
        ticket = share.waiting[0]
        share.waits.append(now - ticket.queued_at)
        self._finish(ticket, "chosen")
        self.charge(ticket, ticket.cost)
        return ticket

    def charge(self, ticket: Ticket[T], used: float) -> None:
        """Set the total tokens that a request has used; called as output arrives and once at the end."""
        if ticket.state != "chosen":
            raise ValueError(f"a request that is {ticket.state} uses nothing")
        if not math.isfinite(used):
            raise ValueError(f"{used} tokens can't be charged")  # otherwise counters could no longer be compared
        more = max(used, MIN_CHARGE) - ticket.charged
        ticket.charged += more
        ticket._leaf.used += more
        share: _Share[T] | None = ticket._leaf
        while share is not None:
            share.served += more / share.weight
            share = share.parent

    def withdraw(self, ticket: Ticket[T]) -> bool:
        """Withdraw a request; returns whether it was still waiting."""
        if ticket.state != "waiting":
            return False
        self._finish(ticket, "withdrawn")
        return True

    def remove(self, path: Path) -> list[Ticket[T]]:
        """Forget an agent and its descendants with weights and counters; withdraw and return its waiting requests.

        Requests in flight are still charged to the branches above. Don't remove a name that will return: its debt would
        be lost.
        """
        branch = self._find(path)
        if branch is None:
            return []
        parked = [ticket for leaf in _leaves(branch) for ticket in leaf.parked]
        gone = [ticket for ticket in [*_in_order(branch), *parked] if self.withdraw(ticket)]
        if branch.parent is not None:
            del branch.parent.children[path[-1]]
        return gone

    def set_weight(self, path: Path, weight: float) -> None:
        """Give an agent and its descendants ``weight`` times the share of a sibling with weight 1."""
        if not 0 < weight < math.inf:
            raise ValueError(f"a weight is a number above 0, not {weight}")
        self._branch(path).weight = weight

    def depth(self, path: Path) -> int:
        """How many requests of an agent wait, not counting its descendants."""
        branch = self._find(path)
        return branch.own.depth if branch else 0

    def order(self) -> Iterator[Ticket[T]]:
        """Requests that wait and aren't parked, in order of choice if no more arrive and each uses its ``cost``.

        The queue must not change during iteration.
        """
        return _in_order(self._root)

    def parked(self) -> Iterator[Ticket[T]]:
        """The requests of closed lanes."""
        for lane in self._closed:
            yield from self._lanes.get(lane, ())

    def position(self, ticket: Ticket[T]) -> int | None:
        """Position of ``ticket`` in :meth:`order`; 1 is the next."""
        return next((place for place, each in enumerate(self.order(), 1) if each is ticket), None)

    def wait_times(self, path: Path) -> Waits | None:
        """Wait times of an agent; ``None``: none of its requests was chosen yet."""
        branch = self._find(path)
        if branch is None or not branch.own.waits:
            return None
        waits = sorted(branch.own.waits)
        p50, p95 = (waits[math.ceil(len(waits) * part) - 1] for part in (0.5, 0.95))
        return Waits(len(waits), p50 * 1000, p95 * 1000)

    def snapshot(self) -> Mapping[_Leaf[T], tuple[int, float]]:
        """A snapshot that :meth:`fairness` compares with."""
        return {leaf: (leaf.activations, leaf.used) for leaf, _ in _waiting_leaves(self._root)}

    def fairness(self, since: Mapping[_Leaf[T], tuple[int, float]]) -> float:
        """Jain's index of the agents that have had requests waiting ever since the snapshot.

        The values are what each agent got relative to the share it was due. The other agents got what they asked for,
        as soon as they asked.
        """
        got = []
        for leaf, part in _waiting_leaves(self._root):
            activations, used = since.get(leaf, (None, 0.0))
            if activations == leaf.activations:
                got.append((leaf.used - used) / part)
        return jain_index(got)

    def _find(self, path: Path) -> _Branch[T] | None:
        branch: _Branch[T] | None = self._root
        for name in path:
            branch = branch.children.get(name) if branch else None
        return branch

    def _branch(self, path: Path) -> _Branch[T]:
        branch = self._root
        for name in path:
            if name not in branch.children:
                branch.children[name] = _Branch(branch)
            branch = branch.children[name]
        return branch

    def _enqueue(self, ticket: Ticket[T]) -> None:
        """Let a request compete; its agent becomes active if it had no such request."""
        leaf = ticket._leaf
        insort(leaf.waiting, ticket, key=_number)
        if len(leaf.waiting) == 1:
            leaf.activations += 1
            share: _Share[T] = leaf
            while share.parent is not None and share not in share.parent.active:
                share.parent.lift(share)
                share = share.parent

    def _dequeue(self, ticket: Ticket[T]) -> None:
        leaf = ticket._leaf
        leaf.waiting.remove(ticket)
        share: _Share[T] = leaf
        while share.parent is not None and not (share.active if isinstance(share, _Branch) else leaf.waiting):
            share.parent.active.pop(share, None)
            share = share.parent

    def _finish(self, ticket: Ticket[T], state: Literal["chosen", "withdrawn"]) -> None:
        if ticket in ticket._leaf.parked:
            del ticket._leaf.parked[ticket]
        else:
            self._dequeue(ticket)
        ticket.state = state
        self._waiting -= 1
        lane = self._lanes[ticket.lane]
        del lane[ticket]
        if not lane:
            del self._lanes[ticket.lane]
