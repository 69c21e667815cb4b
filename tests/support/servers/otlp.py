"""An OTLP/HTTP receiver that keeps the spans it gets, decoded with OpenTelemetry's own protobuf classes."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.kernel import until


@define(eq=False)
class Receiver:
    """``status`` is what it answers; spans are kept only with 200."""

    port: int = 0
    status: int = 200
    requests: int = 0
    spans: list[Span] = field(factory=list)
    resource: dict[str, Any] = field(factory=dict)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, path: str, body: bytes) -> int:
        self.requests += 1
        if path != "/v1/traces":
            return 404
        if self.status == 200:
            message = ExportTraceServiceRequest.FromString(body)
            for one in message.resource_spans:
                self.resource = read(one.resource.attributes)
                self.spans += [span for scope in one.scope_spans for span in scope.spans]
        return self.status

    def wait(self, name: str, **attributes: object) -> Span:
        """The first span of that name that has these attributes, dots written as ``__``."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}

        def find() -> Span | None:
            fitting = (
                one for one in [*self.spans] if one.name == name and wanted.items() <= read(one.attributes).items()
            )
            return next(fitting, None)

        until(find, f"a span {name} with {wanted}")
        found = find()
        assert found is not None
        return found


def read(attributes: Any) -> dict[str, Any]:
    """Attributes of a span as Python values."""
    found: dict[str, Any] = {}
    for each in attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@contextlib.contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self.send_response(receiver.take(self.path, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
