"""Runs the tests on a mutant, in a copy of the tree."""

import contextlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import time

from lists import CORE, ROOT, fail, mutated, tracked

WORK = ROOT / "target" / "mutants"
TREE = WORK / "tree"
BASELINE = WORK / "baseline.json"
# The tests of one step may take this many times the time without a change. It is processor time, so that
# other work on the machine does not make a mutant look noticed. By the clock they may take longer.
PATIENCE = 4
BY_THE_CLOCK = 10
BUILD_SECONDS = 1200
# Most of the time goes into builds, and a crate that is not optimised is built in a fifth of the time.
NOT_OPTIMISED = ["h1", "handover", "leases", "ledger", "limits", "message"]
DID_NOT_END = "it did not end"


def copy_tree():
    wanted = set(tracked())
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
    """A step of a suite: `loom FILTER…`, or what comes after `cargo test`, of the core unless it names a package. What
    searches millions of states is `optimised`."""
    words = step.split()
    optimised = words[0] == "optimised"
    words = words[optimised:]
    cargo = os.environ.get("CARGO", "cargo")
    environment = dict(os.environ, CARGO_PROFILE_DEV_DEBUG="0", CARGO_TERM_COLOR="never")
    package = [] if words[0] == "-p" else ["-p", CORE]
    levels = [] if optimised else [f"profile.dev.package.tidegate-{name}.opt-level=0" for name in NOT_OPTIMISED]
    settings = [word for level in levels for word in ("--config", level)]
    folder = "target"
    if words[0] == "loom":
        environment["RUSTFLAGS"] = "--cfg loom"
        folder = "target-loom"
        words = ["--lib", "--", *(words[1:] or ["loom"])]
    return [cargo, "test", "-q", *settings, *package, "--target-dir", str(WORK / folder), *words], environment


def processor_seconds():
    """What all programs have used that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(step, seconds):
    """Whether the tests pass: "passes", "fails", "no time" or "does not compile"; and with how much processor time."""
    args, environment = command(step)
    split = args.index("--") if "--" in args else len(args)
    for phase, words, most in (("build", args[:split] + ["--no-run"], BUILD_SECONDS), ("test", args, math.ceil(seconds))):
        began = processor_seconds()
        child = subprocess.Popen(
            words, cwd=TREE, env=environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_CPU, (most, most)),
        )
        try:
            output, _ = child.communicate(timeout=most * BY_THE_CLOCK)
        except subprocess.TimeoutExpired:
            # The group that this run began, and nothing else.
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            if phase == "build":
                fail(f"a build took longer than {BUILD_SECONDS * BY_THE_CLOCK} s")
            return "no time", processor_seconds() - began, ""
        text, took = output.decode(errors="replace"), processor_seconds() - began
        if child.returncode != 0:
            return "fails" if phase == "test" else "does not compile", took, text
    return "passes", took, text


def first_failure(text):
    for line in text.splitlines():
        if line.startswith("thread '") and "panicked" in line:
            return line.split("'")[1]
    return DID_NOT_END if "SIGXCPU" in text or "SIGKILL" in text else "the process ended"


class Baseline:
    """How long each step takes without a change. A step that fails then notices nothing: its mutants do not run."""

    def __init__(self, keep, state_of):
        self.known = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
        self.keep, self.state_of, self.seconds, self.failed = keep, state_of, {}, []

    def of(self, mutant, step, originally):
        """The seconds of a step; `None` if it fails. Within `originally()`, the tree is without the mutant."""
        if step in self.seconds:
            return self.seconds[step]
        state = self.state_of(mutant)
        of, took = self.known.get(step, (None, None))
        if took is None or not (self.keep or of == state):
            print(f"without a change: {step} … ", end="", flush=True)
            with originally():
                outcome, took, text = run(step, 1800)
            print(f"{outcome}, {took:.0f} s", flush=True)
            if outcome != "passes":
                print(text[-2000:], flush=True)
                self.failed.append(step)
                took = None
        self.seconds[step] = took
        self.known[step] = (state, took)
        BASELINE.write_text(json.dumps(self.known, indent=1, sort_keys=True))
        return took


def test(mutant, baseline):
    """Runs a mutant's steps until one notices it; `None` if one of them fails without a change."""
    path = TREE / mutant["file"]
    original = (ROOT / mutant["file"]).read_text()
    changed, error = mutated(original, mutant)
    assert error is None

    @contextlib.contextmanager
    def originally():
        path.write_text(original)
        yield
        path.write_text(changed)

    seconds = 0.0
    try:
        path.write_text(changed)
        for step in mutant["steps"]:
            limit = baseline.of(mutant, step, originally)
            if limit is None:
                return None
            outcome, took, text = run(step, limit * PATIENCE + 10)
            if outcome == "does not compile":
                print(text[-1500:], flush=True)
                return {"outcome": outcome}
            seconds += took
            if outcome != "passes":
                by = first_failure(text) if outcome == "fails" else DID_NOT_END
                return {"outcome": "noticed", "by": by, "step": step, "seconds": round(seconds)}
        return {"outcome": "survives", "steps": mutant["steps"], "seconds": round(seconds)}
    finally:
        path.write_text(original)
