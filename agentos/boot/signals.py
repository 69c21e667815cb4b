"""The kernel's signals: stop the tree in order, then at once; SIGHUP may reload the configuration."""

import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import trio

from agentos.agents.tree.supervision import Supervision
from agentos.config.reload import Reload
from agentos.services.events import Event, KernelInterrupted

log = logging.getLogger("agentos.kernel")


@contextlib.contextmanager
def open_signals(terminal: bool) -> Iterator[AsyncIterator[int]]:
    """Receive SIGINT, SIGTERM, and SIGHUP unless a ``terminal`` has it ignored, as under nohup. Ignore them later."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if not (terminal and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN):
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)  # again when the receiver closes, until this process has ended
    with trio.open_signal_receiver(*numbers) as signals:
        yield signals


async def obey(
    signals: AsyncIterator[int],
    terminal: bool,
    supervision: Supervision,
    reload: Reload,
    publish: Callable[[Event], None],
) -> None:
    """The first stop signal ends the tree in order, a second one kills what is left; further ones do nothing.

    SIGHUP is one if there is a ``terminal``, which was closed; without one it reloads the configuration.
    """
    async with trio.open_nursery() as reloads:
        async for received in signals:
            if received == signal.SIGINT:
                publish(KernelInterrupted())
            if received == signal.SIGHUP and not terminal:
                reloads.start_soon(reload.request_and_log)
            elif supervision.stopping:
                log.warning("killing what still runs")
                supervision.stop_now()
            else:
                supervision.shut_down()


def has_terminal() -> bool:
    """Whether the process has a controlling terminal: ``tty_nr`` in proc_pid_stat(5)."""
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[4] != "0"
