"""Classes of requests: the fair queue weighs interactive, normal and batch 16 to 4 to 1. No I/O.

An agent's weight among its siblings is multiplied by the weight of its class. A request of a lower class than its
agent's is charged more, by the ratio of the two weights. So an agent that asks only such requests gets what an agent of
that class gets, and the guarantee of :mod:`agentos.llm.queue.fair_queue` holds: what a request is charged is its cost.
"""

from collections.abc import Mapping

from agentos.llm.settings import QueuePath
from agentos_sdk.errors import PermissionDenied
from agentos_sdk.values import LLMClass

CLASS_WEIGHTS: Mapping[LLMClass, float] = {"interactive": 16.0, "normal": 4.0, "batch": 1.0}


def find_class(queue_path: QueuePath) -> LLMClass:
    """The class of an agent or a group: its own, else that of the nearest account above that has one, else normal."""
    given = (account.share.class_ for account in reversed(queue_path))
    return next((one for one in given if one is not None), "normal")


def find_weight(queue_path: QueuePath) -> float:
    """The weight of an agent or a group in the queue, relative to the own requests of the account above it."""
    own, above = CLASS_WEIGHTS[find_class(queue_path)], CLASS_WEIGHTS[find_class(queue_path[:-1])]
    return queue_path[-1].share.weight * own / above


def check_class(asked: LLMClass | None, field: str, queue_path: QueuePath) -> None:
    """Raise ``PermissionDenied``, which names the field, if a class is above that of the caller at this place."""
    own = find_class(queue_path)
    if asked is not None and CLASS_WEIGHTS[asked] > CLASS_WEIGHTS[own]:
        raise PermissionDenied(f"{field}: {asked} is above your own class, which is {own}")


def charge_factor(queue_path: QueuePath, class_: LLMClass) -> float:
    """What a request of a class is charged, relative to its tokens; 1 for the class of its agent."""
    return CLASS_WEIGHTS[find_class(queue_path)] / CLASS_WEIGHTS[class_]
