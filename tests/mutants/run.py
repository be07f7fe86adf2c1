#!/usr/bin/env python3
"""Changes the decision core in one place at a time and checks whether a test notices.

    python3 tests/mutants/run.py                  runs each mutant without a result, and writes docs/reports/mutants.md
    python3 tests/mutants/run.py --keep           the same, but keeps results from before a change of another file
    python3 tests/mutants/run.py --check          only checks that every line of the lists exists
    python3 tests/mutants/run.py --only NAME …    runs mutants whose name contains NAME, also those with a result
    python3 tests/mutants/run.py --hours 1        stops after an hour; the next run continues

The lists are the *.toml files beside this one, readable without Python. The changes are made in a copy
of the tree, target/mutants/tree, with its own target folder. Results are kept in
target/mutants/results.json. The result of a mutant is valid until the mutant or any file of the core or
its tests changes. With --keep it is valid until the mutant or the file that it changes does. A test that
does not end in time counts as one that noticed.

Exits with 1 if a line is not found, if a mutant does not compile, if the tests fail without any change,
if more than 5 % of the mutants that ran survive, or if a survivor in fairness, progress, refunds or
wake-ups has no reason in the list.
"""

import argparse
import fcntl
import hashlib
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = pathlib.Path(__file__).resolve().parent
WORK = ROOT / "target" / "mutants"
TREE = WORK / "tree"
RESULTS = WORK / "results.json"
BASELINE = WORK / "baseline.json"
REPORT = ROOT / "docs" / "reports" / "mutants.md"
GROUPS = [
    "fairness",
    "progress",
    "refunds",
    "wake-ups",
    "window edges",
    "lock-free orderings",
    "sums",
    "other",
]
NEED_A_REASON = GROUPS[:4]
MUST_HAVE = {"name", "group", "file", "before", "after", "breaks", "tests"}
MAY_HAVE = MUST_HAVE | {"survives"}
# The tests of one step may take this many times the time without a change. It is processor time, so that
# other work on the machine does not make a mutant look noticed. By the clock they may take longer.
PATIENCE = 4
CORES = 2
BY_THE_CLOCK = 10
BUILD_SECONDS = 1200


def fail(text):
    print(f"mutants: {text}", file=sys.stderr)
    sys.exit(1)


def read_lists():
    suites, mutants, names = {}, [], set()
    for path in sorted(LISTS.glob("*.toml")):
        with path.open("rb") as file:
            read = tomllib.load(file)
        suites.update(read.get("suites", {}))
        for mutant in read.get("mutant", []):
            where = f"{path.name}: {mutant.get('name', '(a mutant without a name)')}"
            if missing := MUST_HAVE - mutant.keys():
                fail(f"{where}: {', '.join(sorted(missing))} is missing")
            if unknown := mutant.keys() - MAY_HAVE:
                fail(f"{where}: {', '.join(sorted(unknown))} is an unknown key")
            if mutant["name"] in names:
                fail(f"{where}: the name is there twice")
            if mutant["group"] not in GROUPS:
                fail(f"{where}: group must be one of {', '.join(GROUPS)}")
            names.add(mutant["name"])
            mutants.append(mutant)
    for mutant in mutants:
        if mutant["tests"] not in suites:
            fail(f"{mutant['name']}: there is no suite {mutant['tests']!r}")
    return suites, mutants


def stripped(text):
    return [line.strip() for line in text.strip().splitlines()]


def mutated(text, mutant):
    """The text with the lines replaced, or why that cannot be. Indentation does not matter."""
    lines, before = text.splitlines(), stripped(mutant["before"])
    bare = [line.strip() for line in lines]
    found = [
        at for at in range(len(lines)) if bare[at : at + len(before)] == before
    ]
    if len(found) != 1:
        times = "is not there" if not found else f"is there {len(found)} times"
        first = before[0] if len(before) == 1 else f"{before[0]} …"
        return None, f"{mutant['name']}: {mutant['file']}: this line {times}: {first}"
    after = [line for line in mutant["after"].strip().splitlines()]
    lines[found[0] : found[0] + len(before)] = after
    return "\n".join(lines) + "\n", None


def files_of_core():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard", "crates/limits"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode().split("\0")
    return sorted(name for name in listed if name and (ROOT / name).is_file())


def digest(names):
    whole = hashlib.sha256()
    for name in names:
        whole.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    return whole.hexdigest()


