"""Snapshots of a running supervision tree, and their text form."""

import math
from collections.abc import Iterator

from msgspec import Struct

from supervisors.children import ChildInfo, State
from supervisors.supervisor import Supervisor


class Leaf(Struct, frozen=True):
    """A child at one time: a worker, or a supervisor that is not running.

    ``uptime`` is in seconds, None unless running.
    """

    id: str
    type: str
    state: State
    restart: str
    failures: int
    uptime: float | None


class Branch(Struct, frozen=True):
    """A supervisor at one time; ``children`` in start order. ``info`` is None at the root."""

    id: str
    strategy: str
    intensity: float
    period: float
    info: Leaf | None
    children: tuple["Branch | Leaf", ...]


def inspect(supervisor: Supervisor, info: Leaf | None = None) -> Branch:
    """A snapshot of the tree below ``supervisor``, without waiting and without side effects."""
    spec = supervisor.spec
    children = tuple(_node(child) for child in reversed(supervisor.children()))
    return Branch(supervisor.id, spec.strategy, spec.intensity, spec.period, info, children)


def _node(child: ChildInfo) -> Branch | Leaf:
    leaf = Leaf(child.id, child.type, child.state, child.restart, child.failures, child.uptime)
    return inspect(child.child, leaf) if isinstance(child.child, Supervisor) else leaf


def render(tree: Branch) -> str:
    """One line for each node, drawn with box characters::

    root  one_for_one, at most 1 restart in 5 s
    ├─ a  permanent, running for 12 s
    └─ m  permanent, running for 12 s: rest_for_one, at most 3 restarts in 60 s
       └─ b  transient, restarting, 2 failures
    """
    return "\n".join(_lines(tree, "", ""))


def _lines(node: Branch | Leaf, first: str, rest: str) -> Iterator[str]:
    yield f"{first}{node.id}  {_words(node)}"
    if isinstance(node, Branch):
        for child in node.children:
            last = child is node.children[-1]
            yield from _lines(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _words(node: Branch | Leaf) -> str:
    if isinstance(node, Branch):
        limited = node.intensity != math.inf
        restarts = f"at most {_count(node.intensity, 'restart')} in {node.period:g} s" if limited else "any restarts"
        own = f"{node.strategy}, {restarts}"
        return own if node.info is None else f"{_words(node.info)}: {own}"
    running = f" for {node.uptime:.0f} s" if node.uptime is not None else ""
    failures = f", {_count(node.failures, 'failure')}" if node.failures else ""
    return f"{node.restart}, {node.state}{running}{failures}"


def _count(number: float, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
