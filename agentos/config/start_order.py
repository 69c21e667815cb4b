"""Start order: checks that the names in ``after`` exist and that no child waits for itself."""

from collections.abc import Iterator, Mapping

from agentos.agents.spec import AgentSpec, GroupSpec
from agentos_sdk.encoding.strict import quote

Child = AgentSpec | GroupSpec
Node = tuple[str, str]  # "begin" or "up", and the name of a child


def find_order_mistakes(root: GroupSpec) -> Iterator[tuple[str, int, str]]:
    """The mistakes in ``after``: the name of the child, the index in its list, and the message."""
    children = {child.name: child for child in _list_children(root)}
    waits = {node: list(_list_waits(node, children)) for name in children for node in (("begin", name), ("up", name))}
    for group in [root, *(child for child in children.values() if isinstance(child, GroupSpec))]:
        _add_order_of_members(group, waits)
    for name, child in children.items():
        for index, other in enumerate(child.after):
            if other not in children:
                yield name, index, f"no agent or supervisor of this file is called {quote(other)}"
            elif _reaches(("up", other), ("begin", name), waits):
                yield name, index, f"{other!r} itself can't begin before {name!r} is up: leave one of them out"


def _list_children(group: GroupSpec) -> Iterator[Child]:
    for child in group.children:
        yield child
        if isinstance(child, GroupSpec):
            yield from _list_children(child)


def _list_waits(node: Node, children: Mapping[str, Child]) -> Iterator[Node]:
    """What comes before a node by ``after``, and because a group is up when its members are."""
    moment, name = node
    child = children[name]
    if moment == "begin":
        yield from (("up", other) for other in child.after if other in children)
        return
    yield "begin", name
    if isinstance(child, GroupSpec):
        yield from (("up", member.name) for member in child.children)


def _add_order_of_members(group: GroupSpec, waits: dict[Node, list[Node]]) -> None:
    """Add what comes before each member: its group's begin, and in an ordered group the member before it."""
    before: list[Node] = [("begin", group.name)] if ("begin", group.name) in waits else []
    for member in group.children:
        waits["begin", member.name] += before
        if group.strategy != "one_for_one":
            # A one_for_one group in an ordered one doesn't hold up the next member: it is up at once.
            at_once = isinstance(member, GroupSpec) and member.strategy == "one_for_one"
            before = [("begin" if at_once else "up", member.name)]


def _reaches(start: Node, goal: Node, waits: Mapping[Node, list[Node]]) -> bool:
    """Whether ``start`` comes after ``goal``."""
    seen, left = set[Node](), [start]
    while left:
        node = left.pop()
        if node == goal:
            return True
        if node not in seen:
            seen.add(node)
            left += waits[node]
    return False
