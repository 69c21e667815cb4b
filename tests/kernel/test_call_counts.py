from agentos.kernel.call_counts import CallCounts
from agentos_sdk.errors import Busy
from agentos_sdk.opcodes import Op

EXEC, NOOP, READ = int(Op.EXEC), int(Op.NOOP), int(Op.READ)


def test_counts_go_on_over_lives_and_stay_when_their_memory_is_freed() -> None:
    counts = CallCounts(former={(READ, "ok"): 5, (READ, "internal"): 1, (NOOP, "ok"): 7, (EXEC, "ok"): 4})
    counts.noops = 2
    counts.ok[READ] += 3
    for error in (Busy("full"), ValueError("a defect"), KeyboardInterrupt()):
        counts.fail(READ, error)

    own = {(READ, "ok"): 3, (NOOP, "ok"): 2, (READ, "busy"): 1, (READ, "internal"): 1, (READ, "cancelled"): 1}
    assert counts.own() == own
    copy = counts.copy()
    counts.shrink()
    copy.ok[READ] += 1
    assert counts.own() == counts.copy().own() == own
    assert counts.all() == {**own, (READ, "ok"): 8, (NOOP, "ok"): 9, (READ, "internal"): 2, (EXEC, "ok"): 4}
