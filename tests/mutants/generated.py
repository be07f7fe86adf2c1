"""A random sample of the mutants that cargo-mutants generates.

cargo-mutants only names them. They are made and run like those of the lists, because then one build folder
serves both, and a sample can go on in the next run.
"""

import json
import random
import re
import subprocess

from lists import ROOT

TOOL = ROOT / "target" / "tools" / "bin" / "cargo-mutants"


def bare(name):
    """The name of a generated mutant without its line, which changes with the file."""
    return re.sub(r":\d+:\d+: ", ": ", name, count=1)


def list_all(settings):
    """All mutants of the packages, in a fixed order."""
    found = []
    for package, of in sorted(settings["packages"].items()):
        words = [str(TOOL), "mutants", "--list", "--json", "--no-config", "-p", package]
        words += [word for pattern in of["files"] for word in ("-f", pattern)]
        words += [word for pattern in of.get("without", []) for word in ("-e", pattern)]
        listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout
        for one in json.loads(listed):
            found.append({"name": one["name"], "file": one["file"], "span": one["span"],
                          "after": one["replacement"], "steps": of["steps"], "package": package})
    return sorted(found, key=lambda mutant: (mutant["name"], mutant["after"]))


def take_sample(settings, kept, size, seed):
    """The sample under way, or a new one if a seed is given or none is there: its seed, mutants and totals. `kept` has
    the seed and the size then."""
    if seed is None:
        seed = kept.get("seed", random.SystemRandom().randrange(1 << 32))
    size = size or kept.get("size", settings["sample"])
    every = list_all(settings)
    sample = random.Random(seed).sample(every, min(size, len(every)))
    totals = {package: sum(mutant["package"] == package for mutant in every)
              for package in settings["packages"]}
    kept.update(seed=seed, size=size)
    print(f"mutants: a sample of {len(sample)} of {len(every)} generated ones, with the seed {seed}", flush=True)
    return seed, sample, totals
