"""What ``agentos run`` shows of the kernel's events, on the console and to the service manager."""

import os

import trio
from attrs import frozen

from agentos.services.events import (
    AgentOutput,
    Event,
    IsolationProbed,
    KernelInterrupted,
    KernelStarted,
    KernelStopping,
)
from agentos.userland.cli.approvals.notify import ServiceManager
from agentos.userland.cli.console import Console

MAX_MISSING = 10  # names of agents that aren't up yet, in one line


@frozen
class RunDisplay:
    """Shows the events of a kernel that listens on ``socket``; ``has_file``: it was started with a configuration."""

    console: Console
    manager: ServiceManager
    socket: str
    has_file: bool

    def show(self, event: Event) -> None:
        match event:
            case AgentOutput(name=name, stream=stream, text=text):
                self.console.show(name, stream, text)
            case KernelStarted():
                self._show_start(event)
            case IsolationProbed(isolation):
                self.console.say(f"isolation {isolation}")
                trio.lowlevel.spawn_system_task(self.manager.keep_notified, f"ready; isolation {isolation}")
            case KernelInterrupted():
                self.console.end_echo()
            case KernelStopping():
                self.manager.notify("STOPPING=1", "STATUS=stopping, agents first")

    def _show_start(self, started: KernelStarted) -> None:
        self.console.say(f"ready, listening on {self.socket} (pid {os.getpid()})")
        if missing := started.missing:
            more = f" and {len(missing) - MAX_MISSING} more" if len(missing) > MAX_MISSING else ""
            self.console.say(f"not up yet: {', '.join(missing[:MAX_MISSING])}{more}")
        for text in (started.model, started.default_budget):
            if text is not None:
                self.console.say(text)
        if not self.has_file:
            self.console.say("there is no agentos.toml here, so no agent yet: start some with `agentos spawn`")
