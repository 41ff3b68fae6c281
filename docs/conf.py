"""The documentation site: `make docs` builds it in docs/site, and any warning fails the build.

New pages get a line in docs/index.md; `tests/test_site.py` compares the pages with the names.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer.main
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inventory import InventoryFile

import dasktune
from dasktune.cli import app as command_line

sys.path.insert(0, str(Path(__file__).parent))

from reference import homes, public_names, value_of

project = "dasktune"
author = "The dasktune developers"
project_copyright = author
version = release = dasktune.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["site"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_ivar = True
# A single backtick in a docstring names an object or is code: a link where there is a page.
default_role = "py:obj"

html_theme = "furo"
html_title = f"dasktune {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


class Public(SphinxDirective):
    """The public names of a module, each described once: at the first module that has it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the descriptions, and links to those on other pages."""
        module = self.arguments[0]
        lines: list[str] = []
        elsewhere: list[str] = []
        for name in public_names(module):
            path = f"{module}.{name}"
            value = value_of(path)
            home = homes()[path]
            if home != path:
                elsewhere.append(f":py:obj:`{home}`")
            elif inspect.isclass(value):
                kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
                lines += [f".. {kind}:: {path}", ""]
            elif callable(value):
                lines += [f".. autofunction:: {path}", ""]
            else:
                lines += [f".. py:data:: {path}", f"   :type: {type(value).__name__}", ""]
        if elsewhere:
            lines += ["Described on another page: " + ", ".join(elsewhere) + ".", ""]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


def command_page(group: click.Group, program: str = "dasktune") -> Iterator[str]:
    """Yield the lines of the page that shows every command with its arguments and options."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        yield from (f"({program}-{name})=", f"## {program} {name}", "")
        context = click.Context(command, info_name=f"{program} {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        yield from ("```text", f"{program} {name} {usage}", "```", "")
        yield from ((command.help or "").replace("\b", "").replace("<", "&lt;"), "")
        rows = [row for item in command.get_params(context) if (row := _row(item, context))]
        yield from ("| argument or option | |", "|---|---|", *rows, "")


def _row(item: click.Parameter, context: click.Context) -> str | None:
    record = item.get_help_record(context)
    if record is None:  # an argument without a help text
        record = (item.make_metavar(context), getattr(item, "help", None) or "")
    flags, text = (part.replace("|", "\\|").replace("\n", " ") for part in record)
    return f"| `{flags.strip()}` | {text.strip().replace('<', '&lt;')} |"


def adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Write the page of the command line, and what a code host shows otherwise than this site."""
    if page == "command-line":
        group: Any = typer.main.get_command(command_line)
        source[0] += "\n" + "\n".join(command_page(group))
    # Pages of other folders are no part of the site, and diagrams need a program from the network.
    text = re.sub(r"\[([^\]]+)\]\(\.\./([\w./-]+\.md)\)", r"\1 (`\2`)", source[0])
    source[0] = text.replace("```mermaid", "```text")


def require_public_names(app: Sphinx, error: Exception | None) -> None:
    """Fail the build where the site lacks a public name or a command."""
    if error is not None or app.builder.format != "html":
        return
    inventory = InventoryFile.loads((app.outdir / "objects.inv").read_bytes(), uri="")
    names = {name for kind in inventory.data.values() for name in kind}
    group: Any = typer.main.get_command(command_line)
    needed = set(homes().values())
    needed |= {f"dasktune-{name}" for name, command in group.commands.items() if not command.hidden}
    if missing := sorted(needed - names):
        raise SystemExit(f"the site lacks {', '.join(missing)}")


def setup(app: Sphinx) -> None:
    """Connect what this site adds to Sphinx."""
    app.add_directive("public", Public)
    app.connect("source-read", adapt)
    app.connect("build-finished", require_public_names)
