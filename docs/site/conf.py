"""The settings of Sphinx for `make site`. build.py gives the version."""

project = "Tidegate"
author = "The Tidegate authors"
project_copyright = ""

extensions = ["myst_parser"]
root_doc = "docs/index"
# A link to a heading is as on GitHub.
myst_heading_anchors = 6
# Blocks of code without a language have no colours, and a block that is cut short is no mistake. Neither is a heading two
# levels below the last: generated pages begin with one.
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

html_theme = "furo"
html_title = "Tidegate"
html_static_path = ["static"]
html_css_files = ["tidegate.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
# Texts of results would need a server.
html_show_search_summary = False
html_domain_indices = False
html_use_index = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5e8a",
        "color-brand-content": "#0b5e8a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cc0ec",
        "color-brand-content": "#6cc0ec",
    },
}
