"""Sphinx configuration of the documentation site: `make site`.

The pages are written for GitHub's Markdown. MyST reads the same language and names headings as
GitHub does.
"""

from __future__ import annotations

from sphinx.application import Sphinx

project = "gc-assets"
extensions = ["myst_nb"]
# The deepest level of headings that have anchors.
myst_heading_anchors = 4
# A test runs the notebook on the demo lakes.
nb_execution_mode = "off"

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

# Files in the root of the repository, and the pages that include them.
_ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


def _link_root_pages(*event: object) -> None:
    """Point links to files in the root of the repository to the pages that include them."""
    (content,) = (argument for argument in event if isinstance(argument, list))
    for name, page in _ROOT_PAGES.items():
        content[0] = content[0].replace(f"](../{name})", f"]({page})").replace(f"]({name})", f"]({page})")


def setup(app: Sphinx) -> None:
    """Register the link rewriting for pages and included files."""
    app.connect("source-read", _link_root_pages)
    app.connect("include-read", _link_root_pages)
