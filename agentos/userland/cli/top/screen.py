"""The screen of ``agentos top``: draws the table, and obeys keys."""

import contextlib
import curses
import os
import time
from collections.abc import Mapping
from typing import Any

from attrs import define

from agentos.userland.cli.agents.agents import STATES
from agentos.userland.cli.columns import take_columns
from agentos.userland.cli.common import printable
from agentos_sdk.opcodes import Op

from .poller import Action, Poller
from .table import SORTS, Agent, Row, View, describe_fleet, list_rows, make_table

KEYS = "k kill  p pause  R restart  m/c/r/n/$/T sort  t tree  / filter  a all  q quit"
TICK = 100  # milliseconds that a key is waited for
ESCAPE, ENTER, BACKSPACE = 27, (10, 13, curses.KEY_ENTER), (8, 127, curses.KEY_BACKSPACE)
COLOURS = {"green": curses.COLOR_GREEN, "yellow": curses.COLOR_YELLOW, "red": curses.COLOR_RED}
ABOVE, BELOW = 3, 1  # lines around the rows


@define
class Question:
    """An action that is done if the next key is y."""

    text: str
    op: Op
    fields: dict[str, Any]
    done: str


@define(eq=False)
class Screen:
    """The state of the view; ``cursor`` is the id of the agent that keys act on."""

    window: "curses.window"
    poller: Poller
    view: View
    colours: Mapping[str, int]
    cursor: int | None = None
    top: int = 0  # first row that is shown
    typing: bool = False  # the filter's text
    question: Question | None = None
    action: tuple[Action, str] | None = None  # under way, with what to say when it is done
    updated: int | None = None  # the version of the agents that shows what the action did
    message: str = ""

    @classmethod
    def run(cls, poller: Poller, view: View) -> None:
        """Show the screen until the user ends it; the terminal is restored in every case. Raises ``curses.error``."""
        window = curses.initscr()
        try:
            curses.noecho()
            curses.cbreak()
            window.keypad(True)
            curses.set_escdelay(25)
            window.timeout(TICK)
            cls(window, poller, view, open_colours()).serve()
        finally:
            window.keypad(False)
            curses.nocbreak()
            curses.echo()
            curses.endwin()

    def serve(self) -> None:
        drawn = None
        while True:
            self.end_action()
            if drawn != (state := (self.poller.version, self.window.getmaxyx(), self.message)):
                self.draw()
                drawn = state
            key = self.window.getch()
            if key == -1:
                continue
            drawn, self.message = None, self.message if self.action is not None else ""
            if not self.obey(key):
                return

    def end_action(self) -> None:
        """Say what the action did when the rows show it: the next key is for what the user sees."""
        if self.action is None or self.action[0].result is None:
            return
        if self.updated is None:
            self.updated = self.poller.update()
        elif self.poller.version >= self.updated:
            self.message, self.action, self.updated = self.action[0].result or self.action[1], None, None

    def obey(self, key: int) -> bool:
        """Do what a key stands for; False ends the view."""
        letter = chr(key) if 32 <= key < 127 else ""
        if self.question is not None:
            self.answer(self.question, letter)
        elif self.typing:
            self.edit_filter(key, letter)
        elif letter == "q":
            return False
        elif letter in SORTS:
            self.view.sort, self.view.tree = SORTS[letter], False
        elif letter == "t":
            self.view.tree = not self.view.tree
        elif letter == "a":
            self.view.ended = not self.view.ended
        elif letter == "/":
            self.typing, self.view.text = True, ""
        elif key == ESCAPE:
            self.view.text = ""
        elif letter in ("k", "p", "R"):
            self.ask(letter)
        else:
            self.move(key)
        return True

    def edit_filter(self, key: int, letter: str) -> None:
        if key in ENTER:
            self.typing = False
        elif key == ESCAPE:
            self.typing, self.view.text = False, ""
        elif key in BACKSPACE:
            self.view.text = self.view.text[:-1]
        else:
            self.view.text += letter

    def ask(self, letter: str) -> None:
        """Ask before an action; it is for the agent that was at the cursor when the key was pressed."""
        agent = next((one for one in self.poller.agents if one["id"] == self.cursor), None)
        if agent is None:
            self.message = "no agent is chosen"
        elif self.action is not None:
            self.message = "the last action isn't done yet"
        else:
            number, name = agent["id"], f"{printable(agent['name'])} (id {agent['id']})"
            if letter == "k":
                self.question = Question(f"kill {name}?", Op.KILL, {"id": number}, f"{name} has ended")
            elif letter == "R":
                self.question = Question(f"restart {name}?", Op.RESTART, {"name": str(number)}, f"{name} was restarted")
            elif agent["state"] == "paused":
                self.question = Question(f"resume {name}?", Op.RESUME, {"id": number}, f"{name} is running")
            else:
                self.question = Question(f"pause {name}?", Op.PAUSE, {"id": number}, f"{name} is paused")

    def answer(self, question: Question, letter: str) -> None:
        self.question, self.message = None, "nothing was done"
        if letter == "y":
            self.action = Action.started(self.poller.socket, question.op, question.fields), question.done
            self.message = f"{question.text.removesuffix('?')}: under way"

    def move(self, key: int) -> None:
        numbers = [row.agent["id"] for row in self.list_rows() if row.agent is not None]
        if not numbers:
            return
        page = max(1, self.window.getmaxyx()[0] - ABOVE - BELOW)
        steps = {curses.KEY_UP: -1, curses.KEY_DOWN: 1, curses.KEY_PPAGE: -page, curses.KEY_NPAGE: page}
        steps |= {curses.KEY_HOME: -len(numbers), curses.KEY_END: len(numbers)}
        at = numbers.index(self.cursor) if self.cursor in numbers else 0
        self.cursor = numbers[min(max(at + steps.get(key, 0), 0), len(numbers) - 1)]

    def list_rows(self) -> list[Row]:
        return list_rows(self.poller.agents, self.view, self.poller.shares)

    def draw(self) -> None:
        height, width = self.window.getmaxyx()
        rows = self.list_rows()
        numbers = [row.agent["id"] if row.agent is not None else None for row in rows]
        if self.cursor not in numbers or self.cursor is None:
            self.cursor = next((number for number in numbers if number is not None), None)
        room, at = max(1, height - ABOVE - BELOW), numbers.index(self.cursor) if self.cursor is not None else 0
        self.top = max(0, min(self.top, at, len(rows) - room), at - room + 1)
        header, lines = make_table(rows, self.poller.shares, width - 3)  # beside the cursor and the free column
        self.window.erase()
        self.put(0, f"{time.strftime('%H:%M:%S')}  {describe_fleet(self.poller.agents)}", curses.A_BOLD)
        self.put(1, self.describe_status(), curses.A_BOLD if self.poller.error or self.question else 0)
        self.put(2, f"  {header}", curses.A_UNDERLINE)
        shown = list(zip(rows, lines, strict=True))[self.top : self.top + room]
        for number, (row, line) in enumerate(shown, ABOVE):
            chosen = row.agent is not None and row.agent["id"] == self.cursor
            style = curses.A_REVERSE if chosen else self.find_style(row.agent)
            self.put(number, f"{'>' if chosen else ' '} {line}".ljust(width - 1 if chosen else 0), style)
        self.put(height - 1, KEYS)
        self.window.refresh()

    def describe_status(self) -> str:
        if self.question is not None:
            return f"{self.question.text} y/n"
        if self.typing:
            return f"filter: {self.view.text}_  (Enter keeps it, Esc clears it)"
        if self.poller.error is not None:
            return printable(self.poller.error)
        chosen = ["tree" if self.view.tree else f"by {self.view.sort}"]
        chosen += [f"filter: {self.view.text}"] if self.view.text else []
        chosen += ["also ended ones"] if self.view.ended else []
        return "; ".join([*chosen, *([self.message] if self.message else [])])

    def find_style(self, agent: Agent | None) -> int:
        if agent is None:
            return curses.A_BOLD
        return self.colours.get(STATES.get(agent["state"], ""), 0) if agent["state"] != "running" else 0

    def put(self, line: int, text: str, style: int = 0) -> None:
        """Write a line, cut to the window; the last column stays free, where curses would scroll."""
        height, width = self.window.getmaxyx()
        if 0 <= line < height and width > 1:
            with contextlib.suppress(curses.error):  # the terminal has become smaller meanwhile
                self.window.addstr(line, 0, take_columns(text, width - 1), style)


def open_colours() -> dict[str, int]:
    """The attribute of each colour; none with NO_COLOR, or where the terminal has no colours."""
    if os.environ.get("NO_COLOR"):
        return {}
    curses.start_color()
    if not curses.has_colors():
        return {}
    curses.use_default_colors()
    for number, colour in enumerate(COLOURS.values(), 1):
        curses.init_pair(number, colour, -1)
    return {name: curses.color_pair(number) for number, name in enumerate(COLOURS, 1)}
