"""Why a supervisor gave up, in one sentence: its count, and the failure below it that was the last."""

from supervisors import Exit, StartFailed
from supervisors.exits import IntensityExceeded, TooManyFailures


def describe_give_up(exit: Exit, counts_escalations: bool) -> str:
    """``2 escalations in 5 s; the last time: team/poller: exit status 3``; else ``2 restarts in 5 s were needed; ...``.

    A child that is a supervisor gave up itself, for a child of its own: the sentence has their names as a path, and the
    innermost reason alone.
    """
    detail, names = exit.detail, list[str]()
    while isinstance(detail, IntensityExceeded | TooManyFailures):
        if detail.child not in names[-1:]:  # a container has its child's name
            names.append(detail.child)
        detail = detail.last.detail
    if isinstance(detail, StartFailed):
        names += detail.path if detail.path[0] not in names[-1:] else detail.path[1:]
        detail = f"did not start: {detail.root_cause}"
    count = str(exit.detail).partition(";")[0]
    if isinstance(exit.detail, TooManyFailures):
        count = f"{exit.detail.failures} failures in a row"
    elif isinstance(exit.detail, IntensityExceeded) and counts_escalations:
        count = f"{exit.detail.restarts} escalations in {exit.detail.period:g} s"
    return f"{count}; the last time: {'/'.join(names)}: {detail}"
