"""How Sphinx makes the site of these pages: `make site`.

They are written for GitHub's Markdown. MyST reads the same language, and names headings as GitHub
does.
"""

project = "gc-assets"
author = "the authors of gc-assets"
extensions = ["myst_nb"]
exclude_patterns = ["conf.py"]

myst_heading_anchors = 4
# The notebook is run by a test, on the lakes of the demo.
nb_execution_mode = "off"
# A lexer colours what it can of a shortened example, and says nothing of the rest.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
