"""The help of commands: options in groups, plain names of types, and no line cut off."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import typer
from typer.core import TyperCommand

TYPES = {"int range": "N", "int": "N", "float range": "NUMBER", "float": "NUMBER", "path": "PATH"}
"""Names of types as the help shows them; all others are ``TEXT``."""

OF_THE_FILE: Final = dict.fromkeys(
    ("--trials", "--n-trials", "--max-steps", "--min-steps", "--tuner"),
    "it is an argument of the tuner",
)
OF_THE_FILE.update(
    dict.fromkeys(("--metric", "--direction", "--name"), "it is an argument of create_study")
)
"""Options that commands do not have, and where they stand instead."""

_UsageError: Any = typer.BadParameter.__base__  # of click, which typer may bring along

_TYPE = re.compile(r" <([a-z]+(?: range|\[\w+\])?)>")
_ARGUMENT = re.compile(r"\{([^{}]*?)(?:\.\.\.)?\}(?=(\.\.\.)?)")


class HelpfulCommand(TyperCommand):
    """A command whose options stand in the groups that their ``rich_help_panel`` names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a call; of an unknown option, name those that may be meant."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            if (name := getattr(error, "option_name", None)) is not None:
                known = [each for item in self.get_params(ctx) for each in item.opts]
                error.possibilities = near_options(name, known)
                if name in OF_THE_FILE:
                    error.message += f"; {OF_THE_FILE[name]} in the study file"
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, without the braces around arguments."""
        return [_ARGUMENT.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the options of no group, then each group."""
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                group = getattr(parameter, "rich_help_panel", None)
                heading = "Arguments" if is_argument else group or "Options"
                sections[heading].append((_TYPE.sub(_type_name, record[0]), record[1]))
        for heading in sorted(sections, key=lambda name: name not in ("Arguments", "Options")):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])


def near_options(name: str, known: Iterable[str]) -> list[str]:
    """Return the options that begin with a name; without any, those with almost this name.

    Examples
    --------
    >>> near_options("--trials", ["--tls-ca", "--transfer", "--trials-per-gpu"])
    ['--trials-per-gpu']
    >>> near_options("--worker", ["--tls-ca", "--workers"]), near_options("--wrkers", ["--workers"])
    (['--workers'], ['--workers'])
    """
    names = {each.lstrip("-"): each for each in known if each.startswith("--")}
    typed = name.lstrip("-")
    begun = [each for bare, each in names.items() if bare.startswith(typed)]
    return begun or [names[bare] for bare in get_close_matches(typed, names, cutoff=0.75)]


def summaries(commands: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the first paragraph of the help of each command, in full."""
    shown = [(name, command) for name, command in commands.items() if not command.hidden]
    return [(name, " ".join(_first_paragraph(command.help).split())) for name, command in shown]


def _first_paragraph(text: str | None) -> str:
    return (text or "").strip().partition("\n\n")[0]


def _type_name(match: re.Match[str]) -> str:
    return f" {TYPES.get(match[1], 'TEXT')}"
