"""``agentos think``: asks the model."""

import sys
from collections.abc import Callable, Iterable
from io import TextIOWrapper
from typing import Any, get_args

import click

from agentos.userland.cli.common import Failed, check_reply, kernel, kernel_options, print_json, printable, read_stdin
from agentos_sdk.clients.question import detect_mime_type
from agentos_sdk.values import LLMClass

from .conversation import Conversation, load_conversation, save_conversation
from .waiting import WaitingLine

MAX_PROMPT = 4 << 20  # bytes of a prompt from stdin
MAX_IMAGE = 11 << 20  # bytes: as base64 they fit into the 16 MiB of a call
CUT_OFF_REASONS = {"length": "it reached its limit of tokens", "content_filter": "the provider holds back the rest"}


@click.command()
@click.argument("prompt", required=False)
@click.option("-c", "--continue", "continued", is_flag=True, help="Go on with the last conversation.")
@click.option("--image", "images", multiple=True, metavar="FILE", help="An image to look at; repeatable.")
@click.option("--system", "system_instruction", metavar="TEXT", help="How to answer.")
@click.option("--model", "--alias", metavar="NAME", help="A model or an alias; default: the kernel's.")
@click.option("--temperature", type=float, metavar="NUMBER", help="From 0 to 2.")
@click.option("--max-tokens", type=int, metavar="N", help="How much it may generate, thoughts included.")
@click.option("--thinking", "thinking_level", type=click.Choice(["low", "medium", "high"]), help="How hard to think.")
@click.option("--class", "class_", type=click.Choice(get_args(LLMClass)), help="batch lets others go first.")
@click.option("--timeout", type=float, metavar="SECONDS", help="How long the whole answer may take, waiting included.")
@kernel_options
def think(
    prompt: str | None,
    continued: bool,
    images: tuple[str, ...],
    as_json: bool,
    socket_path: str | None,
    **options: Any,
) -> None:
    """Ask the model PROMPT, and show its answer while it makes it.

    Without PROMPT, or where that is -, our standard input is the prompt. To interrupt this withdraws the question.
    """
    with kernel(socket_path) as client:
        try:
            conversation = load_conversation() if continued else Conversation()
            prompt = read_prompt() if prompt is None or prompt == "-" else prompt
            shown = [read_image(path) for path in images]
            conversation.system = options.pop("system_instruction") or conversation.system
            conversation.model = options.pop("model") or conversation.model
            options |= {"system_instruction": conversation.system, "model": conversation.model}
            options |= {"messages": conversation.messages or None, "images": shown}
            if as_json:
                thought = check_reply(client.think(prompt, **options))
                print_json(thought)
            else:
                with (
                    client.think_stream(prompt, **options) as deltas,
                    WaitingLine(client.socket_path, deltas, conversation.model) as waiting,
                ):
                    print_deltas(deltas, waiting.end)
                thought = deltas.thought
                assert thought is not None, "it has come to its end"
                if why := CUT_OFF_REASONS.get(thought["finish_reason"]):
                    click.secho(f"(the answer is cut off: {why})", fg="bright_black", err=True)
        except KeyboardInterrupt:
            sys.exit(130)
    if thought["content"] and (continued or sys.stdout.isatty()):
        conversation.add(prompt, shown, thought["content"])
        save_conversation(conversation)


def read_prompt() -> str:
    """Read the prompt from stdin."""
    if sys.stdin.isatty():
        click.echo("The question, and then Ctrl-D:", err=True)
    return read_stdin(MAX_PROMPT)


def read_image(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_IMAGE)
    except OSError as error:
        raise Failed(f"--image {path}: {error.strerror}") from None
    if len(data) == MAX_IMAGE:
        raise Failed(f"--image {path}: expected less than {MAX_IMAGE >> 20} MiB")
    if detect_mime_type(data) is None:
        raise Failed(f"--image {path}: expected an image: JPEG, PNG, GIF, WebP, BMP or TIFF")
    return data


def print_deltas(deltas: Iterable[str], begin: Callable[[], None]) -> None:
    """Print each piece as it comes; to a terminal with control characters escaped, except newlines.

    ``begin`` is called before each.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal may not support all characters
    terminal, last = sys.stdout.isatty(), "\n"
    try:
        for last in deltas:
            begin()
            shown = "\n".join(map(printable, last.split("\n"))) if terminal else last
            click.echo(shown, nl=False, color=True)  # otherwise click removes sequences that look like colours
    finally:
        if not last.endswith("\n"):
            click.echo()
