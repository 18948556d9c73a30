"""How Sphinx makes the site of these pages: `make site`.

They are written for GitHub's Markdown. MyST reads the same language, and names headings as GitHub
does.
"""

project = "gc-assets"
extensions = ["myst_nb"]
# Down to which level a heading can be linked to.
myst_heading_anchors = 4
# The notebook is run by a test, on the lakes of the demo.
nb_execution_mode = "off"

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
