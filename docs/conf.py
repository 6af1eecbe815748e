"""How Sphinx builds this documentation: `./dev docs`."""

import re

import coop_jax

project = "coop_jax"
author = "the coop_jax authors"
release = version = coop_jax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Attributes are described in the class; fields need no entries of their own.
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"coop_jax {release}"

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w*)")


def _code_as_code(app, what, name, obj, options, lines) -> None:
    """Docstrings mark code with one backtick, as Markdown does; here it takes two."""
    for i, line in enumerate(lines):
        lines[i] = _CODE.sub(
            lambda m: f"``{m[1]}``" + (rf"\ {m[2]}" if m[2] else ""), line
        )


def setup(app) -> None:
    # Before Napoleon reads the sections.
    app.connect("autodoc-process-docstring", _code_as_code, priority=100)
