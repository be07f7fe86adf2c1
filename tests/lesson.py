#!/usr/bin/env python3
"""Runs a tutorial word by word, as a reader would, and compares what appears with what the page shows.

    PATH=$PWD/target/debug:$PATH python3 tests/lesson.py docs/tutorials/your-own-service.md

Files that the page says to save are written, and every `sh` block runs in one shell, in an empty home. The `text` block after it
must appear in its output, line by line and in order. Numbers, ids and times may differ, and of JSON only the names of the
first level count. It needs the ports of the page. It prints the stopwatch, and exits with 1 if a line did not appear.

`make run` is not run here: it builds.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK = "=== block "
SAVED = re.compile(r"[Ss]ave this as `([\w.-]+)`:$")


def blocks(page):
    """Each block with its language and the paragraph before it."""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S):
        before = page[: match.start()].rstrip().rsplit("\n\n", 1)[-1]
        yield match.group(1), match.group(2), " ".join(before.split())


def comparable(line):
    """A line without what differs from run to run."""
    try:
        return sorted(json.loads(line))
    except (ValueError, TypeError):
        pass
    line = re.sub(r'(\{"title".*)', lambda found: str(sorted(json.loads(found.group(1)))), line)
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line)
    line = re.sub(r"\b[0-9a-f]{16}\b", "ID", line)
    return " ".join(re.sub(r"\d+(\.\d+)?", "N", line).split())


def main():
    page = Path(sys.argv[1]).read_text(encoding="utf-8")
    script, expected, number = ["set +m"], {}, 0
    for language, body, before in blocks(page):
        saved = SAVED.search(before)
        if saved:
            script.append(f"cat > {saved.group(1)} <<'END_OF_FILE'\n{body}END_OF_FILE")
        elif language == "sh" and body.strip() != "make run":
            number += 1
            script.append(f"echo; echo '{MARK}{number}'\n{body}")
        elif language == "text" and number:
            expected.setdefault(number, []).extend(body.splitlines())

    home = tempfile.mkdtemp(prefix="lesson-")
    # The lesson about two sidecars uses a file of the one before.
    if "cp ~/own/storm.py" in page:
        other = Path(sys.argv[1]).with_name("your-own-service.md").read_text(encoding="utf-8")
        storm = next(body for language, body, _ in blocks(other) if language == "python" and "# storm.py" in body)
        (Path(home) / "own").mkdir()
        (Path(home) / "own/storm.py").write_text(storm, encoding="utf-8")
    started = time.monotonic()
    run = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=home,
        env={**os.environ, "HOME": home},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    took = time.monotonic() - started

    shown, current = {}, 0
    for line in run.stdout.splitlines():
        if line.startswith(MARK):
            current = int(line.removeprefix(MARK))
        shown.setdefault(current, []).append(line)
    missing = 0
    for block, lines in expected.items():
        rest = iter([comparable(line) for line in shown.get(block, [])])
        for line in filter(str.strip, lines):
            if comparable(line) not in rest:
                missing += 1
                print(f"block {block} did not show: {line}")
                print("  it showed:", *shown.get(block, []), sep="\n    ")
                break
    print(f"{sys.argv[1]}: {number} blocks of commands in {took:.0f} s, {missing} differ")
    if missing:
        print(f"its files are in {home}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
