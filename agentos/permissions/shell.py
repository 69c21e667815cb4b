"""What a command would run, found as bash would find it: parsed, never searched.

Two readers must agree. tree-sitter-bash says how a text is built (what is a keyword, a pattern, a command), our own
lexer where its words and operators begin and end and what they mean. Where they differ, or where either meets
something that it doesn't know, the command is not understood, and what is not understood is refused.

This explains and asks; it is no wall. What a program does once it runs can't be read from the command that started it.
"""

import logging
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import tree_sitter_bash
from attrs import Factory, define
from tree_sitter import Language, Node, Parser

from agentos.kernel.internal_errors import describe

from .patterns.commands import CommandPattern, read
from .script import NotUnderstood, Redirect, Script, Simple, Word
from .shell_words import ASSIGNS, MAX_TOKENS, Lexer, Token
from .simple import effects, wraps
from .variables import settings

__all__ = ["CommandPattern", "NotUnderstood", "Redirect", "Script", "Simple", "Word", "parse", "read"]

MAX_LENGTH = 64 << 10  # bytes: the parser holds up all others for 20 ms at that
MAX_NESTING = 30  # of texts within texts
PIECE, READS = 256, 1000  # bytes of a text that the grammar is handed at a time; how often at least it may ask

CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
REDIRECTS = frozenset({"<", ">", ">>", ">|", "&>", "&>>", "<&", ">&", "<<<", "<<", "<<-", "<>", ">&-", "<&-"})
WRITES = frozenset({">", ">>", ">|", "&>", "&>>", "<>"})
# fmt: off
RESERVED = frozenset({
    "if", "then", "elif", "else", "fi", "do", "done", "case", "esac", "while", "until", "for", "select", "function",
    "{", "}", "!", "[[", "]]", "coproc", "time", "in",
})
STRUCTURE = frozenset({
    "program", "list", "pipeline", "redirected_statement", "negated_command", "for_statement", "while_statement",
    "if_statement", "elif_clause", "else_clause", "do_group", "case_statement", "case_item", "function_definition",
    "compound_statement", "subshell", "variable_assignments", "heredoc_redirect", "herestring_redirect",
    "file_redirect", "command", "declaration_command", "unset_command", "command_name",
})
WORDS = frozenset({
    "word", "string", "raw_string", "ansi_c_string", "translated_string", "number", "expansion", "simple_expansion",
    "command_substitution", "process_substitution", "arithmetic_expansion", "brace_expression", "concatenation",
    "variable_name", "variable_assignment", "heredoc_start", "extglob_pattern",
})
# fmt: on
COMMANDS = frozenset({"command", "declaration_command", "unset_command"})
NO_COMMAND = frozenset({"for_statement", "case_statement", "case_item", "function_definition", "heredoc_start"})
BASH = Language(tree_sitter_bash.language())

log = logging.getLogger(__name__)


def parse(command: str | Sequence[str]) -> Script:
    """All that running ``command`` may run: a text for ``bash --noprofile --norc -c``, or an argv that no shell reads.

    ``NotUnderstood`` where that can't be told, also because the reading fails by an error of its own.
    """
    try:
        return read_script(command)
    except NotUnderstood:
        raise
    except Exception as bug:
        log.debug("a command is not understood: %s", describe(bug))
        raise NotUnderstood(f"reading it failed ({type(bug).__name__})") from None


def read_script(command: str | Sequence[str]) -> Script:
    found = Findings()
    if isinstance(command, str):
        found.text(command)
        return found.script(command)
    words = tuple(command)
    if not words or not words[0]:
        raise NotUnderstood("an empty command")
    if any("\0" in word for word in words):
        raise NotUnderstood("a NUL character in an argument")
    source = shlex.join(words)
    found.add(Simple(tuple(Word(word, shlex.quote(word)) for word in words), source))
    return found.script(source)


