"""Builds the documents as one site, for `make site`.

The same Markdown files are the source of the site. This copies them to a folder of its own, gives each folder that a page
links to a page with its files, and makes the menu from the lists in docs/index.md and of the pages that list others. Sphinx does the rest. Every warning is a
failure: a link to a file or a heading that does not exist, and a page that is in no list.

    python docs/site/build.py OUT [--root ROOT]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
INDEX = "docs/index.md"
# Pages that list others, below the index.
LISTS = ["docs/sharing.md", "docs/services.md", "docs/engineers.md", "docs/decisions/index.md"]
AT_THE_ROOT = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
FENCE = re.compile(r"^ *(```+|~~~+)", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
# A link of a list, which makes an entry of the menu.
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#\s]+)\)", re.MULTILINE)


def prose(text):
    """The spans of a page outside of fenced blocks."""
    at, fence = 0, None
    for match in FENCE.finditer(text):
        if fence is None:
            yield at, match.start()
            fence = match.group(1)
        elif match.group(1).startswith(fence):
            fence, at = None, match.end()
    if fence is None:
        yield at, len(text)


def pages(root):
    """Every page, relative to the root."""
    found = [Path(name) for name in AT_THE_ROOT]
    found += sorted(path.relative_to(root) for path in (root / "docs").rglob("*.md"))
    return found


def menu(root, path):
    """The sections of an index with a list, each with the names and the targets of its links."""
    folder = os.path.dirname(path)
    for section in re.split(r"^##? ", (root / path).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        caption, _, body = section.partition("\n")
        entries = [(name, os.path.normpath(f"{folder}/{target}")) for name, target in ENTRY.findall(body)]
        if entries:
            yield caption.strip(), entries


class Source:
    """The folder that Sphinx reads: a copy of the pages, and of what they link to."""

    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.pages = set(pages(root))
        self.folders = set()

    def write(self, path, text):
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def linked(self, page, link):
        """The link as Sphinx needs it: to a folder, it becomes one to the page of the folder."""
        path, mark, anchor = link.partition("#")
        if "://" in link or not path or path.startswith("mailto:"):
            return link
        target = Path(os.path.normpath(page.parent / path))
        if target.parts[0] == "..":
            raise SystemExit(f"{page} links to {link}, which is outside of the project")
        if (self.root / target).is_dir():
            self.folders.add(target)
            return f"{path.rstrip('/')}/files.md"
        if target.suffix == ".md":
            self.further(target)
        elif (self.root / target).is_file():
            copy = self.folder / target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / target, copy)
        return link

    def further(self, target):
        """A page of another folder, such as tests/README.md, is on the site if a page links to it."""
        is_new = target not in self.pages and (self.root / target).is_file()
        if is_new:
            self.pages.add(target)
            self.page(target, "---\norphan: true\n---\n")

    def page(self, page, before=""):
        text = (self.root / page).read_text(encoding="utf-8")
        parts, end = [before], 0
        for start, stop in prose(text):
            parts += [text[end:start], LINK.sub(lambda link: self.linked(page, link.group()), text[start:stop])]
            end = stop
        self.write(page, "".join(parts) + text[end:])

    def folder_page(self, folder, is_in_menu):
        """A page with the pages of a folder, or else with its files."""
        inside = sorted(path for path in (self.root / folder).rglob("*") if path.is_file())
        names = [path.relative_to(self.root / folder).as_posix() for path in inside]
        title = f"# {folder.name.capitalize()}\n\n"
        if all(name.endswith(".md") for name in names):
            self.write(folder / "files.md", f"{title}```{{toctree}}\n" + "\n".join(names) + "\n```\n")
            return
        for name in names:
            self.linked(folder / "files.md", name)
        orphan = "" if is_in_menu else "---\norphan: true\n---\n"
        title = f"# Files in `{folder.as_posix()}`\n\n"
        self.write(folder / "files.md", orphan + title + "".join(f"- [{name}](<{name}>)\n" for name in names))


def stage(root, folder):
    """Makes the folder that Sphinx reads."""
    shutil.rmtree(folder, ignore_errors=True)
    source = Source(root, folder)
    for page in sorted(source.pages):
        source.page(page)
    menus = {path: list(menu(root, path)) for path in [INDEX] + LISTS if (root / path).is_file()}
    listed = {target for sections in menus.values() for _, entries in sections for _, target in entries}
    made = set()
    # A page of a folder can link to further folders.
    while new := sorted(source.folders - made):
        for linked in new:
            source.folder_page(linked, linked.as_posix() in listed)
        made.update(new)

    for path, sections in menus.items():
        trees = []
        for caption, entries in sections:
            tree = f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n"
            for name, target in entries:
                page = f"{target}/files" if (root / target).is_dir() else target.removesuffix(".md")
                tree += f"{name} </{page}>\n"
            trees.append(f"{tree}```\n")
        copied = folder / path
        copied.write_text(copied.read_text(encoding="utf-8") + "\n" + "\n".join(trees), encoding="utf-8")


def version(root):
    manifest = (root / "Cargo.toml").read_text(encoding="utf-8")
    return re.search(r'^version = "(.+)"', manifest, re.MULTILINE).group(1)


def main():
    parser = argparse.ArgumentParser(description="Builds the documents as one site.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--root", type=Path, default=HERE.parent.parent)
    arguments = parser.parse_args()
    out, root = arguments.out.resolve(), arguments.root.resolve()
    source = out.with_name(out.name + "-source")
    stage(root, source)
    shutil.rmtree(out, ignore_errors=True)
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-j", "auto", "-c", str(HERE)]
        + ["-d", str(out.with_name(out.name + "-doctrees")), "-D", f"release={version(root)}", str(source), str(out)]
    )
    if built.returncode:
        return built.returncode
    # The first page of the site is the index of the documents.
    start = '<!doctype html><meta charset="utf-8"><title>Tidegate</title>'
    start += '<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">Tidegate</a>\n'
    (out / "index.html").write_text(start, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
