"""The command `coop-jax`: plan a step of a module, look at plans, simulate traces.

A step is named as `module:function` or `path/to/file.py:function`. Its arguments come
from a function that returns them as a tuple of arrays or `jax.ShapeDtypeStruct`s:
`--args module:function`, or `example_args` next to the step.
"""

import argparse
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ._budget import BudgetLike, parse_budget
from ._errors import BudgetError, PlanError
from ._frontier import frontier
from ._plan_file import load_plan
from ._planning.policies import PLANNERS
from ._program.trace import is_the_users
from ._remat import Rematerialized, remat
from ._report.files import IMAGES, suffix_of
from ._report.requirements import require
from ._report.text import timeline_text
from ._version import __version__
from .simulate import main as simulate

_EXAMPLE_ARGS = "example_args"


class UsageError(Exception):
    """What was typed cannot be done."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0, 1 for a plan that failed, 2 usage.

    Args:
      argv: what follows the name of the command; by default that of the process.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["simulate"]:
        return simulate(given[1:])
    options = _parser().parse_args(given)
    try:
        _check_outputs(options)
        _check_numbers(options)
        options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        print(f"coop-jax {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `| head` has seen enough; what Python still wants to write goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BudgetError as error:
        print(error, file=sys.stderr)
        if error.plan is not None:
            print(error.plan.explain(), file=sys.stderr)
        return 1
    except (PlanError, OSError, ImportError, ValueError, TypeError) as error:
        # What goes wrong in the user's own code is shown with its place.
        if _is_of_the_step(error):
            raise
        print(f"coop-jax {options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "coop-jax", description="Runs JAX training steps within a memory budget."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    plan = commands.add_parser("plan", help="plan a step and print what it takes")
    plan.set_defaults(run=_plan)
    _add_step(plan)
    plan.add_argument(
        "--budget", help='"12GiB", "800MB", a share such as 0.6, or "min"'
    )
    plan.add_argument("-o", "--output", help="save the plan as JSON")
    plan.add_argument("--plot", help="draw it: .html, .svg, .png or .pdf")
    plan.add_argument("--table", action="store_true", help="print every kind of value")

    curve = commands.add_parser("frontier", help="plan a step for many budgets")
    curve.set_defaults(run=_frontier)
    _add_step(curve)
    curve.add_argument("--points", type=int, default=8, help="number of budgets")
    curve.add_argument("--csv", help="write the points")
    curve.add_argument("--plot", help="draw them: .svg, .png or .pdf")

    view = commands.add_parser("view", help="show a saved plan")
    view.set_defaults(run=_view)
    view.add_argument("path", help="the JSON file")
    view.add_argument("--table", action="store_true", help="print every kind of value")
    view.add_argument("--explain", action="store_true", help="say what keeps it there")
    view.add_argument("--html", help="write the page with hover and zoom")
    view.add_argument("--plot", help="draw it: .html, .svg, .png or .pdf")
    view.add_argument("--perfetto", help="write a trace for ui.perfetto.dev")
    # It has a parser of its own.
    commands.add_parser("simulate", help="run an eviction policy over a trace")
    return parser


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", help="module:function or file.py:function")
    parser.add_argument(
        "--args",
        help="function that returns the step's arguments as a tuple "
        f"(default: `{_EXAMPLE_ARGS}` next to the step)",
    )
    parser.add_argument("--donate", help="donated arguments, as in 0,1")
    parser.add_argument("--policy", choices=PLANNERS)
    parser.add_argument("--time-limit", type=float, help="seconds of refinement")
    parser.add_argument("--cache-dir", help="where plans are kept")


def _check_outputs(options: argparse.Namespace) -> None:
    """Refuses what could not be written, before minutes of planning."""
    for name in ("output", "plot", "csv", "html", "perfetto"):
        path = getattr(options, name, None)
        if path is None:
            continue
        if not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{path}: there is no directory {Path(path).parent}.")
        if name in ("plot", "html"):
            pages = () if options.command == "frontier" else (".html",)
            images = IMAGES if name == "plot" else ()
            try:
                suffix = suffix_of(path, (*pages, *images))
            except ValueError as error:
                raise UsageError(f"--{name} {error}") from None
            if suffix in IMAGES:
                require("matplotlib", "plot", "pictures")


def _check_numbers(options: argparse.Namespace) -> None:
    """Refuses numbers that mean nothing, before the step is even imported."""
    try:
        parse_budget(_budget(getattr(options, "budget", None)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--budget {options.budget}: {error}") from None
    for name in ("time_limit", "points"):
        number = getattr(options, name, None)
        if number is not None and not number > 0:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} {number:g}: it has to be more than 0.")


def _is_of_the_step(error: Exception) -> bool:
    """Whether an error passed through code that is neither ours nor a library's."""
    places = traceback.extract_tb(error.__traceback__)
    return any(is_the_users(place.filename) for place in places)


