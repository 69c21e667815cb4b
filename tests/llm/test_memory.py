"""The memory of model requests: the total over all families of agents."""

import pytest

from agentos.llm.memory import MAX_FAMILY_BYTES, MAX_TOTAL_BYTES, SMALL_REQUEST_BYTES, RequestMemory
from agentos_sdk.errors import Busy


def test_all_families_together_hold_256_mib_and_a_small_request_of_another_is_taken() -> None:
    memory = RequestMemory()
    families = [memory.hold(f"family-{number}", MAX_FAMILY_BYTES) for number in range(4)]
    for held in families:
        held.__enter__()

    with pytest.raises(Busy, match="256 MiB of model requests are already queued"), memory.hold("late", 1 << 20):
        pass
    with memory.hold("late", SMALL_REQUEST_BYTES):
        pass
    families[0].__exit__(None, None, None)

    assert MAX_TOTAL_BYTES == 4 * MAX_FAMILY_BYTES
    with memory.hold("late", 1 << 20):
        pass


def test_a_family_has_its_share_to_the_last_byte() -> None:
    memory = RequestMemory()

    with memory.hold("family", MAX_FAMILY_BYTES - 1), memory.hold("family", 1), pytest.raises(Busy, match="64 MiB"):
        memory.hold("family", 1).__enter__()
