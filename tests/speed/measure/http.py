"""HTTP requests through the kernel: what one costs above a direct one, and what those of many do to other callers.

The kernel has a CPU of its own. The server and the many callers run only while those who are measured don't: 200
threads of Python would take the CPU away from both.
"""

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.processes import MeasurementError, Server, elsewhere, give_way
from tests.speed.results import Figure, Result, Row

HELLO, HTTP = 0xFE, 0x50
CALLERS, OTHERS, PATIENCE = 200, 50, 60
SECONDS = 1.5  # of each measurement beside others
ROWS = (
    Row("HTTP: p50 above that of a direct request", " ms", most=2),
    Row(f"NOOP p99 of {OTHERS} callers, beside HTTP of {CALLERS} callers", " ms"),
    Row(f"NOOP p99 of {OTHERS} callers, beside that HTTP, to theirs alone", " ms", most_ratio=3, floor="alone"),
)


class Handler(BaseHTTPRequestHandler):
    """Answers a kilobyte."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = b"x" * 1024
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class HTTPServer(ThreadingHTTPServer):
    request_queue_size = CALLERS
    daemon_threads = True


@contextlib.contextmanager
def http_server(cpu: int) -> Iterator[int]:
    """A server in threads that don't use this CPU; its port."""
    with HTTPServer(("127.0.0.1", 0), Handler) as server:

        def serve() -> None:
            give_way()
            server.serve_forever()

        thread = threading.Thread(target=serve, daemon=True)
        with elsewhere(cpu):
            thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def requests(place: Place) -> Iterator[Result]:
    """In turn: direct and through the kernel; alone and beside many callers."""
    with http_server(place.cpu) as port:
        rules = {"level": "sandboxed", "allow": {"domains": [f"127.0.0.1:{port}"]}}
        with place.serve() as kernel, Caller(kernel.socket) as caller:
            call(caller, HELLO, {"permissions": rules})
            body = {"url": f"http://127.0.0.1:{port}/"}
            direct = http.client.HTTPConnection("127.0.0.1", port)
            rounds = range(2 if place.quick else 5)
            pairs = [(p50(lambda: call(caller, HTTP, body)), p50(lambda: fetch(direct))) for _ in rounds]
            direct.close()
            above = [ours - theirs for ours, theirs in pairs]
            yield Result(ROWS[0], Figure.of(above), Figure.of([theirs for _, theirs in pairs]))
        yield from beside(place, port, rules)


def beside(place: Place, port: int, rules: object) -> Iterator[Result]:
    alone, accompanied = list[float](), list[float]()
    with place.serve() as kernel, asking(place, kernel, port, rules) as (go_on, count):
        for _ in range(2 if place.quick else 3):
            alone.append(place.p99_of_paced(kernel, OTHERS, SECONDS))
            before = count()
            go_on.set()
            accompanied.append(place.p99_of_paced(kernel, OTHERS, SECONDS))
            go_on.clear()
            if count() - before < CALLERS:
                raise MeasurementError(f"{CALLERS} callers got {count() - before} responses meanwhile")
    yield Result.of(ROWS[1], accompanied)
    ratio = Figure.of([a / b for a, b in zip(accompanied, alone, strict=True)])
    yield Result(ROWS[2], Figure.of(accompanied), Figure.of(alone), ratio)


@contextlib.contextmanager
def asking(
    place: Place, kernel: Server, port: int, rules: object
) -> Iterator[tuple[threading.Event, Callable[[], int]]]:
    """Callers that send a request a second each while an event is set; and how many responses there were.

    As many requests at once as they can would only measure how busy the CPU is.
    """
    go_on, ready, over = threading.Event(), threading.Semaphore(0), threading.Event()
    responses = itertools.count()
    body = {"url": f"http://127.0.0.1:{port}/"}

    def ask(number: int) -> None:
        give_way()
        with Caller(kernel.socket) as caller:
            call(caller, HELLO, {"permissions": rules})
            call(caller, HTTP, body)
            ready.release()
            while not over.is_set():
                if go_on.wait(0.5) and not over.wait(number / CALLERS):
                    call(caller, HTTP, body)
                    next(responses)
                    over.wait(1 - number / CALLERS)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CALLERS)]
    with elsewhere(place.cpu):
        for thread in threads:
            thread.start()
    try:
        for _ in threads:
            if not ready.acquire(timeout=PATIENCE):
                raise MeasurementError(f"not all callers were answered within {PATIENCE} s")
        yield go_on, lambda: int(repr(responses)[6:-1])
    finally:
        over.set()
        for thread in threads:
            thread.join()


def p50(request: Callable[[], object]) -> float:
    """Milliseconds."""
    took = []
    for _ in range(200):
        begin = time.perf_counter()
        request()
        took.append((time.perf_counter() - begin) * 1000)
    return median(took)


def fetch(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/")
    connection.getresponse().read()


def call(caller: Caller, opcode: int, fields: object) -> None:
    reply = json.loads(caller.call(opcode, json.dumps(fields).encode()))
    if not reply.get("success"):
        raise MeasurementError(f"0x{opcode:02X} {fields}: {reply}")
