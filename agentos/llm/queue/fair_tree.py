"""The tree behind the fair queue: branches of agents, each with a counter of the tokens that it was served.

No I/O, no clock.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Generic, Literal, TypeAlias, TypeVar

from attrs import define, field

MAX_WAIT_SAMPLES = 256  # wait times kept per agent

T = TypeVar("T")
Path: TypeAlias = tuple[str, ...]  # an agent: the names from the root of the tree down to its own


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
    leaf: "Leaf[T]"
    payers: "list[Share[T]]" = field(factory=list)  # the counters that it is charged to, once it is chosen


@define(eq=False)
class Share(Generic[T]):
    """A node that competes with its siblings. ``served`` is its counter: tokens per weight, lifted after idling."""

    parent: "Branch[T] | None"
    weight: float = 1.0
    served: float = 0.0


@define(eq=False)
class Leaf(Share[T]):
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
class Branch(Share[T]):
    """An agent with its descendants; the agent's own queue is one of the children that share its part."""

    own: Leaf[T] = field(init=False)
    children: dict[str, "Branch[T]"] = field(factory=dict)
    active: dict[Share[T], None] = field(factory=dict)  # those of own and children that have requests waiting
    floor: float = 0.0  # the least counter of the active children at the last choice or arrival; never decreases

    def __attrs_post_init__(self) -> None:
        self.own = Leaf(self)

    def lift(self, child: Share[T]) -> None:
        """Make a child active; its counter is raised to the least counter of the active children."""
        self.floor = max(self.floor, min((each.served for each in self.active), default=self.floor))
        child.served = max(child.served, self.floor)
        self.active[child] = None

    def next_child(self) -> Share[T]:
        """The child to be served next."""
        if len(self.active) == 1:
            return next(iter(self.active))
        served = min(child.served for child in self.active)
        tied = [child for child in self.active if child.served == served]
        return tied[0] if len(tied) == 1 else min(tied, key=lambda child: head(child).number)


def head(share: Share[T]) -> Ticket[T]:
    while isinstance(share, Branch):
        share = share.next_child()
    assert isinstance(share, Leaf)
    return share.waiting[0]


def in_order(share: Share[T]) -> Iterator[Ticket[T]]:
    """Waiting requests in order of choice, if no more arrive and each uses what it is charged at first."""
    if isinstance(share, Leaf):
        yield from share.waiting
    elif isinstance(share, Branch):
        for _, _, ticket in heapq.merge(*map(_turns, share.active)):
            yield ticket


def _turns(share: Share[T]) -> Iterator[tuple[float, int, Ticket[T]]]:
    served = share.served
    for ticket in in_order(share):
        yield served, ticket.number, ticket
        served += ticket.cost / share.weight


def waiting_leaves(share: Share[T], part: float = 1.0) -> Iterator[tuple[Leaf[T], float]]:
    """The queues with waiting requests, each with the share of the whole that it is due."""
    if isinstance(share, Leaf):
        yield share, part
    elif isinstance(share, Branch):
        weights = sum(child.weight for child in share.active)
        for child in share.active:
            yield from waiting_leaves(child, part * child.weight / weights)


def leaves(branch: Branch[T]) -> Iterator[Leaf[T]]:
    """The queues of an agent and its descendants."""
    yield branch.own
    for child in branch.children.values():
        yield from leaves(child)


def by_number(ticket: Ticket[T]) -> int:
    return ticket.number


def waiting_shares(root: Branch[T], path: Path) -> Iterator[Share[T]]:
    """The shares on the way down to an agent's own queue that have requests waiting."""
    branch = root
    for name in path:
        child = branch.children.get(name)
        if child is None or child not in branch.active:
            return
        yield child
        branch = child
    if branch.own in branch.active:
        yield branch.own