def copy_tree():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode().split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for name in wanted:
        source, to = ROOT / name, TREE / name
        # What is the same keeps its time, so that nothing is built again.
        if to.is_file() and to.read_bytes() == source.read_bytes():
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)
    for path in TREE.rglob("*"):
        if path.is_file() and str(path.relative_to(TREE)) not in wanted:
            path.unlink()


def command(step):
    """One step of a suite: `loom FILTER…`, or what comes after `cargo test`."""
    words = step.split()
    cargo = os.environ.get("CARGO", "cargo")
    environment = dict(os.environ, CARGO_PROFILE_DEV_DEBUG="0", CARGO_TERM_COLOR="never")
    target = str(WORK / "target")
    args = [cargo, "test", "-q", "-p", "tidegate-limits", "--target-dir", target]
    if words[0] == "loom":
        environment["RUSTFLAGS"] = "--cfg loom"
        args[-1] = str(WORK / "target-loom")
        return args + ["--lib", "--", *(words[1:] or ["loom"])], environment
    return args + words, environment


def run(step, seconds):
    """Whether the tests pass: "passes", "fails", "no time" or "does not compile"; and for how long."""
    args, environment = command(step)
    split = args.index("--") if "--" in args else len(args)
    began = time.monotonic()
    for phase, limit in (("build", BUILD_SECONDS), ("test", seconds * BY_THE_CLOCK)):
        words = args if phase == "test" else args[:split] + ["--no-run"]
        most = math.ceil(seconds * CORES) if phase == "test" else BUILD_SECONDS * CORES
        began = time.monotonic()
        child = subprocess.Popen(
            words, cwd=TREE, env=environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_CPU, (most, most)),
        )
        try:
            output, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # The group that this run began, and nothing else.
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            if phase == "build":
                fail(f"a build took longer than {BUILD_SECONDS} s")
            return "no time", time.monotonic() - began, ""
        text = output.decode(errors="replace")
        if child.returncode != 0:
            return ("fails" if phase == "test" else "does not compile",
                    time.monotonic() - began, text)
    return "passes", time.monotonic() - began, text


def first_failure(text):
    for line in text.splitlines():
        if line.startswith("thread '") and "panicked" in line:
            return line.split("'")[1]
    return "it did not end" if "SIGXCPU" in text or "SIGKILL" in text else "the process ended"


def baseline(suites, wanted, core, keep):
    """How long each step takes without a change. They must pass."""
    known = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    seconds = {step: took for step, (of, took) in known.items() if keep or of == core}
    for step in sorted({step for mutant in wanted for step in suites[mutant["tests"]]}):
        if step in seconds:
            continue
        print(f"without a change: {step} … ", end="", flush=True)
        outcome, took, text = run(step, 1800)
        print(f"{outcome}, {took:.0f} s", flush=True)
        if outcome != "passes":
            fail(f"without any change, {step!r} {outcome}:\n{text[-2000:]}")
        seconds[step] = took
        known[step] = (core, took)
        BASELINE.write_text(json.dumps(known, indent=1, sort_keys=True))
    return seconds


def test(mutant, suites, seconds):
    path = TREE / mutant["file"]
    original = (ROOT / mutant["file"]).read_text()
    changed, error = mutated(original, mutant)
    assert error is None
    path.write_text(changed)
    began = time.monotonic()
    try:
        for step in suites[mutant["tests"]]:
            outcome, _, text = run(step, seconds[step] * PATIENCE + 10)
            if outcome == "does not compile":
                return {"outcome": outcome, "by": text[-1500:]}
            if outcome != "passes":
                by = first_failure(text) if outcome == "fails" else "it did not end"
                took = round(time.monotonic() - began)
                return {"outcome": "noticed", "by": by, "seconds": took}
        return {"outcome": "survives", "seconds": round(time.monotonic() - began)}
    finally:
        path.write_text(original)


