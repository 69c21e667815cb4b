"""``python -m demos.dashboard``: a lively tree with its dashboard in the browser, until Ctrl-C."""

import contextlib

import click

from demos import stage

FILE = stage.HERE / "dashboard" / "agentos.toml"
UNTIL_INTERRUPTED = 1e9  # seconds


def dashboard() -> None:
    stage.title("A tree in which something happens all the time")
    stage.say("On a terminal the kernel prints a link for the browser. Ctrl-C ends the demo.")
    with stage.kernel(FILE, show=True) as running:
        with contextlib.suppress(KeyboardInterrupt):
            stage.say(f"Another link: agentos dashboard --socket {running.socket}")
            for line in running.lines(UNTIL_INTERRUPTED):
                click.echo(line.text)
        running.stop(show=True)


stage.run_demo(dashboard)
