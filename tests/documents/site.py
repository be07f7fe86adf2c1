"""Makes mistakes in a small copy of the documents: the site must not be built with any of them. Needs .venv-docs."""

import subprocess
import sys
import tempfile
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent.parent / "docs/site"

PAGES = {
    "Cargo.toml": '[package]\nversion = "1.2.3"\n',
    "README.md": "# Read me\n\n[A page](docs/how-to/page.md#second-heading), [a folder](things).\n",
    **{name: f"# {name}\n" for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")},
    "things/thing.txt": "a file\n",
    "things/README.md": "# Things\n",
    "docs/how-to/page.md": "# Page\n\n## Second `heading`\n\n[Back](../index.md), [things](../../things/README.md).\n",
    "docs/decisions/0001-one.md": "# 0001: One\n",
    "docs/index.md": "# Index\n\n## Pages\n\n- [Page](how-to/page.md): what it is\n- [Decisions](decisions)\n\n## Root\n\n"
    + "".join(f"- [{name}](../{name}.md)\n" for name in ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
}
# A file, and what it has in addition; then what the builder must say.
MISTAKES = [
    ("docs/how-to/page.md", "\n[No file](other.md)\n", "other.md"),
    ("docs/how-to/page.md", "\n[No heading](../../README.md#none)\n", "none"),
    ("docs/how-to/page.md", "\n[No file](../../things/none.txt)\n", "none.txt"),
    ("docs/how-to/page.md", "\n![No picture](none.png)\n", "none.png"),
    ("docs/how-to/new.md", "# New\n", "isn't included in any toctree"),
    ("docs/index.md", "- [Nothing](how-to/nothing.md)\n", "nothing"),
]
# What is done to the built site; then what the check must say.
BREAKS = [
    ("README.html", 'id="', 'data-id="', "no such place"),
    ("docs/how-to/page.html", 'href="../', 'href="../nowhere/', "no such file"),
    ("README.html", "<head>", '<head><script src="https://example.com/x.js"></script>', "loads https://example.com/x.js"),
    ("_static/tidegate.css", "table", "@import 'x'; table", "@import"),
]


def run(script, *arguments):
    said = subprocess.run([sys.executable, SITE / script, *arguments], capture_output=True, text=True)
    return said.returncode, said.stdout + said.stderr


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder) / "root", Path(folder) / "site"
        for name, text in PAGES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        for name, addition, wanted in MISTAKES:
            path = root / name
            before = path.read_text() if path.exists() else None
            path.write_text((before or "") + addition)
            code, said = run("build.py", out, "--root", root)
            if code == 0 or wanted not in said:
                wrong.append(f"{name} with {addition!r}: {code} {said}")
            if before is None:
                path.unlink()
            else:
                path.write_text(before)
        code, said = run("build.py", out, "--root", root)
        if code or said:
            wrong.append(f"without a mistake: {code} {said}")
        code, said = run("check.py", out)
        if code or said:
            wrong.append(f"the site without a mistake: {code} {said}")
        for name, right, bad, wanted in BREAKS:
            path = out / name
            before = path.read_text()
            path.write_text(before.replace(right, bad))
            code, said = run("check.py", out)
            if code == 0 or wanted not in said:
                wrong.append(f"{name} with {bad!r}: {code} {said}")
            path.write_text(before)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
