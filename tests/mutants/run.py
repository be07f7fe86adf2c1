#!/usr/bin/env python3
"""Changes the code in one place at a time and checks whether a test notices.

    python3 tests/mutants/run.py                  runs each mutant without a result, and writes docs/reports/mutants.md
    python3 tests/mutants/run.py --keep           the same, but keeps results from before a change of another file
    python3 tests/mutants/run.py --check          only checks that every line of the lists exists
    python3 tests/mutants/run.py --evidence       only writes the numbers of the lists that are known, and runs nothing
    python3 tests/mutants/run.py --only NAME …    runs mutants whose name contains NAME, also those with a result
    python3 tests/mutants/run.py --group GROUP …  runs only mutants of these groups; "generated" is the sample
    python3 tests/mutants/run.py --hours 1        stops after an hour; the next run continues
    python3 tests/mutants/run.py --sample 50 --seed 7   takes another sample of generated mutants

The lists are the *.toml files beside this one, readable without Python. After them runs a random sample of the mutants
that cargo-mutants generates; its seed is printed, and the next run goes on with it. The changes are made in a copy of
the tree, target/mutants/tree, with its own target folder. The results are in tests/mutants/results.json, with the seed
and the size of the sample: commit it, and a run on another machine continues there. How long tests take without a
change is measured on each machine, and kept in target/mutants. The result of a mutant is valid until the mutant or any
file of the crates of its tests changes. With --keep it is valid until the mutant or the file that it changes does. A
test that does not end in time counts as one that noticed. The numbers are in target/evidence/mutants.txt, too, as
lines of JSON.

Exits with 1 if a line is not found, if a promise has no mutant, if a mutant of the lists does not compile, if tests
fail without any change, if more than 5 % of the mutants that ran survive, if a survivor in fairness, progress, refunds
or wake-ups has no reason in the list, or if more than 5 % of the sample are missed without a reason.
"""

import argparse
import fcntl
import os
import time

import generated
import lists
import record
import report
import steps
from lists import GROUPS, ROOT, fail

NEED_A_REASON = ["fairness", "progress", "refunds", "wake-ups"]


def read_arguments():
    reads = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    reads.add_argument("--check", action="store_true")
    reads.add_argument("--evidence", action="store_true")
    reads.add_argument("--keep", action="store_true")
    reads.add_argument("--only", nargs="+", metavar="NAME")
    reads.add_argument("--group", nargs="+", metavar="GROUP", choices=[*GROUPS, "generated"])
    reads.add_argument("--hours", type=float, default=3.0)
    reads.add_argument("--nice", type=int, default=10)
    reads.add_argument("--sample", type=int, metavar="SIZE")
    reads.add_argument("--seed", type=int)
    return reads.parse_args()


def choose(asked, mutants, results):
    """The mutants that are to run, those of the lists first."""
    if asked.only:
        return [mutant for part in asked.only for mutant in mutants if part in mutant["name"]]
    wanted = [mutant for mutant in mutants if mutant["name"] not in results]
    if asked.group:
        wanted = [mutant for mutant in wanted if mutant.get("group", "generated") in asked.group]
    order = [*GROUPS, "generated"]
    return sorted(wanted, key=lambda mutant: order.index(mutant.get("group", "generated")))


def run_all(wanted, kept, results, ends, keep):
    """Runs what is wanted until the time is up. Returns the steps that fail without a change."""
    baseline = steps.Baseline(keep, kept.state_of)
    if wanted:
        steps.copy_tree()
    for nth, mutant in enumerate(wanted, 1):
        if time.monotonic() > ends:
            print("mutants: the time is up; the next run does the rest", flush=True)
            break
        began = steps.processor_seconds()
        result = steps.test(mutant, baseline)
        print(f"{nth} of {len(wanted)}: {mutant['name']} … ", end="")
        if result is None:
            print("its tests fail without a change", flush=True)
            continue
        used = steps.processor_seconds() - began
        print(f"{result['outcome']} {result.get('by', '')[:300]} ({used:.0f} s of processor time with builds)", flush=True)
        results[mutant["name"]] = kept.add(mutant, result)
    return baseline.failed


def judge(found, drawn, failed):
    """Fails for what must not be."""
    if failed:
        fail("these tests fail without any change: " + ", ".join(failed))
    if broken := found.of("does not compile"):
        fail("these do not compile: " + ", ".join(mutant["name"] for mutant in broken))
    survivors = found.of("survives")
    unexplained = [mutant["name"] for mutant in survivors
                   if mutant["group"] in NEED_A_REASON and "survives" not in mutant]
    if unexplained:
        fail("these survive without a reason: " + ", ".join(unexplained))
    if len(survivors) * 20 > len(found.ran()):
        fail("more than 5 % survive")
    if drawn:
        missed = found.without_reason(drawn[1])
        if len(missed) * 20 > len(found.ran(drawn[1])):
            fail("more than 5 % of the sample are missed without a reason")


def main():
    asked = read_arguments()
    ends = time.monotonic() + asked.hours * 3600
    os.nice(asked.nice)
    mutants, settings = lists.read()
    lists.check_lines(mutants)
    print(f"mutants: {len(mutants)} are listed, and every line is found", flush=True)
    if asked.check:
        return
    if asked.evidence:
        known = record.Record(keep=True).valid(mutants)
        report.write_evidence(report.Results(mutants, known, settings["missed"]), None)
        return
    steps.WORK.mkdir(parents=True, exist_ok=True)
    # Two at once would change each other's tree.
    lock = (steps.WORK / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail("another run is under way in this tree")
    kept = record.Record(asked.keep)
    drawn, sample = None, []
    if generated.TOOL.exists():
        drawn = generated.take_sample(settings, kept.sample, asked.sample, asked.seed)
        sample = drawn[1]
        kept.drop_all_but(mutants + sample)
    elif kept.sample:
        fail("a sample of generated mutants is under way: `make mutants` installs cargo-mutants, and goes on with it")
    else:
        print(f"mutants: without {generated.TOOL.relative_to(ROOT)}, which `make mutants` installs, none is generated")
    results = kept.valid(mutants + sample)
    wanted = choose(asked, mutants + sample, results)
    failed = run_all(wanted, kept, results, ends, asked.keep)
    found = report.Results(mutants, results, settings["missed"])
    report.write_page(found, drawn)
    report.write_evidence(found, drawn)
    ran, survivors = found.ran(), found.of("survives")
    print(f"mutants: {len(ran)} ran, {len(survivors)} survive; {report.PAGE.relative_to(ROOT)}")
    judge(found, drawn, failed)


main()