@define
class Findings:
    """What has been found so far, in this text and in those nested in it."""

    commands: list[Simple] = Factory(list)
    redirects: list[Redirect] = Factory(list)
    opaque: dict[str, None] = Factory(dict)  # a set in the order of its making
    words: int = 0  # and operators, counted again in each text that they are part of

    def script(self, source: str) -> Script:
        return Script(source, tuple(self.commands), tuple(self.redirects), tuple(self.opaque))

    def note(self, *opaque: str) -> None:
        self.opaque.update(dict.fromkeys(opaque))

    def text(self, text: str, depth: int = 0) -> None:
        """Everything in ``text``."""
        if depth > MAX_NESTING:
            raise NotUnderstood("commands nested too deeply")
        if odd := CONTROL.search(text):
            raise NotUnderstood(f"a control character, {odd[0]!r}; write $'...' for one")
        if text.startswith(("-", "+")):
            raise NotUnderstood("a command that begins like an option of the shell's")
        encoded = text.encode()
        if len(encoded) > MAX_LENGTH:
            raise NotUnderstood(f"more than {MAX_LENGTH} bytes of text")
        lexer = Lexer(encoded.decode("latin-1"))
        lexer.run()
        self.words += lexer.spent
        if self.words > MAX_TOKENS:
            raise NotUnderstood(f"more than {MAX_TOKENS} words and operators")
        level = Level(lexer, {(token.start, token.end): token for token in lexer.tokens})
        level.agree(encoded)
        self.note(*lexer.opaque, *level.opaque, *settings([*lexer.assigned, *level.names]))
        for tokens in level.runs():
            self.simple(tokens, lexer, depth)
        for inner in lexer.inner:
            self.text(inner, depth + 1)

    def simple(self, tokens: Sequence[Token], lexer: Lexer, depth: int) -> None:
        """One simple command, with its assignments and redirects, from its tokens."""
        source = lexer.text[tokens[0].start : tokens[-1].end].encode("latin-1").decode()
        rest = iter(tokens)
        words, names = list[Word](), list[str]()
        for token in rest:
            if token.kind == "operator":
                self.redirect(lexer.text[token.start : token.end], rest, lexer)
            elif token.word is not None:
                assigns = None if words else ASSIGNS.match(token.word.source)
                if assigns is None:
                    words.append(token.word)
                    continue
                names.append(token.word.text or token.word.source)
                if assigns[2] and not assigns[2][1:-1].isdigit():
                    self.note("a subscript that is no number")
        self.note(*settings(names))
        if words:
            bare = tuple(name.partition("=")[0].rstrip("+") for name in names)
            self.add(Simple(tuple(words), source, bare), depth)
        if words and words[0].source == "time":
            # Bash's keyword, behind which NAME=value sets a variable, or a program, for which it is an argument.
            after = next((word for word in words if word.source not in ("time", "-p", "--")), None)
            if after is not None and ASSIGNS.match(after.source):
                raise NotUnderstood("a variable set behind time: write it in front, or use env")

    def redirect(self, operator: str, rest: Iterator[Token], lexer: Lexer) -> None:
        if operator.endswith("&-"):
            return
        token = next(rest, None)
        if token is None or token.word is None:
            raise NotUnderstood(f"{operator} without a file")
        target = token.word
        if operator in (">&", "<&"):
            # Bash expands the word after >& a second time, what was quoted in it included.
            if not re.fullmatch(r"[0-9]+|-", target.source):
                raise NotUnderstood(f"{operator} with a word: expected a descriptor's number or -; write &> for a file")
            return
        if operator.startswith("<<"):
            return
        if lexer.is_substitution(token):
            return
        if target.text is None:
            self.note("a redirect to a file whose name isn't known before it runs")
        elif re.match(r"/dev/(tcp|udp)/", target.text):
            self.note("a redirect to a network connection")
        self.redirects.append(Redirect(target, operator in WRITES, f"{operator} {target.source}"))

    def add(self, simple: Simple, depth: int = 0) -> None:
        """A simple command, and what it in turn runs."""
        if depth > MAX_NESTING:
            raise NotUnderstood("commands nested too deeply")
        if (first := simple.words[0].source) in RESERVED - {"time"}:
            raise NotUnderstood(f"{first} where a command is expected")
        self.commands.append(simple)
        what = effects(simple)
        self.note(*what.opaque)
        for inner in what.commands:
            self.add(inner, depth + 1)
        for inner in what.perhaps:
            if wraps(inner) or inner.words[0].source in RESERVED:
                self.commands.append(inner)  # what is behind it is among these, too
            else:
                self.add(inner, depth + 1)
        for text in what.texts:
            self.text(text, depth + 1)


def begin(token: Token) -> int:
    return token.start


