"""Which requests a command of ``notify`` is told of when many wait."""

import json
from typing import Any

from agentos.agents.commands.notices import MAX_OF_FAMILY, MAX_WAITING, Notices
from agentos.services.events import ApprovalRequested, Event


def describe(event: Event) -> tuple[str, bytes]:
    assert isinstance(event, ApprovalRequested)
    return f"agent {event.id // 100}", b'{"id":%d}' % event.id


def notices() -> Notices:
    """Notices of requests whose ids have the family in the hundreds."""
    runner: Any = None  # it isn't run here
    return Notices("approvals.notify", ["true"], "/", {}, runner, "requests", describe)


def tell(told: Notices, *numbers: int) -> None:
    for number in numbers:
        told.take_event(ApprovalRequested(number, number // 100, "a", "READ", "READ /x", "ask", "0", 0.0, 1.0))


def take(told: Notices) -> tuple[list[int], int]:
    """The ids in one input, and how many requests are missing."""
    given: dict[str, Any] = json.loads(told._take_input())
    return [one["id"] for one in given["requests"]], given["missed"]


def test_one_family_does_not_fill_the_queue_of_all() -> None:
    told = notices()
    tell(told, *range(100, 200), 200)

    ids, missed = take(told)

    assert ids == [100, 200, *range(101, 100 + MAX_OF_FAMILY)]
    assert missed == 100 - MAX_OF_FAMILY
    assert take(told) == ([], 0)


def test_where_all_places_are_taken_a_family_with_more_gives_one_up() -> None:
    told = notices()
    many = MAX_WAITING // MAX_OF_FAMILY
    tell(told, *(100 * family + number for family in range(1, many + 1) for number in range(MAX_OF_FAMILY)))
    tell(told, 9900)

    ids, missed = take(told)

    assert (len(ids), missed) == (MAX_WAITING, 1)
    assert ids.index(9900) == many, "it is told in its first turn"
    assert set(range(100, 100 + MAX_OF_FAMILY)) - set(ids) == {100 + MAX_OF_FAMILY - 1}
