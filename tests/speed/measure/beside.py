"""Who asks now and then, while one agent runs long commands and another one reads and writes files.

On every CPU: what the commands themselves take of one is Linux's to divide, and isn't asked here.
"""

from tests.speed.caller import Caller
from tests.speed.place import Place
from tests.speed.processes import MeasurementError, Server
from tests.speed.results import Figure, Result, Row
from tests.speed.starts.jails import SPAWN

KILL = 0x11
OTHERS = 50
ROWS = (
    Row(f"NOOP p99 of {OTHERS} callers, beside commands and files", " ms", most=0.8),
    Row(f"NOOP p99 of {OTHERS} callers, the same to theirs alone", " ms", most_ratio=3, floor="alone"),
)
RUNS = """\
from agentos_sdk import AgentOSClient
with AgentOSClient() as kernel:
    while True:
        assert kernel.exec("seq 20000; sleep 0.5; seq 20000", timeout=30)["exit_code"] == 0
        print("ran", flush=True)
"""
WRITES = """\
import time
from agentos_sdk import AgentOSClient
text = "all work and no play\\n" * 3000
with AgentOSClient() as kernel:
    while True:
        assert kernel.write_file("/workspace/notes.txt", text)["success"]
        assert kernel.read_file("/workspace/notes.txt")["content"] == text
        print("wrote", flush=True)
        time.sleep(0.05)
"""


SCRIPTS = {"runs": RUNS, "writes": WRITES}


def beside(place: Place) -> list[Result]:
    """In turn: alone, and beside the two; each time until both have done something."""
    alone, accompanied = list[float](), list[float]()
    files = {f"{name}.py": text for name, text in SCRIPTS.items()}
    with place.serve(files=files, free=True) as kernel, Caller(kernel.socket) as caller:
        for _ in range(3):
            alone.append(_p99(place, kernel))
            for name in SCRIPTS:
                script = str(kernel.socket.parent / f"{name}.py")
                caller.ask(SPAWN, {"name": name, "script": script})
            accompanied.append(_p99(place, kernel))
            for name in SCRIPTS:
                if not caller.lines(name):
                    raise MeasurementError(f"the agent that {name} did nothing meanwhile")
                caller.ask(KILL, {"name": name, "grace": 0})
    ratio = Figure.of([a / b for a, b in zip(accompanied, alone, strict=True)])
    return [Result.of(ROWS[0], accompanied), Result(ROWS[1], Figure.of(accompanied), Figure.of(alone), ratio)]


def _p99(place: Place, kernel: Server) -> float:
    """Milliseconds."""
    return place.load(kernel, f"paced {OTHERS}", "-w", 500, "-s", 1.5)["p99_us"] / 1000
