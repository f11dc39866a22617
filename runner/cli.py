"""`nvrx-run`: from arguments to one call. Rooms are imported only by the call that needs them, so that a check of a
recipe starts as fast as a YAML import."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runner.arguments import Parser, working_folder
from runner.errors import ExitCode, RunError, in_another_locale, storage_error
from runner.launch.signals import Stopped, stop_before_start
from runner.streams import complain, go_on_unread, interrupted, write_out

if TYPE_CHECKING:
    from runner.recipe.load import LoadedRecipe
    from runner.recipe.recipe import Recipe


def _parser() -> Parser:
    parser = Parser(
        "nvrx-run",
        "Train from a recipe, check it, or emit what a cluster needs to train from it.",
        "Exit codes: 0 done, 2 bad recipe or arguments; docs/exit-codes.md lists all.",
    )
    parser.add_argument("recipes", nargs="*", metavar="RECIPE",
                        help="YAML recipe; with --validate several, or folders of them")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    for flag, text in (
        ("--validate", "check recipes: every error of every file, exit 0 or 2"),
        ("--explain", "show every setting, where it comes from, and what follows from it"),
        ("--emit-schema", "print the JSON Schema of recipes (takes no RECIPE)"),
        (
            "--emit-command",
            "print the launcher command of this machine, for use without nvrx-run's supervision",
        ),
        ("--emit-manifest", "print the Kubernetes objects"),
        ("--emit-data-job", "print the Kubernetes objects of the data step"),
        ("--emit-sbatch", "print a Slurm batch script"),
        ("--checkpoints", "list the run's checkpoints"),
        ("--faults", "list the planned faults, and where and how those that happened broke the run"),
        ("--export", "write a checkpoint for other programs: RECIPE STEP, a number or latest (-o FOLDER)"),
    ):
        what.add_argument(flag, dest="action", action="store_const", const=flag[2:], help=text)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
                        help="override a setting, e.g. training.steps=100; may be repeated")  # fmt: skip
    parser.add_argument("--format", choices=("text", "json", "github", "sarif"), default="text",
                        help="of --validate's findings (default: text)")  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="with --validate: warnings are errors")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="write to PATH instead of standard output; with --export the folder to make "
        "(default: export/step-N in the run's folder)",
    )
    parser.add_argument(
        "--node-rank", type=int, metavar="N", help="with --emit-command: of which node (default: 0)"
    )
    parser.add_argument("--verbose", action="store_true", help="more detail, tracebacks included")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `nvrx-run`; returns the exit code."""
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    action = args.action or "run"
    if action == "emit-schema":
        if args.recipes:
            parser.error("--emit-schema takes no recipe")
    elif not args.recipes:
        parser.error("give a recipe, e.g. recipes/quickstart.yaml")
    elif action == "export":
        args.recipes, args.step = _recipe_and_step(parser, args.recipes)
    elif len(args.recipes) > 1 and action != "validate":
        parser.error(f"one recipe at a time, got {len(args.recipes)}: {' '.join(args.recipes)}")
    if "" in (*args.recipes, args.output):
        parser.error("a path is empty (of a variable that is not set?)")
    if action != "validate" and (args.strict or args.format != "text"):
        parser.error("--strict and --format go with --validate")
    if args.node_rank is not None and action != "emit-command":
        parser.error("--node-rank goes with --emit-command")
    if args.output is not None and action not in _WRITES:
        parser.error("-o goes with " + ", ".join(f"--{name}" for name in sorted(_WRITES)))
    try:
        return _ACTIONS[action](args)
    except RunError as error:
        if args.verbose:
            raise
        complain(f"nvrx-run: {error}")
        return int(error.exit_code)
    except UnicodeEncodeError as error:  # of a path: texts are written as UTF-8
        if args.verbose:
            raise
        complain(f"nvrx-run: {in_another_locale(error)}")
        return int(ExitCode.BAD_RECIPE)
    except OSError as error:
        if args.verbose:
            raise
        failure = storage_error(error)
        complain(f"nvrx-run: {failure}")
        return int(failure.exit_code)
    except Stopped as stopped:
        complain(f"nvrx-run: {stopped}: stopped before anything was started; the same command starts it")
        return int(ExitCode.PREEMPTED)
    except KeyboardInterrupt:  # a run's own processes take the signal as a wish to save and stop
        return interrupted("nvrx-run")


