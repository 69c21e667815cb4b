"""Random texts for a shell: scripts, simple commands, and their pieces thrown together."""

import random

from .simple_texts import evaluating_command, simple_commands

WORDS = [
    "a", "b", "c", "x", "-n", "a b", "é", "{", "}", "!", "in", "then", "do", "time", "[", "]", "%", "=", "1", "2",
    "f",
]  # fmt: skip
PIECES = [
    *WORDS, *WORDS,
    *["a ", "b ", " c", " ", " ", " ", "\n", "\n", ";", ";", "&", "|", "&&", "||", "|&", "(", ")", "{ ", "; }"],
    "'", "'", '"', '"', "\\", "\\\n", " \\\n", "\\\\", "\\'", '\\"', "\\$", "\\`", "`", "`", "$(", "$(", ")", ")",
    "<(", ">(",
    ">f", ">>g", "2>f", "<f", "&>f", ">&f", ">|f", "2>&1", ">&-", "<>f", "> ", "< ", "<<<", "<<E\n", "<<'E'\n",
    "<<-E\n",
    "<<E", "<<\\E\n", '<<"E"\n', "E", "\nE\n", "\n\tE\n", "\nE", "#", " #", "# '\n", "$x", "${x}", '"$x"', "${x:-",
    "${x#", "${x/", "}",
    '"$@"', "$*", "$'", '$"', "$", "$$", "${#x}", "${!x}", "\\x41", "\\n", "\\101", "\t", "\u00a0", "\u3000", "\x0c",
    "\x0b",
    "if ", "then ", "; then ", "fi", "; fi", "else ", "elif ", "while ", "until ", "do ", "; do ", "done", "; done",
    "for x in ", "for x",
    "case x in ", "case ", " in ", "x)", "(x)", "*)", ";;", ";&", ";;&", "esac", "! ", "time ", "-p ", "function f ",
    "f()", "f ()", "f ",
    "[[ ", " ]]", "[ ", " ]", "((", "))", "$((", "1+1", "x=", "x+=", "y=(", "y[0]=", "*", "?", "[a]", "~", "{a,b}",
    "{1..2}", ",", ":",
    "coproc ", "select x in ", "eval ", "export ", "declare ", "unset ", "command ", "exec ", "builtin ", "trap ",
    "return ", "set ", "@(",
    "bash -c ", "sh -c ", "env ", "nice ", "timeout 1 ", "xargs ", "setsid ", "-c ", "-- ", "-i ", "x=1 ", "EXIT",
    "-n 1 ", "echo ", "true ", "test ",
]  # fmt: skip

STARTS = (
    "a", "a", "b", "c", "x=1 a", "x=$y b", "env a", "command b", "nice c", "bash -c 'a b'", "eval 'b c'", "xargs a",
    "\\a", "'b'", '"c"', "exec a", "timeout 1 b", "env x=1 c", "xargs -n 1 b", "builtin eval a", "setsid a", ">f a",
    "2>&1 b", "sh -c 'a;b'", "trap 'a b' EXIT;", "time a", "time x=1 b", "[ -n x ] && c", "export x=1; a",
)  # fmt: skip
PLAIN = (
    "x", "y", "a", "b", "f", "'x y'", '"x y"', "x\\ y", "'", '"', "#", "x#y", "{x", "é", "-", "$", "=", "x=y",
    "'a;b'",
    "\\;", "\\\\", "~", "*",
)  # fmt: skip


def random_text(draw: random.Random) -> str:
    """Half of them are simple commands, the others scripts or pieces; many are spoilt then."""
    chance = draw.random()
    if chance > 0.8:
        return evaluating_command(draw)
    if chance < 0.15:
        return "".join(draw.choices(PIECES, k=draw.randint(1, 14)))
    text = script(draw, 3) if chance < 0.4 else simple_commands(draw)
    for _ in range(draw.choice((0, 0, 1, 1, 2, 3) if chance < 0.4 else (0, 0, 0, 0, 1, 2))):
        at = draw.randint(0, len(text))
        end = min(len(text), at + draw.choice((0, 0, 0, 1, 1, 2, 5)))
        text = text[:at] + draw.choice(["", *PIECES]) + text[end:]
    return text


