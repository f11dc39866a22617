"""`python drive.py BIN RECIPE [--verbose]`: the supervisor, with the console scripts of the folder BIN."""

import sys
from pathlib import Path

from runner.launch.supervisor import run
from runner.recipe.load import load_recipe

if __name__ == "__main__":
    sys.executable = str(Path(sys.argv[1]) / "python")
    sys.exit(run(load_recipe(sys.argv[2]), verbose="--verbose" in sys.argv))