def _recipe_and_step(parser: Parser, words: list[str]) -> tuple[list[str], str]:
    """What `--export` is given: a recipe and a step, in either order."""
    steps = [word for word in words if word.isdigit() or word == "latest"]
    recipes = [word for word in words if word not in steps]
    if len(steps) != 1 or len(recipes) != 1:
        parser.error(f"--export takes RECIPE STEP (a number, or latest), got: {' '.join(words)}")
    return recipes, steps[0]


def _validate(args: argparse.Namespace) -> int:
    from runner.recipe.validate import findings, validate

    result = validate(args.recipes, args.overrides, strict=args.strict)
    write_out(findings(result, args.format, color=_color(sys.stdout)))
    return int(ExitCode.BAD_RECIPE if result.failed else ExitCode.DONE)


def _color(stream: object) -> bool:
    import os

    return bool(getattr(stream, "isatty", lambda: False)()) and not os.environ.get("NO_COLOR")


def _load(args: argparse.Namespace, environment: Mapping[str, str] | None = None) -> LoadedRecipe:
    """The recipe of a command that acts on it; findings go to standard error.

    Args:
        environment: what `${NAME}` is filled in from; the process's own by default.
    """
    from runner.recipe.load import check_file
    from runner.recipe.problems import RecipeErrors

    loaded, problems = check_file(args.recipes[0], args.overrides, environment)
    if problems:
        from runner.recipe import render

        complain(render.text(problems, color=_color(sys.stderr)))
    if loaded is None:
        errors = [problem for problem in problems if problem.severity == "error"]
        if args.verbose:
            raise RecipeErrors(errors)
        count = f"{len(errors)} error{'s' if len(errors) > 1 else ''}"
        raise RunError(f"{args.recipes[0]}: {count}", ExitCode.BAD_RECIPE)
    return loaded


def _write(args: argparse.Namespace, text: str) -> int:
    if args.output is None:
        write_out(text if text.endswith("\n") else text + "\n")
    else:
        try:
            Path(args.output).write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{args.output}: cannot be written: {error.strerror}; name a file in a folder that takes one",
                ExitCode.BAD_RECIPE,
            ) from None
    return int(ExitCode.DONE)


def _run(args: argparse.Namespace) -> int:
    with stop_before_start():
        from runner.launch.supervisor import run

        go_on_unread()
        working_folder()  # the run's paths start there
        loaded = _load(args)
        _refuse_for_this_machine(args, loaded)
    return run(loaded, verbose=args.verbose)


def _refuse_for_this_machine(args: argparse.Namespace, loaded: LoadedRecipe) -> None:
    from runner.launch.place import visible_gpus
    from runner.recipe.installed import installed_nccl, installed_problem, rank_problems, require_training

    require_training()
    problem = installed_problem(loaded.recipe, installed_nccl())
    if problem is not None:
        raise RunError(f"{loaded.path}: {problem}", ExitCode.BAD_RECIPE)
    gpus = visible_gpus()
    problems = rank_problems(loaded, args.overrides, max(1, gpus))
    if problems:
        from runner.recipe import render

        complain(render.text(problems, color=_color(sys.stderr)))
        raise RunError(
            f"{args.recipes[0]}: not on this machine: cluster.processes_per_node is not given, which makes "
            f"{max(1, gpus)} of its {gpus} GPUs",
            ExitCode.BAD_RECIPE,
        )


def _explain(args: argparse.Namespace) -> int:
    loaded = _load(args)
    from runner.recipe.explain import explain

    return _write(args, explain(loaded) + _interval_section(loaded))


def _interval_section(loaded: LoadedRecipe) -> str:
    from runner.recipe.facts import Facts
    from runner.report.recipe_advice import RecipeCosts, as_section, interval_advice

    facts = Facts(cast(Any, loaded.view))
    recipe = facts.recipe
    costs = RecipeCosts(
        ranks=facts.ranks,
        on_gpus=facts.on_gpus,
        step=facts.step_seconds,
        write=facts.write_seconds,
        mode=recipe.checkpoint.mode,
        layer=recipe.recovery.layer,
        every=recipe.checkpoint.every,
        snapshot_every=recipe.checkpoint.snapshot_every,
    )
    return as_section(interval_advice(costs, Path(recipe.output.folder or f"runs/{recipe.name}")))


