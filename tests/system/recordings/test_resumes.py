"""Agents whose program gets SIGKILL at each of some turns, and whose kernel does: each goes on where it was.

Programs with the SDK, the built-in loop, one that leases its messages, and one that asks the OpenAI endpoint by a
client of others. What they did is counted where it was done. ``make proof-replay`` kills many more of them.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from attrs import define

from agentos.llm.providers.provider import Question
from agentos.recordings.reader import RecordedCall, Recording, read_recording
from agentos_sdk import AgentOSClient
from agentos_sdk.values import ToolCall
from tests.llm.vendors.script import Called, Refuses, Says, Script, Text, Until
from tests.llm.vendors.server import Vendor
from tests.support.kernel import Kernel, running, until
from tests.support.runs.enter import let_in
from tests.support.runs.rounds import is_night, rounds
from tests.support.servers.http_server import HttpServer, http_server, response
from tests.support.servers.vendor import vendor
from tests.system.agents import info, lines, up
from tests.system.event_calls import poll, subscribe

Model = Script | Callable[[Question], Script]
TURNS = 8 if is_night() else 4
TOML = """
[llm]
provider = "openai"
model = "wise"
base_url = "{url}"
openai_endpoint = true
default_budget = "none"
concurrency = 2

[recording]
masks = ['ticket-\\d+']
"""
AGENT = """
[[agents]]
name = "{name}"
script = "{place}/{name}.py"
args = {args}
workspace = "{place}/work/{name}"
restart = "transient"
max_restarts = 100
backoff = {{ first = 0.01, min = 0.01, max = 0.05 }}
on_crash = "resume"
permissions = {{ level = "sandboxed", allow = {{ calls = ["HTTP"], domains = ["127.0.0.1:{port}"], \
send = ["ear", "gone"], state_write = ["*"] }} }}
"""
EAR = """
[[agents]]
name = "ear"
command = ["sleep", "1000"]
"""
DIES = """
import os, signal, sys, time

how, url, *points = sys.argv[1:]
TURNS = {turns}

def die(point):
    if point in points and not os.path.exists("killed-" + point):
        open("killed-" + point, "w").close()
        if how == "agent":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)  # until the kernel is killed
"""
PROGRAMS = {
    "strays": """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.think("strays first" if not os.path.exists("killed-first") else "strays another first")
    die("first")
print("over", flush=True)
""",
    "masked": """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.think(f"close ticket-{time.time_ns()}")
    die("first")
print("over", flush=True)
""",
    "fails": """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.think("fails first")
    with open("lives", "a") as file:
        file.write("x")
    if os.path.getsize("lives") < 6:
        os.kill(os.getpid(), signal.SIGKILL)
print("over", flush=True)
""",
    "breaks": """
import httpx

with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], timeout=None) as client:
    client.headers["authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]

    def ask(text, model="wise", **more):
        asked = {"model": model, "messages": [{"role": "user", "content": text}], **more}
        return client.stream("POST", "chat/completions", json=asked)

    with ask("breaks first") as reply:
        reply.read()
    with ask("breaks a stream", "slow", stream=True) as reply:
        for line in reply.iter_lines():
            assert '"error"' not in line, line
            if "piece" in line:
                with ask("breaks beside") as other:
                    other.read()
                die("streamed")
print("over", flush=True)
""",
    "unlucky": """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    for text in ("first", "second"):
        assert me.think(f"unlucky {text}")["success"]
print("over", flush=True)
""",
    "narrows": """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    assert me.set_permissions({"level": "sandboxed"})["success"]
    me.think("first")
    die("narrowed")
    print(me.http(url)["code"], flush=True)
""",
    "sdk": """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    messages = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"sdk turn {turn}"})
        messages.append({"role": "assistant", "content": me.think(messages=messages)["content"]})
        die(f"asked-{turn}")
        me.exec(f"printf {turn} >> done")
        me.write_file("note", f"{turn}")
        assert me.read_file("note")["content"] == f"{turn}"
        die(f"wrote-{turn}")
        me.http(url + f"/sdk-{turn}")
        me.send_message(turn, to_name="ear")
        assert me.send_message(turn, to_name="gone")["code"] == "not_found"
        me.store("turn", turn)
        die(f"acted-{turn}")
print("over", flush=True)
""",
    "loop": """
from agentos_sdk import AgentOSClient
from agentos_sdk.loop import AgenticLoop

kernel, count = AgentOSClient(), 0

def step() -> str:
    "Do a step."
    global count
    kernel.exec(f"printf {count} >> done")
    kernel.http(url + f"/loop-{count}")
    die(f"acted-{count}")
    count += 1
    return f"step {count}"

