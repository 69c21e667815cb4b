"""The MCP server over stdin and stdout, for the client that started this process."""

from functools import partial
from pathlib import Path

import trio

from agentos.threads import run_in_thread
from agentos.userland.mcp import clients
from agentos.userland.mcp.clients import ClientEntry
from agentos.userland.mcp.revocation import wait_revoked
from agentos.userland.mcp.server import build_server

from .session import Session, open_session
from .state_key import load_state_key


async def serve(entry: ClientEntry, socket_path: str, state_dir: Path) -> None:
    """Serve the client until it closes stdin.

    Where its entry is revoked the session ends, and each further request is answered with that error.
    """
    key = await run_in_thread(load_state_key, state_dir)
    await run_in_thread(clients.record_use, state_dir, entry.name)
    async with trio.open_nursery() as nursery:
        session = await nursery.start(_keep_session, entry, socket_path, state_dir)
        await build_server(lambda: session, key).run_stdio_async()
        nursery.cancel_scope.cancel()


async def _keep_session(
    entry: ClientEntry, socket_path: str, state_dir: Path, task_status: trio.TaskStatus[Session]
) -> None:
    async with open_session(entry, socket_path, partial(clients.is_current, state_dir, entry)) as session:
        task_status.started(session)
        await wait_revoked(state_dir, entry)
