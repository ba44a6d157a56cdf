"""Sphinx configuration."""

import os

from stimulus_moo import __version__

project = "stimulus-moo"
release = __version__
version = ".".join(release.split(".")[:2])
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")  # of the version that is built; see .readthedocs.yaml
copyright = "the stimulus-moo authors, MIT licence"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # copies MathJax into the site, so that formulas need no network
]
myst_fence_as_directive = ["math"]  # as GitHub writes formulas, too
html_theme = "furo"
html_title = f"stimulus-moo {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_heading_anchors = 3
pygments_dark_style = "github-dark"
