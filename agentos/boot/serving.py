"""A kernel's run: listens, has each service serve, runs the agent tree and shuts down."""

import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import Sequence
from functools import partial

import trio

from agentos.agents.life.entries import LifeEntries
from agentos.agents.tree.event_lines import log_last_state
from agentos.boot.last_run import count
from agentos.config.watch import Watch
from agentos.kernel.caller import Caller
from agentos.kernel.wire.listener import Listener, listen_again, listen_for_operators
from agentos.sandbox.report import probe
from agentos.services.audit.traffic import Traffic
from agentos.services.events import IsolationProbed, KernelStarted
from agentos.threads import run_in_thread

from . import signals
from .kernel import Kernel
from .programs import ProgramHost

log = logging.getLogger("agentos.kernel")

FULL_COLLECTION = 30  # collections of the middle generation before one of all: a thousand new connections cause none
COUNT_SECONDS = 3600.0  # seconds for which the audit log's counts stand


async def serve(kernel: Kernel) -> str | None:
    """Listen, run the tree and shut down. Returns why the root gave up, or None if it was asked to end."""
    operators = kernel.settings.socket
    terminal = signals.has_terminal()
    await kernel.imports.sweep()
    # One that comes as soon as clients can connect is received.
    with (
        signals.open_signals(terminal) as received,
        await run_in_thread(listen_for_operators, operators) as listener,
    ):
        try:
            async with trio.open_nursery() as nursery:
                start_services(kernel, nursery, listener)
                publish = kernel.events.publish
                nursery.start_soon(signals.obey, received, terminal, kernel.supervision, kernel.reload, publish)
                reason = await kernel.supervision.run(partial(announce, kernel, nursery))
                if lost := kernel.callers.mail.count_unkept():
                    log.warning("lost with this kernel: %s in memory", count(lost, "unread message"))
                if reason is not None:
                    log_last_state(kernel.supervision.deps.registry, reason)
                nursery.cancel_scope.cancel()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(operators)
    return reason


def start_services(kernel: Kernel, nursery: trio.Nursery, listener: socket.socket) -> None:
    """Start all that runs beside the agent tree."""
    network, callers, mail = kernel.network, kernel.callers, kernel.callers.mail
    nursery.start_soon(kernel.poller.run)
    nursery.start_soon(serve_operators, kernel, listener)
    nursery.start_soon(listen_again, kernel.settings.socket, partial(serve_operators, kernel))
    for service in (
        *(kernel.host.spawner, kernel.sweeper, kernel.jails, kernel.line, network.client, kernel.reload),
        *(kernel.servers, kernel.pins, kernel.lives, callers.approvals, kernel.state, mail.leases),
        *(kernel.event_log, callers.background, kernel.sampler, kernel.telemetry, kernel.recorder),
        *(kernel.recordings, kernel.timers, kernel.waker, kernel.replays),
    ):
        nursery.start_soon(service.serve)
    for notices in kernel.notices:
        nursery.start_soon(notices.serve)
    if kernel.settings.watch:
        nursery.start_soon(Watch(kernel.reload).serve)
    leave, find_user = partial(dismiss, kernel), kernel.find_user
    host = ProgramHost(callers, kernel.poller, kernel.connection_limit, network.egress, leave, find_user)
    for program in kernel.settings.programs:
        nursery.start_soon(host.run, program)
    nursery.start_soon(probe_host, kernel)
    nursery.start_soon(kernel.snapshots.forget_lost)
    nursery.start_soon(kernel.starts.release)
    nursery.start_soon(bound_storage, kernel)
    nursery.start_soon(write_counts, kernel.traffic, kernel.life_entries)


async def serve_operators(kernel: Kernel, listener: socket.socket) -> None:
    callers, leave = kernel.callers, partial(dismiss, kernel)
    await Listener(listener, kernel.connection_limit, kernel.poller, callers.admit, leave).serve()


def dismiss(kernel: Kernel, caller: Caller) -> None:
    """Clean up after a connection on the operator's socket; the session of an agent lasts longer."""
    kernel.callers.dismiss(caller)
    if caller.kind != "agent":
        kernel.state.end_session(caller.id)
        kernel.event_log.forget(caller.id)


async def probe_host(kernel: Kernel) -> None:
    """Try the isolation layers. Agents start when this is done, clients are served before."""
    jails, host = kernel.jails, kernel.host
    jails.host, jails.found = await probe.examine(host.spawner, jails.host, host.cgroups)
    jails.probed.set()
    await kernel.started.wait()
    kernel.events.publish(IsolationProbed(jails.found))


async def bound_storage(kernel: Kernel) -> None:
    """Keep the state directory's bound, once declared agents that start count as running."""
    await kernel.started.wait()
    await kernel.storage.serve()


async def write_counts(*counted: Traffic | LifeEntries) -> None:
    """Write to the audit log what is only counted: on each full hour, and when the kernel ends."""
    try:
        while True:
            await trio.sleep(COUNT_SECONDS - time.time() % COUNT_SECONDS)
            for one in counted:
                one.flush()
    finally:
        for one in counted:
            one.flush()


def announce(kernel: Kernel, nursery: trio.Nursery, missing: Sequence[str]) -> None:
    """Publish that the kernel is ready, and which agents are ``missing``.

    What clients need not wait for is loaded afterwards, in the background.
    """
    # Later full collections skip all objects that exist now: 60 ms each. None before: with 200 agents it would hold
    # up the event loop for 0.1 s, and find nothing.
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_COLLECTION)
    kernel.events.publish(KernelStarted(kernel.model.description, missing, kernel.model.default_budget))
    kernel.started.set()
    if kernel.line.model:
        nursery.start_soon(kernel.line.prepare)
