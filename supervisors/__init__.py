"""OTP supervision for Trio.

::

    tree = SupervisorSpec(
        [ChildSpec("proxy", Process(["./proxy"])), ChildSpec("work", Task(work), restart="transient")],
        strategy="rest_for_one", intensity=3, period=60,
    )
    try:
        async with trio.open_nursery() as nursery:
            supervisor = await nursery.start(Supervisor(tree, observe=print).run)
            ...
            supervisor.stop()           # an orderly end: run returns, and supervisor.exit says "shutdown"
    except* GaveUp as ended:            # the tree could not be kept up: which child, how it ended, how often
        ...
"""

from supervisors import reports
from supervisors.backoff import Backoff
from supervisors.child import EndedTooEarly, Interrupted, Startable, Task
from supervisors.children import ChildInfo, Counts, Handle
from supervisors.errors import NoProc, Refused, SpecError, StartFailed, SupervisorError
from supervisors.exits import (
    KILLED,
    NORMAL,
    SHUTDOWN,
    AutoShutdown,
    Ended,
    Exit,
    GaveUp,
    Ignore,
    IntensityExceeded,
    TooManyFailures,
)
from supervisors.process import Died, Process
from supervisors.reports import Observer, Report
from supervisors.spec import ChildSpec, Shutdown, SupervisorSpec, Template
from supervisors.supervisor import Supervisor
from supervisors.tree import Branch, Leaf, inspect, render

__all__ = [
    "KILLED",
    "NORMAL",
    "SHUTDOWN",
    "AutoShutdown",
    "Backoff",
    "Branch",
    "ChildInfo",
    "ChildSpec",
    "Counts",
    "Died",
    "Ended",
    "EndedTooEarly",
    "Exit",
    "GaveUp",
    "Handle",
    "Ignore",
    "IntensityExceeded",
    "Interrupted",
    "Leaf",
    "NoProc",
    "Observer",
    "Process",
    "Refused",
    "Report",
    "Shutdown",
    "SpecError",
    "StartFailed",
    "Startable",
    "Supervisor",
    "SupervisorError",
    "SupervisorSpec",
    "Task",
    "Template",
    "TooManyFailures",
    "inspect",
    "render",
    "reports",
]
