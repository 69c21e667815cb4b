"""``python -m demos.research_assistant``: research reads the pages that rules allow, and cites them."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentos_sdk import AgentOSClient
from demos import stage
from demos.printing_client import format_reply

HERE = stage.HERE / "research_assistant"
TITLE = "A research assistant that reads what it may, and cites it"
QUESTIONS = ("How high is the lighthouse?", "Who built the lighthouse?", "What does the lighthouse cost?")
LIBRARY = {
    "/": '<p>All about our coast: <a href="/tower">the tower</a>, <a href="/people">its people</a>, '
    '<a href="{intranet}/budget">what it costs</a>.</p>',
    "/tower": "<p>The lighthouse is 41 metres high, and white.</p>",
    "/people": "<p>The lighthouse was built by Ada Stone.</p>",
}
INTRANET = {"/budget": "<p>The lighthouse costs 900000 a year. Not for the public.</p>"}


class Server(http.server.ThreadingHTTPServer):
    """Serves pages; ``asked`` are the paths of the requests that came."""

    daemon_threads = True

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.pages, self.asked = pages, list[str]()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = self.server.pages.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(pages: Mapping[str, str]) -> Iterator[Server]:
    with Server(pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def demo(config: Path | None) -> None:
    with serving(INTRANET) as intranet:
        address = f"http://127.0.0.1:{intranet.server_port}"
        pages = {path: text.replace("{intranet}", address) for path, text in LIBRARY.items()}
        with serving(pages) as library, stage.kernel(config) as running, AgentOSClient(running.socket) as client:
            answers = research(client, library.server_port)
            show_evidence(client, library, intranet, answers)
            running.stop()
    stage.heading("What to notice")
    stage.notice("The page that it wasn't allowed got no packet: the rule is judged before a connection is opened.")
    stage.notice(
        "Each source in an answer is a page that the kernel has fetched for this agent, as the audit log says."
    )


def research(client: AgentOSClient, port: int) -> list[dict[str, Any]]:
    stage.heading("A researcher that may read one server")
    rules = {"level": "sandboxed", "allow": {"domains": [f"GET 127.0.0.1:{port}/**"]}}
    stage.say(f"permissions: {format_reply(rules)}")
    args = [f"http://127.0.0.1:{port}/", *QUESTIONS]
    spawned = client.spawn("researcher", str(HERE / "researcher.py"), args=args, permissions=rules)
    stage.check(spawned["success"], f"the agent starts: {spawned.get('error')}")
    stage.check(client.wait("researcher", timeout=stage.PATIENCE)["success"], "the researcher ends")
    answers = []
    for line in stage.said(client, "researcher"):
        if not line.startswith("answer: "):
            stage.say(f"    researcher | {line}")
            continue
        found = json.loads(line.removeprefix("answer: "))
        answers.append(found)
        stage.say(f"Q: {found['question']}")
        stage.say(f"A: {found['answer']}  {' '.join(found['sources'])}")
    stage.check(len(answers) == len(QUESTIONS), "every question is answered")
    return answers


def show_evidence(client: AgentOSClient, library: Server, intranet: Server, answers: list[dict[str, Any]]) -> None:
    stage.heading("What the audit log has, and what the servers saw")
    requests = stage.audited(client, "network", 4, call="HTTP")
    for entry in requests:
        stage.say(f"    {entry['decision']:5} {entry['about']}")
    stage.say(f"The library was asked for {', '.join(library.asked)}; the intranet {len(intranet.asked)} times.")
    decisions = [entry["decision"] for entry in requests]
    stage.check((decisions.count("allow"), decisions.count("deny")) == (3, 1), "three pages were read, one was refused")
    stage.check(sorted(library.asked) == ["/", "/people", "/tower"], "the library saw these requests, once each")
    stage.check(not intranet.asked, "the intranet saw none")
    read = [entry["about"] for entry in requests if entry["decision"] == "allow"]
    cited = {source for answer in answers for source in answer["sources"]}
    stage.check(bool(cited), "there are sources")
    stage.check(all(any(source in about for about in read) for source in cited), "what is cited was read")
    stage.check("900000" not in json.dumps(answers), "no answer has what it wasn't allowed to read")


stage.run_demo_with_model(demo, HERE / "agentos.toml", TITLE)
