"""What a task has used, as the kernel has counted it."""

from agentos_sdk import AgentOSClient
from agentos_sdk.errors import checked

from .records import TaskNote

DAY = 86400.0  # USAGE has whole days


def find_use(client: AgentOSClient, note: TaskNote) -> tuple[int, float | None]:
    """The tokens and the cost of a task, with what its agent has spawned, as the kernel has counted them.

    The cost is None if a model that it has asked has no price.
    """
    rows = [
        row
        for row in checked(client.usage(since=note.at - DAY))["usage"]
        if row["name"] == note.name or row["name"].startswith(f"{note.name}/")
    ]
    costs = [row["cost"] for row in rows]
    return sum(row["tokens"] for row in rows), None if None in costs else sum(costs)
