"""How many commands run at once, under several limits together."""

import pytest

from agentos.agents.commands.run import Slots
from agentos_sdk.errors import Busy


def test_a_place_is_free_again_and_its_number_too() -> None:
    slots = Slots()

    with slots.take(("a", 2, "here")) as one, slots.take(("a", 2, "here")) as two:
        assert (one, two) == (1, 2)
        with pytest.raises(Busy, match="2 commands run here already"), slots.take(("a", 2, "here")):
            pass
    with slots.take(("a", 2, "here")) as again:
        assert again == 1


def test_no_place_is_held_where_another_limit_is_reached() -> None:
    slots = Slots()

    with slots.take(("b", 1, "there")), pytest.raises(Busy), slots.take(("a", 1, "here"), ("b", 1, "there")):
        pass

    with slots.take(("a", 1, "here")) as number:
        assert number == 1
