"""Checks a built site: every link of every page leads to a file and a place in it, and nothing is loaded from a network.

    python docs/site/check.py SITE
"""

import argparse
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, and not when a reader follows a link.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}


class Page(HTMLParser):
    """The places of a page, its links, and what it loads."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.places, self.links, self.loads = {"", "top"}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        for name in ("id", "name"):
            if attributes.get(name):
                self.places.add(attributes[name])
        for name in ("href", "src", "data"):
            target = attributes.get(name)
            if target is None or target.startswith("data:"):
                continue
            (self.loads if (tag, name) in LOADED else self.links).append(target)


def mistakes(site):
    """Every dead link, and everything that would need a network."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    if len(pages) < 2:
        yield f"{site} has {len(pages)} pages"
    for path, page in pages.items():
        here = path.relative_to(site)
        for target in page.loads:
            if urlsplit(target).scheme or target.startswith("//"):
                yield f"{here} loads {target}"
        for target in page.links + page.loads:
            parts = urlsplit(target)
            if parts.scheme or target.startswith("//"):
                continue
            led = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not led.is_file():
                yield f"{here} links to {target}: no such file"
            elif led in pages and unquote(parts.fragment) not in pages[led].places:
                yield f"{here} links to {target}: no such place"
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        for mark in ("url(http", 'url("http', "url('http", "url(//", "@import"):
            if mark in text:
                yield f"{path.relative_to(site)} has {mark}"


def main():
    parser = argparse.ArgumentParser(description="Checks a built site.")
    parser.add_argument("site", type=Path)
    found = list(mistakes(parser.parse_args().site.resolve()))
    for mistake in found:
        print(mistake)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