AgenticLoop(kernel, model="looper", tools=[step]).run("make all steps", task_id="t")
print("over", flush=True)
""",
    "worker": """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    for turn in range(TURNS):
        [message] = me.recv_messages(timeout=1000, lease=600, max_messages=1)["messages"]
        assert message["message"] == turn
        me.think(messages=[{"role": "user", "content": f"worker turn {turn}"}])
        me.exec(f"printf {turn} >> done")
        die(f"acted-{turn}")
        assert me.ack_messages([message["id"]])["success"]
print("over", flush=True)
""",
    "endpoint": """
import httpx

with httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], timeout=None) as client:
    key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    messages = [{"role": "system", "content": f"Files: {os.listdir()}"}]  # others in each life
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"endpoint turn {turn}"})
        asked = {"model": "wise", "messages": messages, "tools": tools}
        reply = client.post("chat/completions", json=asked, headers=key).raise_for_status().json()
        messages.append(reply["choices"][0]["message"])
        die(f"acted-{turn}")
print("over", flush=True)
""",
}


ACTS = {
    "sdk": "STORE",
    "loop": "HTTP",
    "worker": "EXEC",
    "endpoint": "THINK",
}  # made last before acted-TURN
POINTS = {"sdk": ("asked", "wrote", "acted"), "loop": ("acted",), "worker": ("acted",), "endpoint": ("acted",)}


@define
class Agents:
    """A kernel with programs that are killed at their points, the model's server, and the server that they ask."""

    kernel: Kernel
    met: Vendor
    server: HttpServer
    work: Path

    def check_done_once(self, client: AgentOSClient, name: str, points: Sequence[str]) -> None:
        for point in points:  # a life each
            until((self.work / name / f"killed-{point}").exists, f"{name} gets to {point}")
        until(lambda: "over" in lines(client, name), f"{name} is over", show=lambda: client.logs(name, tail=60))
        notes = [line["text"] for line in client.logs(name, tail=200)["lines"] if line["stream"] == "kernel"]
        assert not [note for note in notes if note.startswith("begins anew")]
        lives = [recording.manifest.lives[0] for recording in self.list_recordings(name)]
        assert len({life.hash_seed for life in lives}) == 1, lives
        assert asked_turns(self.met, name) == Counter(range(TURNS + (name == "loop")))
        if name != "endpoint":
            assert (self.work / name / "done").read_text() == "".join(map(str, range(TURNS)))
        if name in ("sdk", "loop"):
            gets = Counter(one.target for one in self.server.asked if one.target.startswith(f"/{name}-"))
            assert gets == Counter(f"/{name}-{turn}" for turn in range(TURNS))

    def last_calls(self, name: str) -> list[RecordedCall]:
        """The calls of its latest recording."""
        return [*self.list_recordings(name)[-1].calls()]

    def list_recordings(self, name: str) -> list[Recording]:
        """The agent's recordings, the latest last."""
        found = (self.kernel.state_dir / "recordings").glob(f"{name}-*.recording")
        return [*map(read_recording, sorted(found, key=lambda path: int(path.stem.rpartition("-")[2])))]

    def is_recorded(self, name: str, turn: int) -> bool:
        """Whether all that came before the point acted-TURN is on the disk."""
        return sum(each.call == ACTS[name] and each.reply is not None for each in self.last_calls(name)) > turn


def asked_turns(met: Vendor, name: str) -> Counter[int]:
    """How often an agent asked at each turn, which is the number of its model's answers so far."""
    wanted = {"loop": "make all steps", "worker": "worker turn"}.get(name, f"{name} turn 0")
    asked = (one.question.messages for one in met.exchanges)
    own = (messages for messages in asked if any(wanted in message.text for message in messages))
    if name == "worker":
        return Counter(int(messages[-1].text.rpartition(" ")[2]) for messages in own)
    return Counter(sum(message.role == "assistant" for message in messages) for messages in own)


def steps_of_loop() -> Iterator[Script]:
    for turn in range(TURNS):
        yield Says([Called(ToolCall(f"call-{turn}", "step", {}))], "tool_calls")
    yield Says([Called(ToolCall("call-done", "done", {"summary": "made"}))], "tool_calls")


@contextmanager
def agents(place: Path, how: str, points: Mapping[str, Sequence[str]], **models: Model) -> Iterator[Agents]:
    """These agents, by name, which are killed at these points, and what their models do."""
    with vendor() as met, http_server() as server:
        server.answers = {f"/{name}-{turn}": response(b"done") for name in points for turn in range(TURNS)}
        met.models = {"wise": Says([Text("well")]), **models}
        met.will(*steps_of_loop())
        toml = TOML.format(url=met.base_url) + EAR
        for name, own in points.items():
            work = place / "work" / name
            work.mkdir(parents=True)
            work.chmod(0o777)
            (place / f"{name}.py").write_text(DIES.replace("{turns}", str(TURNS)) + PROGRAMS[name])
            args = json.dumps([how, server.url().rstrip("/"), *own])
            toml += AGENT.format(name=name, place=place, port=server.port, args=args)
        with running(toml, {"OPENAI_API_KEY": met.key}) as kernel:
            yield Agents(kernel, met, server, place / "work")


