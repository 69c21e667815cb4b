"""How often a step calls which functions: a measure that no other process changes."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType


def count_calls(step: Callable[[], object]) -> Counter[str]:
    """Run ``step``; the number of calls of each Python function in this thread, by its qualified name."""
    counts = Counter[str]()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            counts[frame.f_code.co_qualname] += 1

    gc.collect()  # a collection meanwhile would call what other tests have left
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        step()
    finally:
        sys.setprofile(before)
    return counts
