"""The kernel's time is shared by callers, not by connections: one with many of them takes no more of it from others."""

import selectors
import socket
import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.kernel import Kernel, until
from tests.support.wire import FETCH, HEADER_SIZE, NOOP, frame

CONNECTIONS = 20
FETCHES = 15
MOST_BETWEEN = 60_000  # replies during one FETCH; they would be 150,000 if each connection had a share of its own
PIPELINED = frame(NOOP) * 4000


class Flood(threading.Thread):
    """Sends NOOPs on all these sockets, and reads their replies, until it is stopped."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        super().__init__()
        self.received = 0  # bytes
        self.stopped = False
        self._selector = selectors.DefaultSelector()
        self._unsent = dict.fromkeys(sockets, b"")
        for one in sockets:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)

    @property
    def replies(self) -> int:
        return self.received // HEADER_SIZE

    def run(self) -> None:
        while not self.stopped:
            for key, events in self._selector.select(0.1):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if events & selectors.EVENT_READ:
                    self.received += len(one.recv(1 << 20))
                if events & selectors.EVENT_WRITE:
                    data = self._unsent[one] or PIPELINED
                    self._unsent[one] = data[one.send(data) :]


@contextmanager
def flooding(kernel: Kernel, agent: int) -> Iterator[Flood]:
    with ExitStack() as stack:
        flood = Flood([stack.enter_context(kernel.connect_as(agent)).socket for _ in range(CONNECTIONS)])
        flood.start()
        try:
            yield flood
        finally:
            flood.stopped = True
            flood.join()


def test_an_agent_with_many_flooding_connections_delays_others_as_one_connection_does(kernel: Kernel) -> None:
    flooder, other = kernel.spawn("flooder"), kernel.spawn("other")
    with kernel.connect_as(other) as wire, flooding(kernel, flooder) as flood:
        until(lambda: flood.replies > 0, "it floods")
        between = []
        for _ in range(FETCHES):
            before = flood.replies
            assert wire.call(FETCH, {"key": "plan", "scope": "agent"})["success"]
            between.append(flood.replies - before)

    assert statistics.median(between) < MOST_BETWEEN, between
