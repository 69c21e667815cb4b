"""A life that a kernel has recorded, given away without what is listed, and read again."""

import subprocess
from pathlib import Path
from textwrap import dedent

from agentos.recordings.exports.redaction import read_list
from agentos.recordings.reader import read_recording
from tests.conftest import OwnKernel
from tests.recordings.exports.forms import list_parts
from tests.support.commands import run_agentos
from tests.support.kernel import environment, until

CANARIES = ('found "by" itself\\ 1/2 é', "canary-0123456789")
TOML = """
[llm]
provider = "offline"

[[agents]]
name = "coder"
script = "{place}/coder.py"
restart = "temporary"
record = true
"""
CODER = """
import base64, json
from agentos_sdk import AgentOSClient

hard, plain = CANARIES
with AgentOSClient() as me:
    me.hello()
    answer = me.think(f"say {hard}, {plain}")["content"]
    me.think(messages=[{"role": "user", "content": f"say {hard}, {plain}"}, {"role": "assistant", "content": answer},
                       {"role": "user", "content": json.dumps({"arguments": json.dumps({"key": hard})})}])
    me.store(plain, {hard: [plain]}, scope="agent")
    me.write_file(f"{plain}.txt", hard)
    me.write_file("bytes", b"\\xff\\x00" + hard.encode())
    me.read_file("bytes")
    with me.exec_stream(f"printf %s canary-; sleep 0.1; echo 0123456789 | tee {plain}.out | base64") as output:
        list(output)
    me.exec("echo '" + base64.b64encode(f"a {hard}".encode()).decode() + "' > encoded; ln -s " + plain + " link")
"""


def test_a_recorded_life_is_given_away_without_what_is_listed_and_read_again(
    own_kernel: OwnKernel, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "coder.py").write_text(dedent(CODER).replace("CANARIES", repr(CANARIES)))
    (tmp_path / "list").write_text("\n".join(CANARIES))
    kernel = own_kernel(TOML.format(place=tmp_path))
    path = kernel.place / "state" / "recordings" / "coder-1.recording"
    until(lambda: path.exists() and read_recording(path).manifest.ended is not None, "the recording has ended")

    def agentos(*words: str, status: int = 0) -> str:
        done = run_agentos(words, tmp_path, {**environment(kernel.place), "AGENTOS_SOCKET": str(kernel.socket)})
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    assert read_recording(path).manifest.lives[0].exit == "exit status 0"
    state = str(kernel.place / "state")
    said = agentos("recordings", "export", "coder-1", "coder.tar", "--redact", "list", "--state-dir", state)
    assert "without what was redacted\nlist, line 1: 1 text\nlist, line 2: 1 text\n" in said
    data = (tmp_path / "coder.tar").read_bytes()
    assert [part for canary in CANARIES for part in list_parts(canary) if part in data] == []
    assert read_list("\n".join(CANARIES)).replace(data) == data

    subprocess.run(["tar", "xf", "coder.tar"], cwd=tmp_path, check=True)
    shown = agentos("recordings", "show", "coder-1.recording", "--contents")
    assert "was given away without what was redacted\n" in shown
    assert "say ⟦redacted 1⟧, ⟦redacted 2⟧" in shown
    replayed = agentos("replay", "coder-1.recording", status=1)
    assert "note: the recording was given away without what was redacted\n" in replayed
    assert replayed.startswith("diverged\n")
