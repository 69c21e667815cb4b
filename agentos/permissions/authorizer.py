"""The rights that hold until there are permissions: the operator may everything, an agent what concerns its own."""

from collections.abc import Callable

from attrs import frozen

from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos_sdk.errors import PermissionDenied

OWN = frozenset({"kill", "pause", "resume", "wait", "logs", "inspect", "exec"})  # of itself and of its descendants
ANY = frozenset({"send", "broadcast", "list", "tree", "register", "spawn", "think"})


@frozen
class SubtreeAuthorizer:
    """Implements :class:`agentos.kernel.ports.Authorizer`.

    ``descends(agent, ancestor)`` says whether an agent was spawned, at whatever remove, by another.
    """

    descends: Callable[[int, int], bool]

    def check(self, caller: Caller, right: Right) -> None:
        if caller.kind == "operator" or right.action in ANY:
            return
        if right.action not in OWN:
            raise PermissionDenied(f"{right.action}: only the operator may do that")
        if right.agent is not None and right.agent != caller.id and not self.descends(right.agent, caller.id):
            raise PermissionDenied(
                f"{right.action}: an agent may {right.action} only itself and the agents it spawned; "
                f"{right.agent} is neither"
            )