def report(mutants, results):
    def told(mutant):
        return results.get(mutant["name"], {}).get("outcome")

    ran = [mutant for mutant in mutants if told(mutant)]
    survivors = [mutant for mutant in ran if told(mutant) == "survives"]
    lines = [
        "# Mutants",
        "",
        "Each mutant is one small change of the decision core that breaks something. `make mutants` makes",
        "the changes one at a time and runs the tests that can notice them (`tests/mutants`). This page is",
        "its report. A mutant that no test notices survives. If a run stops early, the next one continues.",
        "After a change of the core or its tests, all mutants run again. With",
        "`make mutants MUTANTS=--keep`, only mutants of changed files do.",
        "",
        f"{len(mutants)} are listed, {len(ran)} ran, {len(survivors)} survive.",
        "",
        "| group | listed | ran | noticed | survive |",
        "|---|---|---|---|---|",
    ]
    for group in GROUPS:
        of = [mutant for mutant in mutants if mutant["group"] == group]
        done = [mutant for mutant in of if told(mutant)]
        alive = [mutant for mutant in of if told(mutant) == "survives"]
        counts = f"{len(of)} | {len(done)} | {len(done) - len(alive)} | {len(alive)}"
        lines.append(f"| {group} | {counts} |")
    lines += ["", "## Survivors", ""]
    if not survivors:
        lines.append("None.")
    for group in GROUPS:
        for mutant in survivors:
            if mutant["group"] != group:
                continue
            why = mutant.get("survives", "no reason is known: a test is missing.")
            lines.append(f"- {group}: `{mutant['name']}` in `{mutant['file']}`. It breaks: "
                         f"{mutant['breaks']} {why}")
    lines += ["", "## Noticed", "", "| mutant | group | by |", "|---|---|---|"]
    for mutant in ran:
        result = results[mutant["name"]]
        if result["outcome"] == "noticed":
            lines.append(f"| {mutant['name']} | {mutant['group']} | `{result['by']}` |")
    missing = [mutant["name"] for mutant in mutants if not told(mutant)]
    if missing:
        lines += ["", "## Not run yet", "", ", ".join(missing) + "."]
    REPORT.write_text("\n".join(lines) + "\n")
    return ran, survivors


def main():
    reads = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    reads.add_argument("--check", action="store_true")
    reads.add_argument("--keep", action="store_true")
    reads.add_argument("--only", nargs="+", metavar="NAME")
    reads.add_argument("--hours", type=float, default=3.0)
    reads.add_argument("--nice", type=int, default=10)
    asked = reads.parse_args()
    ends = time.monotonic() + asked.hours * 3600
    os.nice(asked.nice)
    suites, mutants = read_lists()
    lost = [error for mutant in mutants
            for error in [mutated((ROOT / mutant["file"]).read_text(), mutant)[1]] if error]
    if lost:
        fail("the lists and the code differ; change the lists:\n  " + "\n  ".join(lost))
    print(f"mutants: {len(mutants)} are listed, and every line is found", flush=True)
    if asked.check:
        return
    WORK.mkdir(parents=True, exist_ok=True)
    # Two at once would change each other's tree.
    lock = (WORK / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail("another run is under way in this tree")
    core = digest(files_of_core())
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def key_of(mutant):
        own = {name: value for name, value in mutant.items() if name != "survives"}
        return {"mutant": hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest(),
                "file": digest([mutant["file"]]), "core": core}

    def counts(mutant):
        result, key = kept.get(mutant["name"]), key_of(mutant)
        if not result or result["key"]["mutant"] != key["mutant"]:
            return False
        part = "file" if asked.keep else "core"
        return result["key"][part] == key[part]

    results = {mutant["name"]: kept[mutant["name"]] for mutant in mutants if counts(mutant)}
    wanted = [mutant for mutant in mutants if mutant["name"] not in results]
    wanted.sort(key=lambda mutant: GROUPS.index(mutant["group"]))
    if asked.only:
        wanted = [mutant for part in asked.only for mutant in mutants if part in mutant["name"]]
    if wanted:
        copy_tree()
        seconds = baseline(suites, wanted, core, asked.keep)
    for nth, mutant in enumerate(wanted, 1):
        if time.monotonic() > ends:
            print("mutants: the time is up; the next run does the rest", flush=True)
            break
        print(f"{nth} of {len(wanted)}: {mutant['name']} … ", end="", flush=True)
        result = test(mutant, suites, seconds)
        print(result["outcome"], result.get("by", "")[:300], flush=True)
        result["key"] = key_of(mutant)
        results[mutant["name"]] = kept[mutant["name"]] = result
        RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True))
    ran, survivors = report(mutants, results)
    print(f"mutants: {len(ran)} ran, {len(survivors)} survive; {REPORT.relative_to(ROOT)}")
    broken = [mutant["name"] for mutant in ran
              if results[mutant["name"]]["outcome"] == "does not compile"]
    if broken:
        fail("these do not compile: " + ", ".join(broken))
    unexplained = [mutant["name"] for mutant in survivors
                   if mutant["group"] in NEED_A_REASON and "survives" not in mutant]
    if unexplained:
        fail("these survive without a reason: " + ", ".join(unexplained))
    if len(survivors) * 20 > len(ran):
        fail("more than 5 % survive")


main()
