"""Messages to mailboxes that are kept, sent as fast as they are acknowledged; and to one in memory.

Each round has a kernel of its own, since a mailbox holds 1,000 messages, which aren't read here. It has all CPUs.
"""

import json
import selectors
import socket
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

from tests.speed.caller import HEADER, MAGIC
from tests.speed.place import Numbers, Place
from tests.speed.processes import MeasurementError, Server, elsewhere, finish
from tests.speed.results import Result, Row

SEND = 0x20
SENDERS, BOXES, SENT, SENT_BY_ONE = 100, 20, 10_000, 900
ROWS = (
    Row(f"SEND by {SENDERS} callers to kept mailboxes", "/s", least=5000, more=True),
    Row("SEND by one caller to a kept mailbox, p50", " ms", most=0.6),
    Row("SEND by one caller to a mailbox in memory, p50", " ms"),
)
CHILDREN = [
    *({"name": f"box{number}", "command": ["sleep", "100000"]} for number in range(BOXES)),
    {"name": "kept", "command": ["sleep", "100000"]},
    {"name": "memory", "command": ["sleep", "100000"], "mailbox": "memory"},
]


def mail(place: Place) -> list[Result]:
    rates, kept, memory = list[float](), list[float](), list[float]()
    for _ in range(2):
        with place.serve(CHILDREN, free=True) as kernel:
            boxes = ",".join(f"box{number}" for number in range(BOXES))
            rates.append(_send(place, kernel, SENDERS, SENT, boxes)["rate"])
            kept.append(_send(place, kernel, 1, SENT_BY_ONE, "kept")["p50_ms"])
            memory.append(_send(place, kernel, 1, SENT_BY_ONE, "memory")["p50_ms"])
    return [Result.of(ROWS[0], rates), Result.of(ROWS[1], kept), Result.of(ROWS[2], memory)]


def _send(place: Place, kernel: Server, senders: int, count: int, boxes: str) -> Numbers:
    with elsewhere(place.cpu):
        command = [
            sys.executable,
            "-m",
            "tests.speed.measure.mail",
            str(kernel.socket),
            str(senders),
            str(count),
            boxes,
        ]
        return finish(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


def send(path: Path, senders: int, count: int, boxes: str) -> Numbers:
    """Send so many messages of 100 characters, each connection the next one as soon as the last is acknowledged."""
    ready, frames = selectors.EpollSelector(), cycle([_frame(name) for name in boxes.split(",")])
    for _ in range(senders):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        ready.register(connection, selectors.EVENT_READ)
    sent, taken, left = dict[int, float](), list[float](), count
    begin = time.perf_counter()
    for one in list(ready.get_map().values()):
        sent[one.fd], left = time.perf_counter(), left - 1
        one.fileobj.sendall(next(frames))  # type: ignore[union-attr]
    while len(taken) < count:
        for one, _ in ready.select(10):
            reply = one.fileobj.recv(4096)  # type: ignore[union-attr]
            if b'"success":true' not in reply:
                raise MeasurementError(f"SEND: {reply!r}")
            now = time.perf_counter()
            taken.append((now - sent[one.fd]) * 1000)
            if left:
                sent[one.fd], left = now, left - 1
                one.fileobj.sendall(next(frames))  # type: ignore[union-attr]
    seconds = time.perf_counter() - begin
    return {"rate": count / seconds, "p50_ms": sorted(taken)[count // 2]}


def _frame(name: str) -> bytes:
    body = json.dumps({"to_name": name, "message": "x" * 100}).encode()
    return HEADER.pack(MAGIC, 0, SEND, len(body)) + body


if __name__ == "__main__":
    print(json.dumps(send(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
