"""Writes the page and the evidence from the results."""

import json
import os
import pathlib

from generated import bare
from lists import GROUPS, PROMISES, ROOT
from steps import DID_NOT_END

PAGE = ROOT / "docs" / "reports" / "mutants.md"
EVIDENCE = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "evidence" / "mutants.txt"
# A test that notices a mutant should do so in this time.
NOTICED_WITHIN = 60
HEAD = """# Mutants

Each mutant is one small change of the code that breaks something. `make mutants` makes the changes one at a time
and runs the tests that can notice them (`tests/mutants`). This page is its report. A mutant that no test notices
survives. The results are in `tests/mutants/results.json`, so if a run stops early, the next one continues, also on
another machine. A result is valid until the code or the tests of its crates change. With `make mutants MUTANTS=--keep`,
it is valid until the changed file does.

The tests are a part of `make test`, or of `make loom`.
"""


class Results:
    """What is known of the mutants, for both outputs."""

    def __init__(self, mutants, results, missed):
        self.mutants, self.results, self.missed = mutants, results, missed

    def outcome(self, mutant):
        return self.results.get(mutant["name"], {}).get("outcome")

    def of(self, outcome, mutants=None):
        mutants = self.mutants if mutants is None else mutants
        return [mutant for mutant in mutants if self.outcome(mutant) == outcome]

    def ran(self, mutants=None):
        return self.of("noticed", mutants) + self.of("survives", mutants)

    def counts(self, mutants):
        survive = len(self.of("survives", mutants))
        noticed = len(self.of("noticed", mutants))
        return {"listed": len(mutants), "ran": noticed + survive, "noticed": noticed, "survive": survive}

    def without_reason(self, sample):
        return [mutant for mutant in self.of("survives", sample) if bare(mutant["name"]) not in self.missed]

    def counts_generated(self, package, sample):
        of = [mutant for mutant in sample if mutant["package"] == package]
        noticed = self.of("noticed", of)
        late = [mutant for mutant in noticed if self.results[mutant["name"]]["by"] == DID_NOT_END]
        return {
            "sample": len(of),
            "caught": len(noticed) - len(late),
            "timeouts": len(late),
            "missed": len(self.of("survives", of)),
            "without_reason": len(self.without_reason(of)),
            "unviable": len(self.of("does not compile", of)),
        }


def groups(found):
    for group in GROUPS:
        of = [mutant for mutant in found.mutants if mutant["group"] == group]
        if of:
            yield group, found.counts(of)


def promises(found):
    for promise in PROMISES:
        of = [mutant for mutant in found.mutants if mutant.get("promise") == promise]
        noticed = found.of("noticed", of)
        quickest = min(noticed, key=lambda mutant: found.results[mutant["name"]]["seconds"], default=None)
        yield promise, found.counts(of), quickest


def write_page(found, drawn):
    ran, survivors = found.ran(), found.of("survives")
    lines = [HEAD, f"{len(found.mutants)} are listed, {len(ran)} ran, {len(survivors)} survive.", ""]
    lines += ["| group | listed | ran | noticed | survive |", "|---|---|---|---|---|"]
    lines += [f"| {group} | {' | '.join(map(str, counts.values()))} |" for group, counts in groups(found)]
    lines += ["", "## The promises", "",
              "Mutants that break a [promise](../explanation/promises.md) as a whole.", "",
              "| promise | listed | ran | noticed | one of them | noticed by |", "|---|---|---|---|---|---|"]
    for promise, counts, one in promises(found):
        named = f"{one['name']} | `{found.results[one['name']]['by']}`" if one else "none was noticed yet | "
        lines.append(f"| {promise} | {counts['listed']} | {counts['ran']} | {counts['noticed']} | {named} |")
    lines += ["", "## Survivors", ""] + (survivor_lines(found, survivors) or ["None."])
    lines += ["", "## Generated mutants", ""] + generated_lines(found, drawn)
    late = [mutant for mutant in found.of("noticed") if found.results[mutant["name"]]["seconds"] > NOTICED_WITHIN]
    lines += ["", "## Noticed", "",
              f"{len(late)} were noticed only after {NOTICED_WITHIN} s of processor time, builds not counted"
              + (": " + ", ".join(mutant["name"] for mutant in late) if late else "") + ".", "",
              "| mutant | group | by | seconds |", "|---|---|---|---|"]
    for mutant in found.of("noticed"):
        result = found.results[mutant["name"]]
        lines.append(f"| {mutant['name']} | {mutant['group']} | `{result['by']}` | {result['seconds']} |")
    missing = [mutant["name"] for mutant in found.mutants if not found.outcome(mutant)]
    if missing:
        lines += ["", "## Not run yet", "", ", ".join(missing) + "."]
    PAGE.write_text("\n".join(lines) + "\n")


def survivor_lines(found, survivors):
    return [f"- {mutant['group']}: `{mutant['name']}` in `{mutant['file']}`. It breaks: {mutant['breaks']} "
            f"{mutant.get('survives', 'No reason is known: a test is missing.')}" for mutant in survivors]


def generated_lines(found, drawn):
    if not drawn:
        return ["No sample was taken yet."]
    seed, sample, totals = drawn
    lines = [f"A random sample of {len(sample)} of the {sum(totals.values())} mutants that cargo-mutants generates, with the "
             f"seed {seed}. `make mutants MUTANTS=\"--sample {len(sample)} --seed {seed}\"` repeats it. A mutant that does not "
             "compile is unviable.", "",
             "| crate | generated | in the sample | caught | tests did not end | missed | of these without a reason | unviable |",
             "|---|---|---|---|---|---|---|---|"]
    for package, total in totals.items():
        counts = found.counts_generated(package, sample)
        lines.append(f"| {package} | {total} | {' | '.join(map(str, counts.values()))} |")
    noticed, missed = len(found.of("noticed", sample)), len(found.of("survives", sample))
    if noticed + missed:
        share = 100 * noticed / (noticed + missed)
        unaided = sum(not found.results[mutant["name"]].get("was_missed") for mutant in found.of("noticed", sample))
        lines += ["", f"{noticed} of {noticed + missed} that ran and compile are noticed: {share:.1f} %."]
        if unaided < noticed:
            lines[-1] += (f" When they first ran, {unaided} were: {100 * unaided / (noticed + missed):.1f} %. Tests were written for the "
                          "others then, so expect a new sample to be nearer to the second figure.")
    lines += [""] if missed else []
    for mutant in found.of("survives", sample):
        why = found.missed.get(bare(mutant["name"]), "No reason is known: it is to be judged.")
        lines.append(f"- missed: `{mutant['name']}`. {why}")
    return lines


def write_evidence(found, drawn):
    rows = [{"mutants": group, **counts} for group, counts in groups(found)]
    for promise, counts, one in promises(found):
        by = {"mutant": one["name"], "by": found.results[one["name"]]["by"]} if one else {}
        rows.append({"promise": promise, **counts, **by})
    if drawn:
        seed, sample, totals = drawn
        rows += [{"generated": package, "seed": seed, "of": total, **found.counts_generated(package, sample)}
                 for package, total in totals.items()]
    EVIDENCE.parent.mkdir(parents=True, exist_ok=True)
    EVIDENCE.write_text("".join(json.dumps(row) + "\n" for row in rows))
