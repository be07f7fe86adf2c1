"""The lists of mutants: what is in them, how one is made, and whether its lines exist."""

import hashlib
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = pathlib.Path(__file__).resolve().parent
# In the order in which they run.
GROUPS = [
    "leases",
    "quotas",
    "hand-over",
    "ledger",
    "fairness",
    "progress",
    "refunds",
    "wake-ups",
    "window edges",
    "lock-free orderings",
    "sums",
    "other",
    "process",
]
# As many as docs/explanation/promises.md has.
PROMISES = range(1, 9)
MUST_HAVE = {"name", "group", "file", "before", "after", "breaks", "tests"}
MAY_HAVE = MUST_HAVE | {"survives", "promise"}
CORE = "tidegate-limits"
# Of a digest, as many as tell changes apart.
DIGITS = 16


def fail(text):
    print(f"mutants: {text}", file=sys.stderr)
    sys.exit(1)


def read():
    """The suites, the mutants, and what generated.toml says."""
    suites, mutants, generated, names = {}, [], {}, set()
    for path in sorted(LISTS.glob("*.toml")):
        with path.open("rb") as file:
            found = tomllib.load(file)
        suites.update(found.get("suites", {}))
        generated.update(found.get("generated", {}))
        for mutant in found.get("mutant", []):
            where = f"{path.name}: {mutant.get('name', '(a mutant without a name)')}"
            check(mutant, where)
            if mutant["name"] in names:
                fail(f"{where}: the name is there twice")
            names.add(mutant["name"])
            mutants.append(mutant)
    for mutant in mutants:
        if mutant["tests"] not in suites:
            fail(f"{mutant['name']}: there is no suite {mutant['tests']!r}")
        mutant["steps"] = suites[mutant["tests"]]
    for promise in PROMISES:
        if not any(mutant.get("promise") == promise for mutant in mutants):
            fail(f"no mutant breaks promise {promise}")
    return mutants, generated


def check(mutant, where):
    if missing := MUST_HAVE - mutant.keys():
        fail(f"{where}: {', '.join(sorted(missing))} is missing")
    if unknown := mutant.keys() - MAY_HAVE:
        fail(f"{where}: {', '.join(sorted(unknown))} is an unknown key")
    if mutant["group"] not in GROUPS:
        fail(f"{where}: group must be one of {', '.join(GROUPS)}")
    if mutant.get("promise", PROMISES[0]) not in PROMISES:
        fail(f"{where}: promise must be from {PROMISES[0]} to {PROMISES[-1]}")


def stripped(text):
    return [line.strip() for line in text.strip().splitlines()]


def mutated(text, mutant):
    """The text with the mutant made, or why that cannot be. Indentation does not matter."""
    if "span" in mutant:
        return spanned(text, mutant), None
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


def spanned(text, mutant):
    """The text with a span replaced. Lines and columns are counted from 1, columns in characters."""
    lines = text.splitlines(keepends=True)

    def place(edge):
        return sum(map(len, lines[: edge["line"] - 1])) + edge["column"] - 1

    span = mutant["span"]
    return text[: place(span["start"])] + mutant["after"] + text[place(span["end"]) :]


def check_lines(mutants):
    lost = [error for mutant in mutants
            for error in [mutated((ROOT / mutant["file"]).read_text(), mutant)[1]] if error]
    if lost:
        fail("the lists and the code differ; change the lists:\n  " + "\n  ".join(lost))


def tracked(folder=None):
    """The files of the tree, or of a folder of it, without the lists and results of mutants: no test reads them."""
    words = ["git", "ls-files", "-z", "-co", "--exclude-standard"] + ([folder] if folder else [])
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    names = (name for name in listed.split("\0") if name and not name.startswith("tests/mutants/"))
    return sorted(name for name in names if (ROOT / name).is_file())


def digest(names):
    whole = hashlib.sha256()
    for name in names:
        whole.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    return whole.hexdigest()[:DIGITS]


def package_of(step):
    """The package that a step tests."""
    words = step.removeprefix("optimised ").split()
    return words[1] if words[0] == "-p" else CORE


def folders_of(mutant):
    """The folders whose files decide a mutant's result."""
    packages = {package_of(step) for step in mutant["steps"]} | {CORE}
    named = {f"crates/{package.removeprefix('tidegate-')}" for package in packages}
    if "tidegate" in packages:
        named = {"crates", "src", "tests"}
    own = pathlib.PurePath(mutant["file"]).parts
    return named | ({"/".join(own[:2])} if own[0] == "crates" else set())
