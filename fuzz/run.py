#!/usr/bin/env python3
"""Fuzzes every target in turn, for MINUTES in all, on stable Rust.

    python3 fuzz/run.py --minutes 60             all targets; two at once on two cores
    python3 fuzz/run.py --minutes 5 --only ledger config
    python3 fuzz/run.py --again ledger FILE      one input once more

`parser` is crates/h1/tests/differential.rs, which needs no libFuzzer. The others are fuzz_targets/*.rs, built with the coverage of
libFuzzer and without a sanitizer: no crate here has unsafe code, and sanitizers need nightly Rust. They need a C++ compiler.

The corpus of each target is kept in fuzz/corpus, and made small after each run. tests/fuzz/targets.toml counts what was tried.
EVIDENCE gets a line of JSON for each target. Exits with 1 if anything was found.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
FUZZ = ROOT / "fuzz"
COUNTS = ROOT / "tests" / "fuzz" / "targets.toml"
PARSER = "parser"
# What makes a target find more from the start.
SEEDS = {"config": ["config.toml.example", "config.lease-server.toml.example"]}
# As cargo-fuzz gives them, without the sanitizer.
FLAGS = (
    "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 "
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table "
    "-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
)
HEAD = "# How many inputs `make fuzz` has tried, in seconds of its own time. It writes this file. The count of the parser is in parser.toml.\n"


def targets():
    return sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))


def host():
    said = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return re.search(r"^host: (\S+)$", said, re.M).group(1)


def build():
    """The folder of the built targets."""
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "fuzz"
    command = ["cargo", "build", "--release", "--bins", "--manifest-path", FUZZ / "Cargo.toml"]
    # With a target, build scripts and macros are built without the flags.
    command += ["--target", host(), "--target-dir", folder]
    subprocess.run(command, check=True, env={**os.environ, "RUSTFLAGS": FLAGS})
    return folder / host() / "release"


def command_of(target, built, seconds):
    if target == PARSER:
        return ["cargo", "test", "--profile", "fuzzing", "-p", "tidegate-h1", "--test", "differential", "--",
                "the_long_run", "--exact", "--ignored", "--nocapture"]
    corpus, artifacts = FUZZ / "corpus" / target, FUZZ / "artifacts" / target
    corpus.mkdir(parents=True, exist_ok=True)
    artifacts.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS.get(target, []):
        # Comments would take most of the changes, and most of the time.
        lines = [line for line in (ROOT / seed).read_text().splitlines() if line and not line.startswith("#")]
        (corpus / f"seed-{pathlib.Path(seed).name}").write_text("\n".join(lines))
    return [built / target, f"-max_total_time={seconds}", "-timeout=30", "-rss_limit_mb=4096", "-print_final_stats=1",
            "-verbosity=0", f"-artifact_prefix={artifacts}/", corpus]


class Run:
    """A target that runs."""

    def __init__(self, target, built, seconds):
        self.target, self.began, self.seconds = target, time.monotonic(), seconds
        self.before = parser_inputs()
        self.said = tempfile.TemporaryFile("w+")
        minutes = {"MINUTES": str(max(1, round(seconds / 60))), "INPUTS": "", "AGAIN": ""}
        self.process = subprocess.Popen(
            command_of(target, built, seconds), stdout=self.said, stderr=subprocess.STDOUT, cwd=ROOT,
            env={**os.environ, **minutes})

    def finish(self):
        self.said.seek(0)
        text, code = self.said.read(), self.process.returncode
        if self.target == PARSER:
            inputs = parser_inputs() - self.before
        else:
            tried = re.search(r"number_of_executed_units:\s*(\d+)", text)
            inputs = int(tried.group(1)) if tried else 0
        took = time.monotonic() - self.began
        print(f"{self.target}: {inputs:,} inputs in {took:.0f} s{'' if code == 0 else ', and a finding:'}", flush=True)
        if code != 0:
            print("\n".join(text.splitlines()[-60:]), flush=True)
        return {"target": self.target, "inputs": inputs, "seconds": round(took), "findings": int(code != 0)}


def parser_inputs():
    return tomllib.loads((COUNTS.parent / "parser.toml").read_text())["inputs"]


def make_small(target, built):
    """Keeps the inputs of a corpus that reach something no other does."""
    corpus = FUZZ / "corpus" / target
    with tempfile.TemporaryDirectory(dir=corpus.parent) as small:
        merged = subprocess.run([built / target, "-merge=1", "-verbosity=0", "-timeout=30", small, corpus],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        if merged.returncode == 0:
            for path in corpus.iterdir():
                path.unlink()
            for path in pathlib.Path(small).iterdir():
                path.rename(corpus / path.name)
    return sum(1 for _ in corpus.iterdir())


def count(row):
    """Adds a run to the counts of its target."""
    counts = tomllib.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    of = counts.setdefault(row["target"], {"inputs": 0, "seconds": 0, "findings": 0})
    for key in ("inputs", "seconds", "findings"):
        of[key] += row[key]
    of["corpus"], of["last"] = row["corpus"], datetime.date.today().isoformat()
    text = HEAD
    for target in sorted(counts):
        of = counts[target]
        lines = [f"{key} = {json.dumps(of[key])}\n" for key in ("inputs", "seconds", "findings", "corpus", "last")]
        text += f"\n[{target}]\n" + "".join(lines)
    COUNTS.write_text(text)


def again(target, path):
    print(f"{target}: {path}", flush=True)
    sys.exit(subprocess.run([build() / target, path], cwd=ROOT).returncode)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", nargs="+", choices=[PARSER, *targets()], metavar="TARGET")
    parser.add_argument("--again", nargs=2, metavar=("TARGET", "FILE"))
    asked = parser.parse_args()
    if asked.again:
        again(*asked.again)
    waiting = asked.only or [PARSER, *targets()]
    built = build() if waiting != [PARSER] else None
    if PARSER in waiting:
        # Its build is not a part of its time.
        subprocess.run(command_of(PARSER, None, 0)[:8] + ["--no-run"], check=True, cwd=ROOT)
    cores = os.cpu_count() or 1
    seconds = max(1, int(asked.minutes * 60 * cores / max(len(waiting), cores)))
    evidence = pathlib.Path(os.environ.get("EVIDENCE", ROOT / "target" / "evidence" / "fuzz.txt"))
    evidence.parent.mkdir(parents=True, exist_ok=True)
    evidence.unlink(missing_ok=True)
    running, found = [], False
    while waiting or running:
        while waiting and len(running) < cores:
            running.append(Run(waiting.pop(0), built, seconds))
        time.sleep(0.2)
        for run in [run for run in running if run.process.poll() is not None]:
            running.remove(run)
            row = run.finish()
            found |= row["findings"] > 0
            if row["target"] != PARSER:
                row["corpus"] = make_small(row["target"], built)
                count(row)
            with evidence.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    sys.exit(1 if found else 0)


main()
