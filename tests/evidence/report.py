#!/usr/bin/env python3
"""Writes the figures of docs/reference/evidence.md from the output of the runs.

    python3 tests/evidence/report.py             after `make model`, `make exhaustive`, `make fuzz`, ...

Each run leaves lines of JSON in target/evidence. A part of the page whose run has left nothing stays as it is: the page says when each was
measured. Nothing in a part between two marks is written by hand.
"""

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
EVIDENCE = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "evidence"
PAGE = ROOT / "docs" / "reference" / "evidence.md"
PROMISES = ROOT / "docs" / "explanation" / "promises.md"
# How many inputs were tried in all runs.
COUNTS = ROOT / "tests" / "fuzz"
CLAIMS = pathlib.Path(__file__).with_name("claims.toml")


def rows(run):
    """The lines of a run, and when they were written; none if it did not run."""
    path = EVIDENCE / f"{run}.txt"
    if not path.exists():
        return [], None
    written = datetime.datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    return [json.loads(line) for line in path.read_text().splitlines() if line], written


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text() if pathlib.Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"^model name\s*: (.*)$", lines, re.M)
    return name.group(1) if name else platform.machine()


def source(written):
    """Where figures come from. The commit is the latest before the end of the run, so none may be made during it."""
    commit = said("git", "rev-list", "-1", "--abbrev-commit", "--abbrev=8", f"--before={written.isoformat()}", "HEAD")
    return f"Measured on {written.date()} at commit `{commit}`, {said('rustc', '--version')}, {os.cpu_count()} cores ({processor()})."


def table(head, body):
    line = lambda cells: "| " + " | ".join(str(cell) for cell in cells) + " |"
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, body)])


def promises():
    """The number, title and first paragraph of each promise."""
    text = PROMISES.read_text()
    found = re.findall(r"^## (\d+)\. (.+?)\n\n(.+?)\n\n", text, re.M | re.S)
    return {int(number): (title, " ".join(claim.split())) for number, title, claim in found}


def claims(searches, simulated, mutants):
    runs = [row for row in simulated if "seeds" in row]
    known, body = promises(), []
    for claim in tomllib.loads(CLAIMS.read_text())["claim"]:
        if "promise" in claim:
            title, text = known[claim["promise"]]
            name = f"[{claim['promise']}. {title}](../explanation/promises.md)"
        else:
            text, name = claim["text"], f"[{claim['name'].capitalize()}]({claim['page']})"
        states = []
        for machines in claim["machines"]:
            of = [row for row in searches if row["machines"] == machines]
            scopes = [row for row in of if "scope" in row]
            mistakes = len(of) - len(scopes)
            noted = f", {mistakes} mistakes found" if mistakes else ""
            states.append(f"{machines}: {sum(row['states'] for row in scopes):,} states in {len(scopes)} scopes{noted}")
        known_as = claim.get("name", f"promise {claim.get('promise')}")
        shown = [row for row in simulated if row.get("claim") == known_as]
        if runs:
            seeds = sum(row["seeds"] for row in runs)
            by = "; found: " + ", ".join(row["mistake"] for row in shown) if shown else ""
            states.append(f"simulated process: {seeds:,} seeds{by}")
        group = claim.get("name")
        broken = [row for row in mutants if (row.get("mutants") == group if group else row.get("promise") == claim["promise"])]
        noticed, ran, listed = (sum(row[key] for row in broken) for key in ("noticed", "ran", "listed"))
        changed = f"{noticed} of {ran} noticed, {listed - ran} to run" if listed else "none yet"
        body.append([name, text, "<br>".join(states) or "tests only", changed])
    return table(["claim", "word by word", "searched and simulated", "mutants"], body)


def searched(searches):
    scopes = [row for row in searches if "scope" in row]
    body = [[row["machines"], row["name"], row["scope"], f"{row['states']:,}", f"{row['generated']:,}", row["depth"], f"{row['seconds']:.0f}"]
            for row in scopes]
    states, generated = sum(row["states"] for row in scopes), sum(row["generated"] for row in scopes)
    body.append(["all", "", f"{len(scopes)} scopes", f"{states:,}", f"{generated:,}", "", f"{sum(row['seconds'] for row in scopes):.0f}"])
    return table(["machines", "name", "scope", "distinct states", "transitions", "depth", "seconds"], body)


def mistakes(searches):
    body = [[row["machines"], f"`{row['mistake']}`", row["breaks"], row["steps"], f"{row['states']:,}"]
            for row in searches if "mistake" in row]
    return table(["machines", "mistake", "breaks", "steps", "among states"], body)


def simulation(lines):
    """The sums of all seeds, and the seed that shows each mistake."""
    rows = [row for row in lines if "seeds" in row]
    seeds, seconds = (sum(row[key] for row in rows) for key in ("seeds", "simulated_seconds"))
    names = sorted({name for row in rows for name in row["counts"]})
    body = [["seeds", f"{seeds:,}"], ["simulated seconds", f"{seconds:,}"]]
    body += [[name, f"{sum(row['counts'].get(name, 0) for row in rows):,}"] for name in names]
    found = [[row["mistake"], row["claim"], row["seed"], row["how"]] for row in lines if "mistake" in row]
    return table(["counted", "in all"], body) + "\n\n" + table(["mistake", "claim", "seed that shows it", "how"], found)


def fuzzed(lines):
    counts = tomllib.loads((COUNTS / "targets.toml").read_text())
    counts["parser"] = tomllib.loads((COUNTS / "parser.toml").read_text())
    body = [[row["target"], f"{row['inputs']:,}", f"{counts[row['target']]['inputs']:,}", row["findings"], row["seconds"]]
            for row in lines]
    return table(["target", "inputs of this run", "in all", "findings of this run", "seconds"], body)


def replace(page, name, text):
    begin, end = f"<!-- {name}: made by tests/evidence/report.py -->\n", "\n<!-- end -->"
    at = page.index(begin) + len(begin)
    return page[:at] + "\n" + text + "\n" + page[page.index(end, at):]


def main():
    page = PAGE.read_text()
    model, when_model = rows("model")
    exhaustive, when_exhaustive = rows("exhaustive")
    mutants, _ = rows("mutants")
    simulated, when_simulated = rows("simulation")
    fuzz, when_fuzz = rows("fuzz")
    if model and exhaustive:
        searches = exhaustive + model
        page = replace(page, "claims", source(max(when_model, when_exhaustive)) + "\n\n" + claims(searches, simulated, mutants))
        page = replace(page, "searches", searched(searches))
        page = replace(page, "mistakes", mistakes(searches))
    if simulated:
        page = replace(page, "simulation", source(when_simulated) + "\n\n" + simulation(simulated))
    if fuzz:
        page = replace(page, "fuzz", source(when_fuzz) + "\n\n" + fuzzed(fuzz))
    PAGE.write_text(page)


main()