def choose_points() -> Mapping[str, Sequence[str]]:
    """A point in each turn, or at night all."""
    return {
        name: [
            f"{kind}-{turn}" for turn in range(TURNS) for kind in (kinds if is_night() else [kinds[turn % len(kinds)]])
        ]
        for name, kinds in POINTS.items()
    }


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("number", range(rounds(1)))
def test_what_was_done_before_each_of_many_crashes_is_done_once(entered: Path, number: int) -> None:
    points = choose_points()
    with agents(entered, "agent", points) as made, made.kernel.client() as client, made.kernel.connect() as wire:
        for turn in range(TURNS):
            up(client.send_message(turn, to_name="worker"))
        for name in points:
            made.check_done_once(client, name, points[name])
        differs = "got a recorded answer though this differs: system: recorded "
        assert any(note.startswith(differs) for note in lines(client, "endpoint", "kernel"))
        assert client.mail("worker")["count"] == 0
        subscribe(wire, "LIFE_RESUMED", "RESUME_FAILED", since=0)
        told = poll(wire)
        assert {each["type"] for each in told} == {"LIFE_RESUMED"}
        for name, own in points.items():
            answers = [each["data"]["answers"] for each in told if each["data"]["name"] == name]
            assert answers == sorted(set(answers)), "each life goes further than the one before"
            assert len(answers) == len(own)
            assert all(call.reply is not None for call in made.last_calls(name))
        assert client.mail("ear")["count"] == TURNS


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("number", range(rounds(1)))
def test_a_killed_kernels_agents_go_on_in_the_next(entered: Path, number: int) -> None:
    names = [*POINTS]
    turns = range(1, TURNS, 1 if is_night() else 2)
    points = {name: [f"acted-{turn}" for turn in turns] for name in names}
    with agents(entered, "kernel", points) as made:
        with made.kernel.client() as client:
            for turn in range(TURNS):
                up(client.send_message(turn, to_name="worker"))
        for turn in turns:
            for name in names:
                until(
                    (made.work / name / f"killed-acted-{turn}").exists,
                    f"{name} is at its point",
                    show=lambda: made.kernel.said,
                )
                until(partial(made.is_recorded, name, turn), f"the turn of {name} is recorded")
            made.kernel.kill()
            made.kernel.start_again()
        with made.kernel.client() as client:
            for name in names:
                made.check_done_once(client, name, points[name])
        made.kernel.stop()


