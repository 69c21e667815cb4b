"""``agentos completion``: prints what a shell needs to complete commands, options and names."""

import click

VARIABLE = "_AGENTOS_COMPLETE"  # by which the shell's function asks for the words
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what SHELL needs to complete commands and names.

    Names of agents are asked from the kernel that runs.

    \b
    bash: add to ~/.bashrc             eval "$(agentos completion bash)"
    zsh:  add to ~/.zshrc, behind compinit:  eval "$(agentos completion zsh)"
    fish: once   agentos completion fish > ~/.config/fish/completions/agentos.fish
    """
    from click.shell_completion import get_completion_class

    from .main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click has all of SHELLS"
    click.echo(kind(cli, {}, "agentos", VARIABLE).source())