@define
class Level:
    """One text as both readers see it, without what is nested in its words."""

    lexer: Lexer
    tokens: dict[tuple[int, int], Token]
    roles: dict[int, tuple[str, int]] = Factory(dict)  # by where a token begins: what it is, and of which command
    opaque: list[str] = Factory(list)
    names: list[str] = Factory(list)  # that loops set

    def agree(self, encoded: bytes) -> None:
        """Gives every token the role that the tree says; refuses where the two readers differ."""
        root = tree(encoded)
        if root is None or root.has_error:
            self.lexer.refuse("this is not understood as a command", 0 if root is None else first_error(root))
        stack: list[tuple[Node, str, int]] = [(root, "", 0)]
        while stack:
            node, parent, command = stack.pop()
            kind, where = node.type, (node.start_byte, node.end_byte)
            if kind == "comment" or kind == "heredoc_body" or kind == "\n" or where[0] == where[1]:
                continue
            if kind == "heredoc_end":
                if where[1] not in self.lexer.ends:
                    self.lexer.refuse("a here-document that ends elsewhere", where[0])
            elif kind == "test_command":
                self.test(node)
            elif kind == "c_style_for_statement" or (kind == "compound_statement" and node.children[0].type == "(("):
                stack.extend((child, kind, 0) for child in reversed(self.arithmetic(node)))
            elif kind in STRUCTURE:
                command = node.id if kind in COMMANDS else command if kind == "command_name" else 0
                stack.extend((child, kind, command) for child in reversed(node.children))
                if kind == "for_statement":
                    self.names += [
                        self.lexer.text[n.start_byte : n.end_byte] for n in node.children if n.type == "variable_name"
                    ]
            elif node.is_named and kind not in WORDS and kind != "file_descriptor":
                self.lexer.refuse(f"{kind.replace('_', ' ')} is not known here", where[0])
            else:
                other = parent in NO_COMMAND and kind != "variable_assignment"  # which is a case item's command
                self.role(where, "keyword" if not node.is_named else "other" if other else "word", command)
        for token in self.lexer.tokens:
            if token.kind != "newline" and token.start not in self.roles:
                self.lexer.refuse("this can be read in more than one way", token.start)

    def role(self, where: tuple[int, int], role: str, command: int) -> None:
        token = self.tokens.get(where)
        if token is None:
            self.lexer.refuse("this can be read in more than one way", where[0])
        if token.kind == "word" and role == "keyword" and command:  # export, unset, ==
            role = "word"
        self.roles[token.start] = (role, command)

    def between(self, start: int, end: int) -> list[Token]:
        tokens = self.lexer.tokens
        return tokens[bisect_left(tokens, start, key=begin) : bisect_left(tokens, end, key=begin)]

    def test(self, node: Node) -> None:
        """``[`` is a command like any other; ``[[`` evaluates what can't be judged."""
        inside = self.between(node.start_byte, node.end_byte)
        if node.children[0].type == "[":
            if any(token.kind != "word" for token in inside):
                self.lexer.refuse("an operator between [ and ]", node.start_byte)
            self.roles.update((token.start, ("word", node.id)) for token in inside)
            return
        closing = [token for token in inside if token.word is not None and token.word.source == "]]"]
        if node.children[0].type != "[[" or [token.end for token in closing] != [node.end_byte]:
            self.lexer.refuse("a test that is not understood", node.start_byte)
        self.opaque.append("[[ ]] (write [ ] or test)")
        self.roles.update((token.start, ("test", node.id)) for token in inside)

    def arithmetic(self, node: Node) -> list[Node]:
        """Checks ``((...))``, in ``for`` as well; returns what of the node stands outside of it."""
        kinds = [child.type for child in node.children]
        opening, closing = kinds.index("(("), kinds.index("))")
        self.role((node.children[opening].start_byte, node.children[closing].end_byte), "arithmetic", 0)
        self.opaque.append("arithmetic with names")
        return [*node.children[:opening], *node.children[closing + 1 :]]

    def runs(self) -> Iterator[list[Token]]:
        """The tokens of each simple command: what stands between two separators or keywords."""
        run, before, ended = list[Token](), "", set[int]()
        for token in [*self.lexer.tokens, None]:
            role, _ = self.roles.get(token.start, ("newline", 0)) if token else ("newline", 0)
            if token and self.belongs(token, role):
                run.append(token)
                before = role
                continue
            if (
                before == "word"
                and role in ("keyword", "test", "other", "arithmetic")
                and token
                and token.kind != "operator"
            ):
                self.lexer.refuse("a keyword among a command's words", token.start)
            if run:
                commands = {self.roles[token.start][1] for token in run} - {0}
                if len(commands) > 1 or commands & ended:
                    self.lexer.refuse("this can be read in more than one way", run[0].start)
                ended |= commands
                yield run
            run, before = [], role

    def belongs(self, token: Token, role: str) -> bool:
        """Whether a token is part of a simple command."""
        if token.kind == "operator":
            return role != "test" and self.lexer.text[token.start : token.end] in REDIRECTS
        return token.kind == "descriptor" or (token.kind == "word" and role == "word")


def tree(encoded: bytes) -> Node | None:
    """How the grammar sees a text; ``None`` where it finds an error early or would go over it again and again.

    It is handed small pieces: the rare text on which its scanner looks far ahead at every character asks for ever more.
    """
    view, left = memoryview(encoded), READS + 10 * len(encoded) // PIECE

    def read(at: int, _: object) -> memoryview | bytes:
        nonlocal left
        left -= 1
        return view[at : at + PIECE] if left > 0 else b""

    try:
        found = Parser(BASH).parse(read, progress_callback=lambda _, has_error: has_error or left <= 0)
    except ValueError:  # the callback stopped it
        return None
    return found.root_node if left > 0 else None


def first_error(node: Node) -> int:
    """Where the first node is that the grammar did not expect or missed."""
    while True:
        if node.is_error or node.is_missing:
            return node.start_byte
        broken = next((child for child in node.children if child.has_error or child.is_error or child.is_missing), None)
        if broken is None:
            return node.start_byte
        node = broken