def script(draw: random.Random, depth: int) -> str:
    first, *others = (statement(draw, depth) for _ in range(draw.choice((1, 1, 2, 3))))
    between = (";", "\n", "\n", " & ", " # c\n", " && ", " || ", " | ", "\n\n")
    return first + "".join(draw.choice(between) + other for other in others)


def statement(draw: random.Random, depth: int) -> str:
    if depth <= 0 or draw.random() < 0.5:
        return simple(draw, depth)
    inner = [script(draw, depth - 1) for _ in range(3)]
    end = draw.choice((";", "\n", " \n", " ;"))
    return draw.choice((
        f"({inner[0]})", f"( {inner[0]} )", f"{{ {inner[0]}{end} }}", f"! {inner[0]}", f"time {inner[0]}",
        f"time -p {inner[0]}",
        f"if {inner[0]}{end} then {inner[1]}{end} fi",
        f"if {inner[0]}{end} then {inner[1]}{end} else {inner[2]}{end} fi",
        f"for x in {word(draw, 1)} {word(draw, 1)}{end} do {inner[0]}{end} done",
        f"for x{end} do {inner[0]}{end} done",
        f"while ! {simple(draw, 1)}{end} do {inner[0]}{end} done", f"until {inner[0]}{end} do {inner[1]}{end} done",
        f"case {word(draw, 1)} in {word(draw, 0)}) {inner[0]};; *) {inner[1]};; esac",
        f"case x in (x|y) {inner[0]}{end} esac",
        f"case x in\nx) {inner[0]} ;;& *) {inner[1]} ;;\nesac", f"f() {{ {inner[0]}{end} }}{end} f {word(draw, 1)}",
        f"f () ( {inner[0]} ); f",
        f"function f {{ {inner[0]}{end} }}{end} f", f"{inner[0]} > {word(draw, 0)}", f"{{ {inner[0]}{end} }} > f",
        f"({inner[0]}) 2>&1 | {simple(draw, 1)}",
        f"{simple(draw, 1)} <<E\n{inner[0]}\nE\n{inner[1]}", f"{simple(draw, 1)} <<'E'\n{inner[0]}\nE\n{inner[1]}",
        f"{simple(draw, 1)} <<-E | {simple(draw, 0)}\n\t{inner[0]}\n\tE\n",
        f"{simple(draw, 1)} <<E && {simple(draw, 0)}\n$({inner[0]})\nE\n", f"{inner[0]} && {inner[1]} || {inner[2]}",
    ))  # fmt: skip


def simple(draw: random.Random, depth: int) -> str:
    words = [draw.choice(STARTS)]
    words += [word(draw, depth) for _ in range(draw.choice((0, 1, 1, 2, 3)))]
    return draw.choice((" ", " ", " ", "  ", "\t", " \\\n ")).join(words)


def word(draw: random.Random, depth: int) -> str:
    plain = draw.choice(PLAIN)
    if depth <= 0 or draw.random() < 0.5:
        return plain if plain not in "'\"#" else "x"
    inner, other = script(draw, depth - 1), word(draw, depth - 1)
    return draw.choice((
        f"$({inner})", f'"$({inner})"', f"`{simple(draw, 0)}`", f'"`{simple(draw, 0)}`"', f"<({inner})",
        f"${{x:-$({inner})}}", f'"${{x:-{other}}}"',
        f"{other}$({inner}){plain}", f"$x{other}", f'"{other}"', f"'{other}'", f"$'{other}'", f"{plain}{other}",
        f">f {other}", f"2>{other}", f"$((1+1)){other}", f"${{x}}{other}",
        f"${{x#{other}}}", f"${{x/{other}/y}}", f'"a $x {plain} $({inner})"', f"<<<{other}", f"{{{other},{plain}}}",
        f"&>{other}", f"$(<{other})", f"$({inner}\n)", f"\\\n{other}",
    ))  # fmt: skip
