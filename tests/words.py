#!/usr/bin/env python3
"""Keeps words out of our texts that a tired reader stumbles over.

Reads every tracked text file: documents, comments, messages and names of tests. Prints file, line, the word, and what to
write instead, and exits with 1 if there is one. `make check` runs it.

    python3 tests/words.py             names every place
    python3 tests/words.py --count     counts by folder
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Each word and what to write instead. An underscore counts as a space, so names of tests are read too.
WORDS = [
    (r"whoever", "the client, the caller, clients that …"),
    (r"whom", "the client, the caller, whose"),
    (r"nobody", "no client, no caller, no sidecar"),
    (r"somebody", "another sidecar, a client"),
    (r"but for", "except"),
    (r"(?:takes?|took|taking) hold", "takes effect"),
    (r"(?:is|are) told", "is reported, gets"),
    (r"(?:is|are) away", "is unavailable, has left"),
    (r"he|his|him|himself", "it, its, itself"),
]

# Texts that are not ours, or that name what they quote: the path's beginning, what the line contains, and why.
ALLOWED = [
    ("LICENSE", "", "the licence's own words"),
    ("tests/words.py", "", "lists the words"),
    ("crates/quota/src/key.rs", "nobody", "a key that stores already contain"),
]

OURS = {".md", ".rs", ".py", ".sh", ".toml", ".proto", ".example", ".service", ".conf", ".json", ".yaml", ".yml", ".txt"}
NAMES = {"Makefile", "Dockerfile", "run", ".dockerignore", ".gitignore", ".editorconfig"}
# A test's name in a document is read where the test is.
CITED = re.compile(r"`[a-z0-9_:]+`")
ANY = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern, _ in WORDS), re.IGNORECASE)
MARKS = re.compile(r"^[\s/!#*>|-]*")


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        path = Path(path)
        if path.suffix in OURS or path.name in NAMES:
            yield path


def found(path):
    """Every word that should not be there: the number of its line, the word, what to write instead, the line."""
    lines = (ROOT / path).read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        following = MARKS.sub("", lines[number]) if number < len(lines) else ""
        here = (CITED.sub("", line) if path.suffix == ".md" else line).replace("_", " ")
        # A phrase may be broken over two lines.
        both = here.rstrip() + " " + following[:40].replace("_", " ")
        if not ANY.search(both):
            continue
        for pattern, instead in WORDS:
            for match in re.finditer(rf"\b(?:{pattern})\b", both, re.IGNORECASE):
                if match.start() < len(here.rstrip()):
                    yield number, match.group(), instead, line


def is_allowed(path, line):
    return any(str(path).startswith(start) and text in line for start, text, _ in ALLOWED)


def main():
    counts, wrong = collections.Counter(), 0
    for path in tracked():
        if not (ROOT / path).is_file():
            continue
        for number, word, instead, line in found(path):
            if is_allowed(path, line):
                continue
            wrong += 1
            parts = path.parts
            counts["/".join(parts[: 2 if parts[0] in ("src", "crates", "tests") else 1])] += 1
            if "--count" not in sys.argv:
                print(f"{path}:{number}: {word!r}: write {instead}")
    if "--count" in sys.argv:
        for folder, count in counts.most_common():
            print(f"{count:5} {folder}")
        print(f"{wrong:5} in all")
        return 0
    if wrong:
        print(f"{wrong} words to replace; a quotation belongs into ALLOWED of tests/words.py, with a reason")
    return 1 if wrong else 0


sys.exit(main())
