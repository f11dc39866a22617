"""The argument parser of all commands: one line for a mistake, the option that was meant, `--version`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from runner import __version__
from runner.errors import ExitCode, InputError
from runner.streams import OutputLost, complain, open_missing, write_out


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Of a fixed width: to ask the terminal for its own, argparse imports compression libraries at every start."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=110)


class Parser(argparse.ArgumentParser):
    """Options are written out; a mistake is one line that says what may have been meant."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        open_missing()  # every command makes its parser before it opens a file
        super().__init__(
            prog=prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=_Formatter
        )
        self.add_argument("--version", action="version", version=f"{prog} {__version__}")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and exit with the code of bad input."""
        hint = f"{self.prog} --help lists what there is"
        strange = [word for word in message.split() if word.startswith("-")]
        if message.startswith("unrecognized arguments") and strange:
            from difflib import get_close_matches  # for messages only

            options: dict[str, Any] = self._option_string_actions
            near = get_close_matches(strange[0].partition("=")[0], list(options), n=1)
            hint = f"did you mean {near[0]}?" if near else hint
        complain(f"{self.prog}: {message}; {hint}")
        sys.exit(int(ExitCode.BAD_RECIPE))

    def _print_message(self, message: str, file: Any = None) -> None:
        """`--help` and `--version`."""
        try:
            write_out(message)
        except OutputLost as error:
            complain(f"{self.prog}: {error}")
            sys.exit(int(error.exit_code))


def a_path(text: str) -> Path:
    """A path as an argument; an empty one, of a variable that is not set, would stand for the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("a path is empty (of a variable that is not set?)")
    return Path(text)


def working_folder() -> Path:
    """Where relative paths start.

    Raises:
        InputError: it was removed meanwhile.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InputError("the working folder is not there any more; cd to one that is") from None
