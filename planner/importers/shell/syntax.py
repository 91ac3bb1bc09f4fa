"""Commands and constructs of shell text; nothing is expanded and nothing is run here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shardwright.planner.importers.shell.nodes import (
    AndOr,
    ArithmeticCommand,
    Assignment,
    Body,
    Case,
    Conditional,
    For,
    ForArithmetic,
    Function,
    Group,
    If,
    Item,
    Node,
    Pipeline,
    Redirect,
    Simple,
    Text,
    While,
    Word,
)
from shardwright.planner.importers.shell.words import BLANKS, DEEPEST, META, Scanner, plain_text
from shardwright.specs import InputError

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]\n]*\])?(\+?)=")
_REDIRECT = re.compile(r"(\d*|&)(<<<|<<-?|>>|>\||<>|>&|<&|<|>)")
_FUNCTION = re.compile(r"([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\)")
DECLARING = frozenset(("export", "declare", "typeset", "local", "readonly"))
"""Commands whose operands may be assignments, of arrays too."""


@dataclass(slots=True)
class _Heredoc:
    delimiter: str
    strips_tabs: bool
    is_literal: bool
    body: Word = ()


@dataclass(slots=True)
class _Open:
    """A redirection whose here-document follows at the end of the line."""

    operator: str
    document: _Heredoc


@dataclass(slots=True)
class _Gathered:
    """The parts of a simple command while it is read."""

    assignments: list[Assignment] = field(default_factory=list)
    words: list[Word | Assignment] = field(default_factory=list)
    redirects: list[Redirect | _Open] = field(default_factory=list)


def parse(text: str, *, first_line: int = 1, depth: int = 0) -> Body:
    """The commands of a script.

    Raises:
        InputError: quotes or constructs that never end, with the line.
    """
    parser = _Parser(Scanner(text.replace("\r\n", "\n"), line=first_line, depth=depth))
    body = parser.body(())
    if parser.scan.at < len(parser.scan.text):
        raise parser.scan.error(f"{parser.scan.peek()!r} stands where a command should")
    return body


class _Parser:
    def __init__(self, scan: Scanner) -> None:
        self.scan = scan
        self._pending: list[_Heredoc] = []
        self._depth = scan.depth

    def body(self, ends: tuple[str, ...]) -> Body:
        """Commands up to a reserved word of ``ends``, which is left unread, or the end."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError(
                f"line {self.scan.line}: the script is nested more than {DEEPEST} levels deep",
                fix="give the script that starts the training itself",
            )
        nodes: list[Node] = []
        while True:
            self._skip_lines()
            if self.scan.at >= len(self.scan.text) or self._next_word() in ends:
                break
            if self.scan.peek() == ")" or self.scan.peek(2) == ";;":
                break
            start = self.scan.at
            nodes.append(self._and_or())
            if self.scan.at == start:
                raise self.scan.error(f"{self.scan.peek()!r} stands where a command should")
        self._depth -= 1
        return tuple(nodes)

    def _skip_blanks(self) -> None:
        scan = self.scan
        while scan.at < len(scan.text):
            if scan.text[scan.at] in BLANKS:
                scan.at += 1
            elif scan.peek(2) == "\\\n":
                scan.at += 2
            elif scan.text[scan.at] == "#" and (scan.at == 0 or scan.text[scan.at - 1] in META):
                end = scan.text.find("\n", scan.at)
                scan.at = len(scan.text) if end < 0 else end
            else:
                return

    def _skip_lines(self) -> None:
        """Pass over blanks, comments, line ends and lone separators."""
        while True:
            self._skip_blanks()
            if self.scan.peek() == "\n":
                self._newline()
            elif self.scan.peek() and self.scan.peek() in ";&" and self.scan.peek(2) != ";;":
                self.scan.at += 1
            else:
                return

    def _newline(self) -> None:
        """Pass over a line end, and over the here-documents that begin behind it."""
        self.scan.at += 1
        pending, self._pending = self._pending, []
        for document in pending:
            self._read_document(document)

    def _read_document(self, document: _Heredoc) -> None:
        scan, lines = self.scan, []
        first = scan.line
        while scan.at < len(scan.text):
            end = scan.text.find("\n", scan.at)
            end = len(scan.text) if end < 0 else end
            line = scan.text[scan.at : end]
            scan.at = min(end + 1, len(scan.text))
            line = line.lstrip("\t") if document.strips_tabs else line
            if line == document.delimiter:
                break
            lines.append(line + "\n")
        text = "".join(lines)
        inner = Scanner(text, line=first, depth=self._depth)
        document.body = (Text(text, True),) if document.is_literal else inner.here_text()

    def _next_word(self) -> str:
        """The plain characters that come next, as far as a reserved word could reach."""
        match = re.compile(r"[^\s;&|<>()]*").match(self.scan.text, self.scan.at)
        return match[0] if match else ""

    def _take(self, word: str) -> bool:
        """Pass over a reserved word if it is next."""
        self._skip_blanks()
        if self._next_word() != word:
            return False
        self.scan.at += len(word)
        return True

    def _expect(self, word: str, opened: str, line: int) -> None:
        self._skip_lines()
        if not self._take(word):
            raise InputError(
                f"line {line}: `{opened}` has no `{word}`",
                why="the text is not a whole shell script", fix="check it with `bash -n`",
            )  # fmt: skip

    def _and_or(self) -> Node:
        first = self._pipeline()
        rest: list[tuple[str, Node]] = []
        while True:
            self._skip_blanks()
            operator = self.scan.peek(2)
            if operator not in ("&&", "||"):
                break
            self.scan.at += 2
            self._skip_lines()
            rest.append((operator, self._pipeline()))
        return AndOr(first, tuple(rest)) if rest else first

    def _pipeline(self) -> Node:
        negated = False
        while True:
            self._skip_blanks()
            if self._take("!"):
                negated = not negated
            elif not (self._next_word() == "time" and self._take("time")):
                break
        commands = [self._command()]
        while True:
            self._skip_blanks()
            if self.scan.peek() != "|" or self.scan.peek(2) == "||":
                break
            self.scan.at += 2 if self.scan.peek(2) == "|&" else 1
            self._skip_lines()
            commands.append(self._command())
        if len(commands) == 1 and not negated:
            return commands[0]
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Node:
        self._skip_blanks()
        scan, line = self.scan, self.scan.line
        word = self._next_word()
        readers = {
            "if": self._if, "for": self._for, "select": self._for, "while": self._while,
            "until": self._while, "case": self._case, "function": self._function, "{": self._group,
            "[[": self._conditional,
        }  # fmt: skip
        if word in readers:
            return self._redirected(readers[word](line))
        if scan.peek(2) == "((":
            before = scan.at
            expression = scan.arithmetic()
            if expression is not None:
                return ArithmeticCommand(expression)
            scan.at = before
        if scan.peek() == "(":
            scan.at += 1
            body = self.body(())
            if scan.peek() != ")":
                raise scan.error("( is never closed")
            scan.at += 1
            return self._redirected(Group(body, subshell=True))
        named = _FUNCTION.match(scan.text, scan.at)
        if named:
            scan.at = named.end()
            self._skip_lines()
            return Function(named[1], self._command())
        return self._simple(line)

    def _redirected(self, node: Node) -> Node:
        """A construct with the redirections behind it."""
        found = _Gathered()
        while self._redirect(found):
            pass
        if not found.redirects:
            return node
        return Group((node,), subshell=False, redirects=self._closed_redirects(found))

    def _closed_redirects(self, found: _Gathered) -> tuple[Redirect, ...]:
        """With here-documents, which are read first, as they begin on the next line."""
        if any(isinstance(one, _Open) for one in found.redirects):
            self._finish_line()
        return tuple(
            one if isinstance(one, Redirect) else Redirect(one.operator, one.document.body)
            for one in found.redirects
        )

    def _group(self, line: int) -> Node:
        self._take("{")
        body = self.body(("}",))
        self._expect("}", "{", line)
        return Group(body, subshell=False)

    def _function(self, line: int) -> Node:
        self._take("function")
        self._skip_blanks()
        name = self._next_word()
        self.scan.at += len(name)
        self._skip_blanks()
        if self.scan.peek() == "(":
            closing = self.scan.text.find(")", self.scan.at)
            if closing < 0:
                raise self.scan.error("( is never closed")
            self.scan.at = closing + 1
        self._skip_lines()
        return Function(name, self._command())

    def _if(self, line: int) -> Node:
        self._take("if")
        branches = []
        otherwise: Body = ()
        while True:
            condition = self.body(("then",))
            self._expect("then", "if", line)
            branches.append((condition, self.body(("elif", "else", "fi"))))
            if self._take("elif"):
                continue
            if self._take("else"):
                otherwise = self.body(("fi",))
            self._expect("fi", "if", line)
            return If(line, tuple(branches), otherwise)

    def _loop_body(self, opened: str, line: int) -> Body:
        self._skip_lines()
        if self._take("{"):
            body = self.body(("}",))
            self._expect("}", opened, line)
            return body
        self._expect("do", opened, line)
        body = self.body(("done",))
        self._expect("done", opened, line)
        return body

    def _while(self, line: int) -> Node:
        until = self._take("until")
        opened = "until" if until else "while"
        if not until:
            self._take("while")
        condition = self.body(("do",))
        return While(line, condition, self._loop_body(opened, line), until)

    def _for(self, line: int) -> Node:
        self.scan.at += len(self._next_word())
        self._skip_blanks()
        if self.scan.peek(2) == "((":
            return self._for_arithmetic(line)
        name = self._next_word()
        self.scan.at += len(name)
        self._skip_lines()
        words: list[Word] | None = None
        if self._take("in"):
            words = []
            self._skip_blanks()
            while word := self.scan.word():
                words.append(word)
                self._skip_blanks()
        return For(
            line, name, None if words is None else tuple(words), self._loop_body("for", line)
        )

    def _for_arithmetic(self, line: int) -> Node:
        start = self.scan.at
        if self.scan.arithmetic() is None:
            raise self.scan.error("(( is never closed")
        parts = self.scan.text[start + 2 : self.scan.at - 2].split(";")
        if len(parts) != 3:
            raise self.scan.error("for (( needs three parts")
        first, condition, step = (Scanner(part, line=line).here_text() for part in parts)
        return ForArithmetic(line, (first, condition, step), self._loop_body("for", line))

    def _case(self, line: int) -> Node:
        self._take("case")
        self._skip_blanks()
        word = self.scan.word()
        self._expect("in", "case", line)
        clauses: list[tuple[tuple[Word, ...], Body]] = []
        while True:
            self._skip_lines()
            if self._take("esac"):
                return Case(line, word, tuple(clauses))
            if self.scan.at >= len(self.scan.text):
                raise self.scan.error("`case` has no `esac`")
            clauses.append((self._patterns(), self.body(("esac",))))
            if self.scan.peek(2) == ";;":
                self.scan.at += 3 if self.scan.peek(3) == ";;&" else 2

    def _patterns(self) -> tuple[Word, ...]:
        if self.scan.peek() == "(":
            self.scan.at += 1
        patterns = []
        while True:
            self._skip_blanks()
            patterns.append(self.scan.word())
            self._skip_blanks()
            mark = self.scan.peek()
            if not mark or mark not in "|)":
                raise self.scan.error("a pattern of `case` has no )")
            self.scan.at += 1
            if mark == ")":
                return tuple(patterns)

    def _conditional(self, line: int) -> Node:
        self._take("[[")
        tokens: list[str | Word] = []
        while True:
            self._skip_lines_of_condition()
            if self.scan.at >= len(self.scan.text):
                raise InputError(
                    f"line {line}: [[ is never closed", fix="check the script with `bash -n`"
                )
            if self._take("]]"):
                return Conditional(line, tuple(tokens))
            two = self.scan.peek(2)
            if two in ("&&", "||"):
                tokens.append(two)
                self.scan.at += 2
            elif self.scan.peek() in tuple("()<>"):
                tokens.append(self.scan.peek())
                self.scan.at += 1
            elif tokens and plain_text_of(tokens[-1]) == "=~":
                tokens.append(self.scan.word(BLANKS + "\n"))
            elif word := self.scan.word():
                tokens.append(word)
            else:
                raise self.scan.error(f"{self.scan.peek()!r} stands in a condition")

    def _skip_lines_of_condition(self) -> None:
        self._skip_blanks()
        while self.scan.peek() == "\n":
            self._newline()
            self._skip_blanks()

    def _redirect(self, found: _Gathered) -> bool:
        """Read one redirection if it is next."""
        self._skip_blanks()
        match = _REDIRECT.match(self.scan.text, self.scan.at)
        if match is None or self.scan.text.startswith(("<(", ">("), match.start(2)):
            return False
        self.scan.at = match.end()
        self._skip_blanks()
        target = self.scan.word()
        operator = match[2]
        if operator in ("<<", "<<-"):
            delimiter = "".join(part.text for part in target if isinstance(part, Text))
            literal = any(isinstance(part, Text) and part.quoted for part in target)
            document = _Heredoc(delimiter, operator == "<<-", literal)
            self._pending.append(document)
            found.redirects.append(_Open(operator, document))
        else:
            found.redirects.append(Redirect(match[1].strip("1") + operator, target))
        return True

    def _simple(self, line: int) -> Node:
        scan, found = self.scan, _Gathered()
        while scan.at < len(scan.text):
            self._skip_blanks()
            if not scan.peek() or (scan.peek() in "\n;&|)" and scan.peek(2) != "&>"):
                break
            if self._redirect(found):
                continue
            if scan.peek(2) in ("<(", ">("):
                scan.at += 1
                found.words.append(scan.substitution())
            elif _ASSIGNED.match(scan.text, scan.at) and self._may_assign(found):
                one = self._assignment()
                (found.words if found.words else found.assignments).append(one)
            elif word := scan.word():
                found.words.append(word)
            else:
                raise scan.error(f"{scan.peek()!r} stands where a word should")
        return self._closed(line, found)

    def _closed(self, line: int, found: _Gathered) -> Simple:
        redirects = self._closed_redirects(found)
        return Simple(line, tuple(found.assignments), tuple(found.words), redirects)

    def _finish_line(self) -> None:
        """Read the here-documents now: take them out of the text behind this line."""
        scan = self.scan
        rest = scan.at
        end = scan.text.find("\n", rest)
        if end < 0:
            return
        scan.at = end
        self._newline()
        # What stood between the command and its documents comes next, then what is behind them.
        lines = scan.text.count("\n", end, scan.at)
        scan.text = scan.text[:rest] + scan.text[rest:end] + "\n" * max(1, lines) + (
            scan.text[scan.at:])  # fmt: skip
        scan.at = rest

    @staticmethod
    def _may_assign(found: _Gathered) -> bool:
        if not found.words:
            return True
        return plain_text_of(found.words[0]) in DECLARING

    def _assignment(self) -> Assignment:
        scan = self.scan
        match = _ASSIGNED.match(scan.text, scan.at)
        assert match is not None
        scan.at = match.end()
        index = None
        if match[2]:
            index = Scanner(match[2][1:-1], line=scan.line, depth=self._depth).here_text()
        if scan.peek() == "(":
            return Assignment(match[1], None, self._items(), index, bool(match[3]))
        value = () if scan.peek() in tuple(BLANKS) else scan.word()
        return Assignment(match[1], value, (), index, bool(match[3]))

    def _items(self) -> tuple[Item, ...]:
        scan, line = self.scan, self.scan.line
        scan.at += 1
        items: list[Item] = []
        while True:
            self._skip_lines_of_condition()
            if scan.peek() == ")":
                scan.at += 1
                return tuple(items)
            if scan.at >= len(scan.text):
                raise InputError(
                    f"line {line}: an array is never closed", fix="check the script with `bash -n`"
                )
            keyed = re.compile(r"\[([^\]\n]*)\]=").match(scan.text, scan.at)
            key = None
            if keyed:
                scan.at = keyed.end()
                key = Scanner(keyed[1], line=scan.line, depth=self._depth).here_text()
            value = scan.word()
            if not value and key is None:
                raise scan.error(f"{scan.peek()!r} stands in an array")
            items.append(Item(value, key))


def plain_text_of(token: str | Word | Assignment) -> str | None:
    """An operator, or a word that expands to nothing but itself; None for others."""
    if isinstance(token, Assignment):
        return None
    return token if isinstance(token, str) else plain_text(token)
