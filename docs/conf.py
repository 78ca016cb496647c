"""The operator's guide, and the man pages, out of the documents in this folder. `./dev docs` builds them."""

from agent import __version__

project = "Plimsoll"
author = "The Plimsoll developers"
project_copyright = author
version = release = __version__

extensions = ["myst_parser"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
exclude_patterns = ["*.py"]
nitpicky = True

html_theme = "alabaster"
html_theme_options = {
    "description": "The load line for hypervisors",
    "fixed_sidebar": True,
    "page_width": "1100px",
    "body_max_width": "800px",
}
html_show_copyright = False
html_show_sourcelink = False

man_pages = [
    ("cli", "plimsoll", "the load line for hypervisors", author, 1),
    ("configuration", "plimsoll.conf", "settings of the Plimsoll agent", author, 5),
]
man_show_urls = True