def _emit_schema(args: argparse.Namespace) -> int:
    from runner.recipe.schema import schema_text

    return _write(args, schema_text())


def _emit_command(args: argparse.Namespace) -> int:
    loaded, filled_in = _load_for_elsewhere(args)
    from runner.emit.launcher import command_text
    from runner.launch.place import visible_gpus

    text = command_text(
        loaded.recipe,
        folder=working_folder(),
        recipe_path=loaded.path.absolute(),
        overrides=args.overrides,
        filled_in=filled_in,
        node_rank=args.node_rank or 0,
        nproc=max(1, visible_gpus()),
    )
    return _write(args, text)


def _load_for_elsewhere(args: argparse.Namespace) -> tuple[LoadedRecipe, dict[str, str]]:
    """The recipe of a command for another shell, and the variables that it was made with."""
    import os

    from runner.recipe.scalars import Consulted

    environment = Consulted(os.environ)
    loaded = _load(args, environment)
    if loaded.path.resolve().is_relative_to("/proc") or loaded.path.is_relative_to("/dev"):
        raise RunError(
            f"{loaded.path}: is no file that the command could read later; name one", ExitCode.BAD_RECIPE
        )
    return loaded, environment.found


def _emit_manifest(args: argparse.Namespace) -> int:
    loaded = _load(args)
    from runner.emit.manifest import emit_manifest

    recipe = cast("Recipe", loaded.view)
    text = emit_manifest(recipe)
    _tell_doubts(recipe)
    return _write(args, text)


def _tell_doubts(recipe: Recipe) -> None:
    from runner.emit.doubts import doubts

    for doubt in doubts(recipe):
        complain(f"nvrx-run: warning: {doubt}")


def _emit_data_job(args: argparse.Namespace) -> int:
    loaded = _load(args)
    from runner.emit.data_job import emit_data_job

    recipe = cast("Recipe", loaded.view)
    text = emit_data_job(recipe)
    _tell_doubts(recipe)
    return _write(args, text)


def _emit_sbatch(args: argparse.Namespace) -> int:
    loaded, filled_in = _load_for_elsewhere(args)
    from runner.emit.sbatch import sbatch_text

    text = sbatch_text(
        cast("Recipe", loaded.view),
        folder=working_folder(),
        recipe_path=loaded.path.absolute(),
        overrides=args.overrides,
        filled_in=filled_in,
    )
    return _write(args, text)


def _checkpoints(args: argparse.Namespace) -> int:
    loaded = _load(args)
    from runner.checkpoint.listing import list_checkpoints

    return _write(args, list_checkpoints(_from_here(loaded)))


def _faults(args: argparse.Namespace) -> int:
    loaded = _load(args)
    from runner.faults.schedule import schedule_text

    return _write(args, schedule_text(_from_here(loaded)))


def _from_here(loaded: LoadedRecipe) -> Recipe:
    """With the folders that a run started here would use: in another one, its answers name what it has looked at."""
    from runner.recipe.resolve import resolve

    return resolve(loaded.recipe, cwd=working_folder())


def _export(args: argparse.Namespace) -> int:
    loaded = _load(args)
    from runner.recipe.installed import require_training

    require_training()
    from runner.train.export import export

    return export(loaded.recipe, args.step, args.output)


_WRITES = frozenset(
    {
        "explain",
        "emit-schema",
        "emit-command",
        "emit-manifest",
        "emit-data-job",
        "emit-sbatch",
        "checkpoints",
        "faults",
        "export",
    }
)
_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "validate": _validate,
    "explain": _explain,
    "emit-schema": _emit_schema,
    "emit-command": _emit_command,
    "emit-manifest": _emit_manifest,
    "emit-data-job": _emit_data_job,
    "emit-sbatch": _emit_sbatch,
    "checkpoints": _checkpoints,
    "faults": _faults,
    "export": _export,
}


if __name__ == "__main__":
    sys.exit(main())
