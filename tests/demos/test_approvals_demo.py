"""The approvals demo: four requests as a person sees them, the answers, and what is left of them."""

from tests.demos.conftest import Run


def test_each_request_is_shown_answered_and_written_down(run: Run) -> None:
    shown = run("approvals")

    assert [line for line in shown.splitlines() if len(line) > 140] == []
    assert "\x1b" not in shown
    write, script, push = (shown.partition(f"$ agentos approvals {number}\n")[2] for number in (1, 2, 3))
    assert "\n  -│ version 0.9\n  +│ version 1.0\n   │ released by hand\n" in write
    assert "\n  $ │ sh build.sh\n  in │ /workspace\n  the agent can change before it runs: │ build.sh\n" in script
    assert r"git push --force origin main # \u{1b}[2K\u{1b}[Ggit status \u{202e}" in push
    assert '\n  body of 18 bytes:\n  | │ {"version": "1.0"}\n' in shown.partition("$ agentos approvals 4\n")[2]
    assert '2  allow EXEC "sh build.sh" in "/workspace"' in shown.partition("$ agentos permissions get releaser")[2]
    assert '"/workspace/release.txt",  # 1 call' in shown.partition("$ agentos permissions suggest releaser")[2]
    assert "approval 4 allowed" in shown.partition("$ agentos audit")[2]
