"""Which table answers the calls of a caller: a shared one, or its own while it lives a recorded life again."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from attrs import frozen

from agentos.access import call_tables
from agentos.access.call_tables import CallTables
from agentos.kernel.syscall import Syscall
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.levels import LEVELS
from agentos_sdk.opcodes import Op
from tests.permissions.strategies import NAMES

AGENT, CHILD, GRANDCHILD, OTHER, READER, OTHER_READER = range(2, 8)
SEALED, LIVE, BELOW = (Syscall(op, None, lambda caller, body: body) for op in (Op.KEYS, Op.LIST, Op.TREE))
UNUSED: Any = None


@frozen
class RecordedLife:
    """Its calls are one while it is answered from a recording, another afterwards, and ``below`` of its children."""

    below: Sequence[Syscall] | None = None

    def seal(self, calls: Iterable[Syscall]) -> Sequence[Syscall]:
        return [SEALED]

    def open(self, calls: Iterable[Syscall]) -> Sequence[Syscall]:
        return [LIVE]

    def open_below(self, calls: Iterable[Syscall]) -> Sequence[Syscall] | None:
        return self.below


@pytest.fixture
def tables() -> CallTables:
    authorizer = PermissionAuthorizer(AgentTree(UNUSED, UNUSED, UNUSED, UNUSED))
    for number in range(AGENT, OTHER_READER + 1):
        authorizer.add_caller(number, LEVELS["readonly" if number >= READER else "unrestricted"], NAMES)
    made = CallTables(authorizer)
    made.serve([Syscall(op, None, lambda caller, body: body) for op in (Op.WRITE, Op.KEYS, Op.LIST, Op.TREE)])
    return made


def calls_of(tables: CallTables, number: int) -> set[int]:
    return {*tables.of(number).syscalls}


def test_a_life_is_opened_only_if_it_was_sealed(tables: CallTables) -> None:
    life: Any = RecordedLife()
    own = calls_of(tables, AGENT)

    assert not tables.open(AGENT, life)
    assert calls_of(tables, AGENT) == own
    tables.seal(AGENT, life)
    assert calls_of(tables, AGENT) == {Op.KEYS}
    assert tables.open(AGENT, life)
    assert calls_of(tables, AGENT) == {Op.LIST}
    assert tables.open(AGENT, None)
    assert calls_of(tables, AGENT) == own


def test_only_children_of_a_life_that_adapts_their_calls_inherit_it(tables: CallTables) -> None:
    plain: Any = RecordedLife()
    adapting: Any = RecordedLife(below=[BELOW])
    for life in (plain, adapting):
        tables.seal(AGENT, life)
        assert not tables.inherit(CHILD, AGENT), "it isn't live yet"
        tables.open(AGENT, life)
        assert tables.inherit(CHILD, AGENT) == (life is adapting)

    assert tables.inherit(GRANDCHILD, CHILD)
    assert calls_of(tables, CHILD) == calls_of(tables, GRANDCHILD) == {Op.TREE}
    tables.forget(CHILD)
    assert calls_of(tables, CHILD) == calls_of(tables, OTHER)
    assert not tables.inherit(OTHER, CHILD)


def test_callers_with_the_same_refusals_share_a_table_and_so_many_are_kept(
    tables: CallTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_tables, "MAX_TABLES", 2)
    first = tables.of(READER)
    tables.of(AGENT)
    assert tables.of(OTHER_READER) is first

    tables.is_recorded = lambda number: number == OTHER_READER

    assert tables.of(OTHER_READER) is not first
    assert tables.of(READER) is not first, "all were dropped for the third"