def _plan(options: argparse.Namespace) -> None:
    step, args = _step_and_args(options)
    if not isinstance(step, Rematerialized):
        step = remat(step, _budget(options.budget), **_remat_options(options))
    elif options.budget is not None or _remat_options(options):
        raise UsageError(f"{options.step} has its own budget and options.")
    plan = step.plan(*args)
    print(plan)
    if options.table:
        print(plan.table())
    if options.output:
        plan.save(options.output)
        print(f"saved to {options.output}")
    if options.plot:
        plan.plot(options.plot)
        print(f"drawn to {options.plot}")


def _frontier(options: argparse.Namespace) -> None:
    step, args = _step_and_args(options)
    found = frontier(step, *args, points=options.points, **_remat_options(options))
    print(found)
    if options.csv:
        found.to_csv(options.csv)
    if options.plot:
        found.plot(options.plot)


def _view(options: argparse.Namespace) -> None:
    plan = load_plan(options.path)
    print(plan)
    print(timeline_text(plan))
    if options.table:
        print(plan.table())
    if options.explain:
        print(plan.explain())
    for path in filter(None, (options.html, options.plot)):
        plan.plot(path)
        print(f"drawn to {path}")
    if options.perfetto:
        plan.to_perfetto(options.perfetto)


def _budget(text: str | None) -> BudgetLike:
    """A share is a float; anything else is spelled as in Python."""
    if text is not None and "." in text and text.replace(".", "", 1).isdigit():
        return float(text)
    return text


def _remat_options(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if options.donate is not None:
        try:
            found["donate_argnums"] = tuple(map(int, options.donate.split(",")))
        except ValueError:
            raise UsageError(
                f"--donate {options.donate}: write argument numbers, as in 0,1."
            ) from None
    if options.policy is not None:
        found["policy"] = options.policy
    for name in ("cache_dir", "time_limit"):
        if getattr(options, name) is not None:
            found[name] = getattr(options, name)
    return found


def _step_and_args(options: argparse.Namespace) -> tuple[Callable, tuple]:
    module, step = _named(options.step)
    if options.args is not None:
        _, make_args = _named(options.args)
    else:
        make_args = getattr(module, _EXAMPLE_ARGS, None)
        if make_args is None:
            raise UsageError(
                f"{options.step} needs arguments: name a function that returns them "
                f"with --args, or define `{_EXAMPLE_ARGS}()` next to it."
            )
    if not callable(make_args):
        raise UsageError(
            f"`{_EXAMPLE_ARGS}` is {type(make_args).__name__}, not a function: write "
            f"`def {_EXAMPLE_ARGS}(): return ...`."
        )
    args = make_args()
    if not isinstance(args, tuple):
        raise UsageError(
            f"the arguments of {options.step} are to be a tuple, not "
            f"{type(args).__name__}: write `return (state, batch)`."
        )
    return step, args


def _named(name: str) -> tuple[ModuleType, Callable]:
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        _refuse_name(name, "write module:function, or path/to/file.py:function.")
    if place.endswith(".py"):
        module = _module_of_file(name, place)
    else:
        # As `python -m` does; an installed command does not look there.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            _refuse_name(name, f"{error}.")
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        _refuse_name(name, f"{place} has no function {attribute!r}.")
    return module, found


def _module_of_file(name: str, place: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None or not Path(place).exists():
        _refuse_name(name, f"there is no file {place}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(place).absolute().parent))
    spec.loader.exec_module(module)
    return module


def _refuse_name(name: str, why: str) -> NoReturn:
    raise UsageError(f"{name!r} names no step: {why}")
