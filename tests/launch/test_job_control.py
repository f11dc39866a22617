"""Ctrl-Z at a terminal: the shell gets its prompt back, and the run goes on to its end."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

from leftovers import processes_of
from tinylab import expected, make_scripts, recipe_text

from runner.faults.records import read_records
from runner.system.process import alive, descendants


class Terminal:
    """An interactive shell on a terminal of its own."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            shell = ["bash", "--norc", "--noprofile", "-i"]
            os.execvpe("bash", shell, os.environ | {"PS1": "ready> ", "TERM": "dumb", **environ})
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until(self, condition, timeout: float = 60) -> None:
        """Read what is shown until something holds."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.02)[0]:
                self.seen += os.read(self.master, 1 << 16).decode()

    def close(self) -> None:
        for pid in [self.pid, *descendants(self.pid)]:
            os.kill(pid, signal.SIGKILL)
        os.close(self.master)
        os.waitpid(self.pid, 0)


def test_a_command_that_is_stopped_at_its_terminal_neither_holds_up_the_run_nor_outlives_it(
    tmp_path: Path,
) -> None:
    scripts, recipe, state = make_scripts(tmp_path), tmp_path / "recipe.yaml", tmp_path / "run" / "state.json"
    recipe.write_text(recipe_text(tmp_path, "inprocess"))
    terminal = Terminal(tmp_path, TINY_STEP="0.5", TINY_FREEZE_COMMAND="1")
    try:
        terminal.until(lambda: "ready> " in terminal.seen)
        drive = Path(__file__).parent / "drive.py"
        terminal.type(f"{sys.executable} {drive} {scripts} {recipe}\n")
        terminal.until(state.exists)
        (command,) = [pid for pid in descendants(terminal.pid) if os.getpgid(pid) == pid][:1]
        terminal.type("\x1a")
        terminal.until(
            lambda: "Stopped" in terminal.seen and "training goes on in the background" in terminal.seen
        )
        # It is stopped once more when all below it has ended; nobody types `fg`.
        terminal.until(lambda: not alive(command))
        terminal.type("\n")
        terminal.until(lambda: "Done" in terminal.seen or "Exit" in terminal.seen)
        assert "Done" in terminal.seen
    finally:
        terminal.close()
    assert state.read_text() == str(expected())
    assert read_records(tmp_path / "run") == []
    assert processes_of(tmp_path) == []
