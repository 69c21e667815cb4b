"""Agents that wait: checks that their other settings make sense for an agent that isn't always there."""

from collections.abc import Iterator

from agentos.agents.spec import AgentSpec, GroupSpec

AGAIN = (
    "an agent that waits ends when its work is done, and permanent would start it again at once: "
    'use "transient", the default, or "temporary"'
)
NEVER_UP = "the kernel would end, because an agent that waits isn't up from the beginning: leave it out"
ENDS_GROUP = "the supervisor would end with its first run: leave it out"


def find_waiting_mistakes(spec: AgentSpec, group: GroupSpec) -> Iterator[tuple[str, str]]:
    """The mistakes in the settings of an agent in this group: the key and the message."""
    if not spec.waits:
        return
    if group.strategy != "one_for_one":
        apart = f"members of a {group.strategy} supervisor run together: put it into one_for_one"
        yield "schedule", f"{apart}, or leave the schedule out"
    if spec.restart == "permanent":
        yield "restart", AGAIN
    if spec.required:
        yield "required", NEVER_UP
    if spec.significant:
        yield "significant", ENDS_GROUP
