"""The results of this run and of those before, in a file that is tracked."""

import hashlib
import json

import lists

RESULTS = lists.LISTS / "results.json"
# What a result does not depend on, or not on all of it.
NOT_IN_KEY = {"survives", "promise", "breaks", "tests", "steps"}


def applies(result, mutant):
    """Whether the steps of the suite are still those of the result. A step that is new may notice a survivor."""
    steps = set(mutant["steps"])
    return steps <= set(result.get("steps", steps)) and result.get("step", mutant["steps"][0]) in steps


class Record:
    """What is known of each mutant, and of the sample: its seed and size, which are empty before the first one."""

    def __init__(self, keep):
        self.part = "file" if keep else "crates"
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        self.sample, self.results = known.get("sample", {}), known.get("results", {})
        self.digests = {}

    def digest(self, *folders):
        if folders not in self.digests:
            names = [name for folder in folders for name in lists.tracked(folder)]
            self.digests[folders] = lists.digest(names)
        return self.digests[folders]

    def state_of(self, mutant):
        """The state of all that decides a mutant's result."""
        return self.digest(*sorted(lists.folders_of(mutant)))

    def key_of(self, mutant):
        own = {name: value for name, value in mutant.items() if name not in NOT_IN_KEY}
        return {"mutant": hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:lists.DIGITS],
                "file": self.digest(mutant["file"]), "crates": self.state_of(mutant)}

    def valid(self, mutants):
        found = {}
        for mutant in mutants:
            result, key = self.results.get(mutant["name"]), self.key_of(mutant)
            if result and all(result["key"][part] == key[part] for part in ("mutant", self.part)) and applies(result, mutant):
                found[mutant["name"]] = result
        return found

    def add(self, mutant, result):
        """Keeps a result, and returns it as it is kept: a mutant that survived once is marked, for its test may have been
        written for it."""
        before = self.results.get(mutant["name"], {})
        if before.get("was_missed") or "survives" in (before.get("outcome"), result["outcome"]):
            result = result | {"was_missed": True}
        kept = self.results[mutant["name"]] = result | {"key": self.key_of(mutant)}
        self.write()
        return kept

    def drop_all_but(self, mutants):
        """Drops the results of mutants that are no longer listed and of samples before this one."""
        names = {mutant["name"] for mutant in mutants}
        self.results = {name: result for name, result in self.results.items() if name in names}
        self.write()

    def write(self):
        """Each result has a line of its own, so that a difference shows the mutants that ran."""
        lines = [f"{json.dumps(name)}: {json.dumps(result, sort_keys=True)}" for name, result in sorted(self.results.items())]
        text = f'{{"sample": {json.dumps(self.sample, sort_keys=True)},\n"results": {{\n' + ",\n".join(lines) + "\n}}\n"
        # A run that ends while it writes leaves the file as it was.
        new = RESULTS.with_suffix(".new")
        new.write_text(text)
        new.replace(RESULTS)
