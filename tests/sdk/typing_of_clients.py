"""What mypy says of a user's program: the whole signatures of both clients, and their results.

``make check`` judges it: a mistake of a program's that mypy doesn't find any more is an unused ``ignore``.
"""

from typing import Any, assert_type

from agentos_sdk import AgentOSClient, connect
from agentos_sdk.calls.kernel import KernelStatus
from agentos_sdk.clients import streams
from agentos_sdk.encoding import chunks


def use_blocking(client: AgentOSClient) -> str:
    client.spawn("worker", command=["sleep", "1"], network="filtered", limits={"memory": "1G"})
    client.spawn("worker", network="everything")  # type: ignore[arg-type]
    client.spawn()  # type: ignore[call-arg]
    client.spawn("worker", None, True, False, None, None, ["sleep"])  # type: ignore[call-arg]
    client.fetch("key", agnet="boss")  # type: ignore[call-arg]
    client.exec(["ls"], timeout="soon")  # type: ignore[arg-type]
    client.write_file("path", 5)  # type: ignore[arg-type]
    client.think("Why?", images=[b"GIF8"], class_="batch")
    client.think("Why?", class_="soon")  # type: ignore[arg-type]
    _ = client.tree().name  # type: ignore[attr-defined]
    assert_type(client.list_agents(), list[dict[str, Any]])
    with client.exec_stream("ls") as output:
        assert_type(output, chunks.Outputs)
    return client.kill("worker")  # type: ignore[return-value]


async def use_trio() -> str:
    async with connect() as kernel:
        await kernel.spawn("worker", command=["sleep", "1"], network="filtered", limits={"memory": "1G"})
        await kernel.spawn("worker", network="everything")  # type: ignore[arg-type]
        await kernel.spawn()  # type: ignore[call-arg]
        await kernel.spawn("worker", None, True, False, None, None, ["sleep"])  # type: ignore[call-arg]
        await kernel.fetch("key", agnet="boss")  # type: ignore[call-arg]
        await kernel.exec(["ls"], timeout="soon")  # type: ignore[arg-type]
        await kernel.write_file("path", 5)  # type: ignore[arg-type]
        await kernel.think("Why?", images=[b"GIF8"], class_="batch")
        await kernel.think("Why?", class_="soon")  # type: ignore[arg-type]
        _ = (await kernel.list_agents())[0].nmae  # type: ignore[attr-defined]
        assert_type(await kernel.status(), KernelStatus)
        async with kernel.exec_stream("ls") as output:
            assert_type(output, streams.Outputs)
        return await kernel.kill("worker")  # type: ignore[return-value]
