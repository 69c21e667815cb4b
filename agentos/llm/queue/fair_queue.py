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

A lane belongs to a pool: its provider, with places of its own. Each pool has its own counters, so that a full pool
delays none of another's requests. What an agent gets from one pool also counts in each other pool where it waits at
that moment: agents that always wait get the same in all, wherever they ask. In the guarantee above, k is the number of
places of the pool, and j may get, besides, what i got from other pools meanwhile.

No I/O, no clock: times are arguments, in seconds on any monotonic clock.
"""

import math
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Generic, Literal

from agentos_sdk.errors import Busy
from agentos_sdk.values import Waits

from .fair_tree import Branch, Leaf, Path, Share, T, Ticket, by_number, in_order, leaves, waiting_leaves, waiting_shares

MAX_WAITING_PER_AGENT = 100  # waiting requests of one agent
MAX_WAITING = 1000  # waiting requests of all agents; see FairQueue.put
OUTPUT_WEIGHT = 2  # one output token counts as this many input tokens, as in the paper: it occupies the worker longer
MIN_CHARGE = 1  # tokens charged for every chosen request; otherwise an agent refunded in full would always be next


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


class FairQueue(Generic[T]):
    """All requests that wait for the model; ``Line`` takes from it when a worker is free."""

    def __init__(
        self, per_agent: int = MAX_WAITING_PER_AGENT, in_all: int = MAX_WAITING, pools: Iterable[str] = ("",)
    ) -> None:
        self._per_agent, self._in_all = per_agent, in_all
        self._roots: Mapping[str, Branch[T]] = {pool: Branch(None) for pool in pools}
        self._waiting = 0  # requests, parked ones included
        self._arrivals = 0
        self._lanes: dict[str, dict[Ticket[T], None]] = {}  # the waiting requests, by lane and number
        self._closed: set[str] = set()

    def __len__(self) -> int:
        return self._waiting

    @property
    def closed(self) -> Collection[str]:
        """The closed lanes."""
        return self._closed

    def put(
        self, path: Path, item: T, cost: float, now: float, *, lane: str = "", pool: str = "", again: bool = False
    ) -> Ticket[T]:
        """Queue a request; ``cost`` in tokens is charged when it is chosen, :meth:`charge` corrects it.

        Raises :class:`QueueFull`. A full queue still accepts a request of an agent that has none waiting, so that other
        agents can't lock it out: at most ``in_all`` requests wait, plus one per agent. A request that was chosen before
        may wait ``again``, beyond these limits.
        """
        depth = self.depth(path)
        if not again and depth >= self._per_agent:
            raise QueueFull(f"{depth} requests of yours wait for the model: let some be answered", "agent")
        if not again and self._waiting >= self._in_all and depth:
            raise QueueFull(
                f"{self._waiting} requests wait for the model, some of yours among them: try again later", "all"
            )
        leaf = _branch(self._roots[pool], path).own
        ticket = Ticket(item, path, max(cost, MIN_CHARGE), now, self._arrivals, "waiting", 0.0, lane, leaf)
        self._arrivals += 1
        self._insert(ticket)
        return ticket

    def move(self, ticket: Ticket[T], lane: str, pool: str = "") -> None:
        """Move a waiting request to another lane; it keeps its number."""
        if ticket.state != "waiting":
            raise ValueError(f"a request that is {ticket.state} is in no lane")
        self._take_out(ticket)
        ticket.lane, ticket.leaf = lane, _branch(self._roots[pool], ticket.path).own
        self._insert(ticket)

    def close(self, lane: str) -> None:
        """Park all requests of a lane, also those that arrive later, until it is opened."""
        if lane not in self._closed:
            self._closed.add(lane)
            for ticket in self.waiting_in(lane):
                self._dequeue(ticket)
                ticket.leaf.parked[ticket] = None

    def open(self, lane: str) -> None:
        """Let the requests of a lane compete again, each in its former place in its agent's queue."""
        if lane in self._closed:
            self._closed.remove(lane)
            for ticket in self.waiting_in(lane):
                del ticket.leaf.parked[ticket]
                self._enqueue(ticket)

    def waiting_in(self, lane: str) -> list[Ticket[T]]:
        """The waiting requests of a lane, parked or not, by number."""
        return sorted(self._lanes.get(lane, ()), key=by_number)

    def take(self, now: float, pool: str = "") -> Ticket[T] | None:
        """Choose the next request, which is then in flight. ``None``: no request waits that isn't parked."""
        share: Share[T] = self._roots[pool]
        if not self._roots[pool].active:
            return None
        while isinstance(share, Branch):
            child = share.next_child()
            share.floor = max(share.floor, child.served)
            share = child
        assert isinstance(share, Leaf)
        ticket = share.waiting[0]
        share.waits.append(now - ticket.queued_at)
        self._take_out(ticket)
        ticket.state = "chosen"
        others = (root for name, root in self._roots.items() if name != pool)
        ticket.payers = [*_upwards(share), *chain.from_iterable(waiting_shares(root, ticket.path) for root in others)]
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
        for share in ticket.payers:
            share.served += more / share.weight
            if isinstance(share, Leaf):
                share.used += more

    def withdraw(self, ticket: Ticket[T]) -> bool:
        """Withdraw a request; returns whether it was still waiting."""
        if ticket.state != "waiting":
            return False
        self._take_out(ticket)
        ticket.state = "withdrawn"
        return True

    def remove(self, path: Path) -> list[Ticket[T]]:
        """Forget an agent and its descendants with weights and counters; withdraw and return its waiting requests.

        Requests in flight are still charged to the branches above. Don't remove a name that will return: its debt would
        be lost.
        """
        gone: list[Ticket[T]] = []
        for branch in self._branches(path):
            parked = [ticket for leaf in leaves(branch) for ticket in leaf.parked]
            gone += [ticket for ticket in [*in_order(branch), *parked] if self.withdraw(ticket)]
            if branch.parent is not None:
                del branch.parent.children[path[-1]]
        return gone

    def set_weight(self, path: Path, weight: float) -> None:
        """Give an agent and its descendants ``weight`` times the share of a sibling with weight 1."""
        if not 0 < weight < math.inf:
            raise ValueError(f"a weight is a number above 0, not {weight}")
        for root in self._roots.values():
            _branch(root, path).weight = weight

    def depth(self, path: Path) -> int:
        """How many requests of an agent wait, not counting its descendants."""
        return sum(branch.own.depth for branch in self._branches(path))

    def order(self) -> Iterator[tuple[int, Ticket[T]]]:
        """Requests that wait and aren't parked, each with its position in its pool; 1 is the next.

        That is the order of choice if no more arrive and each uses its ``cost``. The queue must not change during
        iteration.
        """
        for root in self._roots.values():
            yield from enumerate(in_order(root), 1)

    def parked(self) -> Iterator[Ticket[T]]:
        """The requests of closed lanes."""
        for lane in self._closed:
            yield from self._lanes.get(lane, ())

    def wait_times(self, path: Path) -> Waits | None:
        """Wait times of an agent; ``None``: none of its requests was chosen yet."""
        waits = sorted(chain.from_iterable(branch.own.waits for branch in self._branches(path)))
        if not waits:
            return None
        p50, p95 = (waits[math.ceil(len(waits) * part) - 1] for part in (0.5, 0.95))
        return Waits(len(waits), p50 * 1000, p95 * 1000)

    def snapshot(self) -> Mapping[Leaf[T], tuple[int, float]]:
        """A snapshot that :meth:`fairness` compares with."""
        waiting = chain.from_iterable(map(waiting_leaves, self._roots.values()))
        return {leaf: (leaf.activations, leaf.used) for leaf, _ in waiting}

    def fairness(self, since: Mapping[Leaf[T], tuple[int, float]]) -> float:
        """Jain's index of the agents that have had requests waiting ever since the snapshot.

        The values are what each agent got relative to the share it was due. The other agents got what they asked for,
        as soon as they asked. Of several pools it is the least index.
        """

        def received(root: Branch[T]) -> Iterator[float]:
            for leaf, part in waiting_leaves(root):
                activations, used = since.get(leaf, (None, 0.0))
                if activations == leaf.activations:
                    yield (leaf.used - used) / part

        return min(jain_index(received(root)) for root in self._roots.values())

    def _branches(self, path: Path) -> Iterator[Branch[T]]:
        """An agent's branches, in the pools that have one."""
        for root in self._roots.values():
            branch: Branch[T] | None = root
            for name in path:
                branch = branch.children.get(name) if branch else None
            if branch is not None:
                yield branch

    def _insert(self, ticket: Ticket[T]) -> None:
        self._waiting += 1
        self._lanes.setdefault(ticket.lane, {})[ticket] = None
        if ticket.lane in self._closed:
            ticket.leaf.parked[ticket] = None
        else:
            self._enqueue(ticket)

    def _enqueue(self, ticket: Ticket[T]) -> None:
        """Let a request compete; its agent becomes active if it had no such request."""
        leaf = ticket.leaf
        insort(leaf.waiting, ticket, key=by_number)
        if len(leaf.waiting) == 1:
            leaf.activations += 1
            share: Share[T] = leaf
            while share.parent is not None and share not in share.parent.active:
                share.parent.lift(share)
                share = share.parent

    def _dequeue(self, ticket: Ticket[T]) -> None:
        leaf = ticket.leaf
        leaf.waiting.remove(ticket)
        share: Share[T] = leaf
        while share.parent is not None and not (share.active if isinstance(share, Branch) else leaf.waiting):
            share.parent.active.pop(share, None)
            share = share.parent

    def _take_out(self, ticket: Ticket[T]) -> None:
        if ticket in ticket.leaf.parked:
            del ticket.leaf.parked[ticket]
        else:
            self._dequeue(ticket)
        self._waiting -= 1
        lane = self._lanes[ticket.lane]
        del lane[ticket]
        if not lane:
            del self._lanes[ticket.lane]


def _branch(root: Branch[T], path: Path) -> Branch[T]:
    """An agent's branch, made if there is none."""
    branch = root
    for name in path:
        if name not in branch.children:
            branch.children[name] = Branch(branch)
        branch = branch.children[name]
    return branch


def _upwards(share: Share[T]) -> Iterator[Share[T]]:
    """A share and those above it."""
    above: Share[T] | None = share
    while above is not None:
        yield above
        above = above.parent
