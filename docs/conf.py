"""Configuration of the documentation site.

Sphinx was chosen because it is maintained, generates the API reference from docstrings and types, and can treat every
broken internal link as an error. The built site loads nothing from another host: the theme brings its own CSS and
scripts, and it uses the fonts of the reader's system.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.ext.napoleon.docstring import GoogleDocstring

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "run-coordinator"
author = "run-coordinator contributors"
copyright = "run-coordinator contributors"
version = release = installed_version("run-coordinator")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_reference",
    "key_reference",
    "route_reference",
    "self_contained",
    "state_diagram",
]
exclude_patterns = ["_build", "_ext"]
html_theme = "furo"
html_title = f"run-coordinator {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_baseurl = ""

# Markdown. Headings get the same anchors as on GitHub, so that links work in both places.
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
default_role = "literal"  # docstrings write code in single backticks

# API reference
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # "Attributes:" of a class becomes a list and not a second description of each attribute
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 100

# Every reference must resolve (-n). The build has no network and so no inventories of other projects: names of the
# standard library and of tenacity are not links. `sphinx-build -b linkcheck` would check links to other hosts, which
# needs a network; scripts/check does not run it.
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"coordinator\.middleware\.SamplingMiddleware"),  # internal: the base of Tracing
    ("py:class", r"opentelemetry\..*"),
    (
        r"py:.*",
        r"(asyncio|collections|concurrent|contextlib|datetime|decimal|enum|pathlib|types|typing|typing_extensions)\..*",
    ),
    (r"py:.*", r"(abc\.)?(Mapping|Sequence|Iterable|Iterator|AsyncIterator|Callable|Awaitable|Coroutine|Generator)"),
    (
        r"py:.*",
        r"(agents|langchain_core|langgraph|openai|pydantic_ai)\..*",
    ),  # frameworks whose documentation is not linked
    (
        r"py:.*",
        r"(starlette|tenacity|tzinfo|StopBaseT|WaitBaseT|datetime|timedelta|Unpack|TracebackType|Concatenate).*",
    ),
    # Internal types that public signatures mention: a clock for tests, the base of both runs, context managers, defaults, handlers.
    (
        r"py:.*",
        r".*\.(Amount|Clock|Child|Collected|Condition|Cut|Enqueued|MemoryServer|NewRun|OpenCall|Received|Reserving|Unchanged|BaseRun|HandlerOf|_Testing|_MemoryRun|Decorator|PlainSaver)",
    ),
    (r"py:.*", r".*\.(PlainHandler|AsyncHandler)"),
    (r"py:.*", r"tuple\[~workers\.durable\..*"),
    (r"py:.*", r"([A-Z]|[A-Z]_co|P\.(args|kwargs)|.*\.([A-Z]|[A-Z]_co))"),  # type variables
]


def _keep_colon(self: GoogleDocstring) -> tuple[str, list[str]]:
    """Read the docstring of a property as prose: napoleon would take "Seconds: …" for the property's type."""
    return "", [*self._dedent(self._consume_to_end())]


GoogleDocstring._consume_inline_attribute = _keep_colon  # type: ignore[method-assign]
