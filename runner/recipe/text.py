"""From bytes to text that is YAML, or the one line that says why not."""

from __future__ import annotations

import errno
import re
import stat
from pathlib import Path

import yaml

from runner.recipe.node import Position
from runner.recipe.problems import Problem, RecipeErrors

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip
_UNPRINTABLE = "[^\\t\\n\\r -~\\x85\\xa0-\\ud7ff\\ue000-\\ufefe\\uff00-\\ufffd\\U00010000-\\U0010ffff]"


def read_regular(path: Path, most: int) -> bytes:
    """The first bytes of a file, `most` of them. To open a pipe would wait for a writer, and a device may never end.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    kind = _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
    with path.open("rb") as file:
        return file.read(most)


def decode(data: bytes, name: str) -> str:
    """The text of a file: UTF-8, with or without a byte-order mark, of characters that YAML allows."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise fatal("Y101", name, 1, 1, "is UTF-16; a recipe is UTF-8", "save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        line, column = _place(before)
        raise fatal(
            "Y101",
            name,
            line,
            column,
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            "save the file as UTF-8",
        ) from None
    # what only other alphabets need is compiled, which takes milliseconds, only for them
    odd = _CONTROL.search(text) if text.isascii() else re.search(_UNPRINTABLE, text)
    if odd:
        line, column = _place(text[: odd.start()])
        message = f"character U+{ord(odd[0]):04X} is not allowed in YAML"
        raise fatal("Y102", name, line, column, message, "delete it")
    return text


def control_character(text: str) -> str | None:
    """The first control character of a text, line breaks (LF) and tabs aside; None where there is none."""
    if text.isprintable():
        return None
    return next((c for c in text if (c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f"), None)


def printable(text: str) -> str:
    """A text for a message of one line: control characters as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _place(before: str) -> tuple[int, int]:
    lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return len(lines), len(lines[-1]) + 1


def fatal(
    code: str,
    name: str,
    line: int,
    column: int,
    message: str,
    hint: str | None = None,
    expected: str | None = None,
) -> RecipeErrors:
    """The one problem of a file of which nothing can be made."""
    at = Position(name, line, column, line, column)
    return RecipeErrors([Problem(code, at, "", message, expected=expected, hint=hint)])


_OPENED = ("while scanning a quoted scalar", "while scanning a simple key")
_BRACKETS = ("while parsing a flow sequence", "while parsing a flow mapping")


def syntax_error(error: yaml.MarkedYAMLError, text: str, name: str) -> RecipeErrors:
    """What PyYAML's parser found, in words for the person who wrote it.

    The parser notices an unclosed quote or a key without a colon only later on: it is pointed at where it starts.
    """
    mark = error.problem_mark or error.context_mark
    if error.context in _OPENED and error.context_mark is not None:
        mark = error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = text.splitlines()
    written = lines[line - 1] if 0 < line <= len(lines) else ""
    problem = str(error.problem or error.context)
    message = f"is not valid YAML: {problem}"
    hint = None
    indent = written[: len(written) - len(written.lstrip())]
    if "\t" in indent:
        column = indent.index("\t") + 1
        message, hint = "a tab is used for indentation", "indent with spaces"
    elif "\t" in written and "cannot start any token" in problem:
        message, hint = "a tab stands where YAML allows only spaces", "use spaces"
    elif any(quote in written for quote in "“”‘’"):
        hint = "curly quotes are not YAML quotes: use ' or \""
    elif error.context == "while scanning a quoted scalar":
        message, hint = (
            "is not valid YAML: this quote is not closed",
            "close it; a quote inside '...' is written twice",
        )
    elif error.context == "while scanning a simple key":
        message, hint = "is not valid YAML: a key without `:`", "write `key: value`"
    elif "${" in written and "{" in written.replace("${", ""):
        hint = "quote a ${VAR} inside { }"
    elif "mapping values are not allowed" in problem:
        hint = "quote text that contains `: `, or check the indentation"
    raised = fatal("Y106", name, line, column, message, hint)
    if error.context in _BRACKETS and error.context_mark is not None:
        start = error.context_mark
        opened = Position(name, start.line + 1, start.column + 1, start.line + 1, start.column + 2)
        return RecipeErrors(
            [raised.problems[0]._replace(also=opened, hint=hint or "is a bracket not closed?")]
        )
    return raised