@pytest.fixture(scope="module")
def crashed(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Agents that end where they can't simply go on."""
    place = tmp_path_factory.mktemp("crashed")
    let_in(place, tmp_path_factory.getbasetemp())
    refusals = [Refuses(400), Refuses(400), Refuses(400)]
    streams = [Says([Text("piece"), Until()])]

    def answer(question: Question) -> Script:
        is_second = question.messages[-1].text == "unlucky second"
        return refusals.pop() if is_second and refusals else Says([Text("well")])

    def stream(question: Question) -> Script:
        return streams.pop() if streams else Says([Text("piece")])

    points = {"strays": ["first"], "masked": ["first"], "fails": [], "breaks": ["streamed"], "unlucky": []}
    with agents(place, "agent", points, wise=answer, slow=stream) as made:
        yield made


def asked_by(made: Agents, name: str) -> list[str]:
    """The last messages of an agent's questions, without its name in front."""
    asked = [each.question.messages[-1].text for each in made.met.exchanges]
    return [text.removeprefix(f"{name} ") for text in asked if text.startswith(f"{name} ")]


def test_a_life_that_leaves_the_recorded_one_but_for_what_masks_cover_is_followed_by_a_new_one(
    crashed: Agents,
) -> None:
    made = crashed
    with made.kernel.client() as client:
        until(lambda: "over" in lines(client, "strays"), "it is over", show=lambda: client.logs("strays", tail=60))
        notes = [line["text"] for line in client.logs("strays", tail=60)["lines"] if line["stream"] == "kernel"]

        assert [note for note in notes if "begins anew" in note] == [
            "begins anew after the crash of strays/1: it left the recorded life: "
            "strays/1, call 1, THINK: no recorded call is equal"
        ]
        assert any("now 'another " in note for note in notes), notes
        assert asked_by(made, "strays") == ["first", "another first"]
        assert info(client, "strays")["restarts"] == 2

        until(lambda: "over" in lines(client, "masked"), "it goes on", show=lambda: client.logs("masked", tail=60))
        assert sum("ticket" in each.question.messages[-1].text for each in made.met.exchanges) == 1


def test_a_crash_without_a_further_reply_is_not_repeated_for_ever(crashed: Agents) -> None:
    """Of six lives each second one goes on: the vendor is asked by those that begin anew."""
    made = crashed
    with made.kernel.client() as client:
        with made.kernel.connect() as wire:
            until(lambda: "over" in lines(client, "fails"), "it is over", show=lambda: client.logs("fails", tail=60))
            subscribe(wire, "LIFE_RESUMED", "RESUME_FAILED", since=0)
            told = [each for each in poll(wire) if each["data"]["name"] == "fails"]

        assert [each["type"] for each in told] == ["LIFE_RESUMED", "RESUME_FAILED"] * 2 + ["LIFE_RESUMED"]
        assert "with no reply beyond the 1 recorded ones" in told[1]["data"]["reason"]
        assert asked_by(made, "fails") == ["first"] * 3


def test_a_program_that_ends_where_a_stream_broke_off_goes_on_at_that_question(crashed: Agents) -> None:
    made = crashed
    with made.kernel.client() as client:
        until(lambda: "over" in lines(client, "breaks"), "it is over", show=lambda: client.logs("breaks", tail=60))
        notes = lines(client, "breaks", "kernel")

        assert Counter(asked_by(made, "breaks")) == {"first": 1, "a stream": 2, "beside": 2}, notes
        assert [note.partition(" with ")[2] for note in notes if note.startswith("goes on")] == [
            "3 recorded answers of breaks-1",
            "1 recorded answers of breaks-2",
        ]
        assert not [note for note in notes if note.startswith("begins anew")]


def test_a_program_that_ends_where_a_question_failed_goes_on_at_that_question(crashed: Agents) -> None:
    made = crashed
    with made.kernel.client() as client:
        until(lambda: "over" in lines(client, "unlucky"), "it is over", show=lambda: client.logs("unlucky", tail=60))

        assert Counter(asked_by(made, "unlucky")) == {"first": 1, "second": 4}, lines(client, "unlucky", "kernel")


@pytest.mark.usefixtures("kernels")
def test_rights_that_a_life_gave_up_are_given_up_when_it_goes_on_in_the_next_kernel(entered: Path) -> None:
    with agents(entered, "kernel", {"narrows": ["narrowed"]}) as made:
        until((made.work / "narrows" / "killed-narrowed").exists, "it is at its point")
        until(lambda: sum(one.reply is not None for one in made.last_calls("narrows")) == 2, "that is recorded")
        made.kernel.kill()
        made.kernel.start_again()
        with made.kernel.client() as client:
            until(lambda: lines(client, "narrows", "stdout"), "it has tried what it may not do any more")
            assert lines(client, "narrows", "stdout") == ["permission_denied"]
        assert made.server.asked == []
        assert len(made.met.exchanges) == 1


CONNECTS = """
import os, signal, sys
from http.client import HTTPConnection
from agentos_sdk import AgentOSClient

if not os.path.exists("lived"):
    open("lived", "w").close()
    with AgentOSClient() as me:
        me.now()
    os.kill(os.getpid(), signal.SIGKILL)
by_proxy = HTTPConnection(os.environ["HTTP_PROXY"].removeprefix("http://"))
by_proxy.request("GET", sys.argv[1])
print("got", by_proxy.getresponse().read(), flush=True)
"""


@pytest.mark.usefixtures("kernels")
def test_a_person_is_asked_about_connections_of_a_life_that_goes_on(entered: Path) -> None:
    """No recording has them, so that what a person had decided in the life before says nothing about them."""
    (entered / "connects.py").write_text(CONNECTS)
    with http_server() as server:
        server.answers = {"/": response(b"done")}
        toml = AGENT.format(name="connects", place=entered, port=server.port, args=json.dumps([server.url("/")]))
        rules = f'ask = {{ domains = ["127.0.0.1:{server.port}"] }} }}'
        toml = f'{toml.partition("allow =")[0]}{rules}\nnetwork = "filtered"\n'
        (entered / "work" / "connects").mkdir(parents=True)
        (entered / "work" / "connects").chmod(0o777)
        with running(toml) as kernel, kernel.client() as client:
            until(lambda: client.approvals()["pending"] or server.asked, "a person is asked")
            assert server.asked == []
            [asked] = client.approvals()["pending"]
            assert f"GET {server.url('/')}" in asked["shown"]
            up(client.decide(asked["id"], True))
            until(lambda: "got" in str(lines(client, "connects")), "it has the response")
