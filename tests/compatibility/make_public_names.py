"""Write ``written_before/public_names.json``: what users may import and type.

Run it from the root of the repository. It was run once, before the modules moved.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import typer.main  # noqa: E402

import dasktune  # noqa: E402
from dasktune.cli import app  # noqa: E402

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("*.py")),
    *sorted((ROOT / "examples").glob("*")),
]
LEFT_OUT = ("dasktune.testing.torture", "dasktune.testing.chaos", "dasktune.cli.chaos")
LOGGERS = ("dasktune.storage.retrying",)
"""Names that pages give to filter logs by, not to import."""
COMMANDS_LEFT_OUT = ("torture", "chaos")


def is_left_out(module: str) -> bool:
    """Return whether a module only tests dasktune itself."""
    return module.startswith(LEFT_OUT)


def packages() -> list[str]:
    """Return every package of dasktune that lists its names."""
    names = [
        one.name
        for one in pkgutil.walk_packages(dasktune.__path__, "dasktune.")
        if one.ispkg and not is_left_out(one.name) and "migrations" not in one.name
    ]
    found = ["dasktune", *names]
    return [name for name in found if hasattr(importlib.import_module(name), "__all__")]


def resolve(path: str) -> tuple[str, str] | None:
    """Return module and name of a dotted import path, or None for a file name."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return None
            found = getattr(found, part)
        return module, ".".join(parts[length:])
    return None


def imported(text: str) -> list[tuple[str, str]]:
    """Return module and name of each import in Python code, also in blocks of a page."""
    found = []
    for block in [text, *re.findall(r"```python\n(.*?)```", text, re.DOTALL)]:
        try:
            tree = ast.parse(block)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dasktune"):
                found += [(str(node.module), one.name) for one in node.names]
            if isinstance(node, ast.Import):
                names = (one.name for one in node.names if one.name.startswith("dasktune"))
                found += [(name, "") for name in names]
    return found


def documented() -> list[tuple[str, str]]:
    """Return every module and name that a page mentions."""
    found = []
    for page in PAGES:
        text = page.read_text() if page.is_file() else ""
        found += imported(text)
        for path in re.findall(r"\bdasktune(?:\.[A-Za-z_]\w*)+", text):
            if (known := resolve(path)) is not None and known != ("dasktune", ""):
                found.append(known)
        for path in re.findall(r"\bdt((?:\.[A-Za-z_]\w*)+)", text):
            if (known := resolve(f"dasktune{path}")) is not None:
                found.append(known)
        for path in re.findall(r"\.\./(dasktune/[\w/]+)\.py", text):
            found.append((path.replace("/", "."), ""))
    return [one for one in found if not is_left_out(one[0]) and one[0] not in LOGGERS]


SIGNED = (
    *("dasktune", "dasktune.algos", "dasktune.algos.curves", "dasktune.sequences"),
    *("dasktune.space", "dasktune.trainer", "dasktune.testing", "dasktune.simulate"),
    *("dasktune.slurm", "dasktune.report", "dasktune.logs", "dasktune.types"),
)
"""Modules whose names must keep their arguments."""


def parameters(thing: Any) -> list[list[Any]] | None:
    """Return name, kind and whether it may be left out of each argument; None if unknown."""
    try:
        known = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[one.name, one.kind.name, one.default is not one.empty] for one in known]


UNSIGNED = {
    *("TrainerRun", "TrainerCode", "pack", "unpack", "problems_of"),
    *("Drawing", "Chooser", "Domain", "DefinedByRun", "ConformanceError", "SlurmOptions"),
}
"""Names that are imported by dasktune's own parts: their arguments may change."""

WHOLE = {
    *("Tuner", "Trainer", "TorchTrainer", "Callback", "Predictor", "ResumableLoader"),
    *("TunerConformance", "PredictorConformance", "Sequence", "Trial", "Limits"),
    *("Timeouts", "Prediction", "Report", "Register", "Extend"),
}
"""Classes that users subclass, or read all of: every public member counts."""

STUDY = {
    *("name", "metric", "direction", "seed", "config", "user_attrs", "limit", "trainer", "trials"),
    *("best_trial", "best_trials", "best_value", "best_params", "best_repeats", "tuners"),
    *("stages", "summary", "trials_dataframe", "predict", "trace", "optuna_study", "optimize"),
    *("evaluate", "stage_tree", "stop", "ask", "tell", "close", "report", "trial_state", "export"),
    *("replay", "log", "enqueue_trial", "clear_queue", "add_trial", "warm_start", "set_user_attr"),
}


def members_of(thing: type, mentioned: set[str]) -> set[str]:
    """Return which members of a public class count."""
    public = {one for one in dir(thing) if not one.startswith(("_", "test_"))}
    if thing.__name__ == "Study":
        return public & STUDY
    if thing.__name__ in WHOLE:
        return public
    return set() if issubclass(thing, dasktune.algos.Tuner) else public & mentioned


def signatures(imports: dict[str, set[str]]) -> dict[str, Any]:
    """Return the arguments of public functions, classes and their members."""
    text = "\n".join(page.read_text() for page in PAGES if page.is_file())
    mentioned = set(re.findall(r"\.([a-z_]\w*)\b", text))
    found: dict[str, Any] = {}
    for module in SIGNED:
        for name in sorted(imports[module] - UNSIGNED):
            thing = getattr(importlib.import_module(module), name)
            if not callable(thing):
                continue
            members = members_of(thing, mentioned) if isinstance(thing, type) else set()
            found[f"{module}:{name}"] = {
                "parameters": parameters(thing),
                "members": {one: parameters(getattr(thing, one)) for one in sorted(members)},
            }
    return found


def commands() -> dict[str, Any]:
    """Return the commands with their arguments and flags."""
    group: Any = typer.main.get_command(app)
    return {
        name: {
            "arguments": [one.name for one in command.params if one.param_type_name == "argument"],
            "options": {
                flag: {"is_flag": getattr(one, "is_flag", False), "multiple": one.multiple}
                for one in command.params
                if one.param_type_name == "option"
                for flag in (*one.opts, *one.secondary_opts)
            },
        }
        for name, command in group.commands.items()
        if name not in COMMANDS_LEFT_OUT
    }


def rows_of(part: Any) -> str:
    """Return JSON with one line for each entry."""
    if isinstance(part, list):
        return "[\n" + ",\n".join(json.dumps(one) for one in part) + "\n]"
    pairs = (f"{json.dumps(key)}: {json.dumps(part[key])}" for key in sorted(part))
    return "{\n" + ",\n".join(pairs) + "\n}"


def main() -> None:
    """Write the file."""
    star = {name: sorted(importlib.import_module(name).__all__) for name in packages()}
    imports: dict[str, set[str]] = defaultdict(set)
    modules = set(star)
    for module, name in [*documented(), *((m, n) for m, names in star.items() for n in names)]:
        modules.add(module)
        if name:
            imports[module].add(name)
    document = {
        "modules": sorted(modules),
        "imports": {module: sorted(names) for module, names in sorted(imports.items())},
        "star": star,
        "signatures": signatures(imports),
        "commands": commands(),
        "loggers": list(LOGGERS),
        "scripts": {"dasktune": "dasktune.cli:main"},
        "run_by_job_scripts": [
            ["-c", "from dasktune.cli import main; main()", "preview"],
            ["-m", "dasktune.slurm.launch", "--gpus-per-worker", "--workers", "--name"],
        ],
    }
    target = Path(__file__).parent / "written_before" / "public_names.json"
    rows = (f"{json.dumps(part)}: {rows_of(document[part])}" for part in sorted(document))
    target.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
