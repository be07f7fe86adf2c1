#!/usr/bin/env python3
"""Runs the tests of the decision core, and of what reads and writes bytes, as programs for s390x: every number there has its
bytes in the other order. `make s390x` runs this; qemu-user runs the programs.

    python3 packaging/core_tests.py                    the crates below
    python3 packaging/core_tests.py -p tidegate-h1     what cargo test would take
"""

import sys
import time

from build import ARCHITECTURES, ROOT, add_target, environment, run, with_glibc

CRATES = ("tidegate-limits", "tidegate-callers", "tidegate-h1", "tidegate-zvm")
# Where Debian's libc6-s390x-cross has the libraries of s390x.
QEMU = "qemu-s390x-static -L /usr/s390x-linux-gnu"
# An emulated program takes some twenty times as long. What the order of bytes breaks, it breaks with the first seeds.
SEEDS = {"TIDEGATE_SEEDS": "0.025"}


def main():
    architecture = ARCHITECTURES["s390x"]
    add_target(architecture)
    chosen = sys.argv[1:] or [part for crate in CRATES for part in ("-p", crate)] + ["--features", "tidegate-limits/tower"]
    env = SEEDS | environment() | {"CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_RUNNER": QEMU}
    begin = time.monotonic()
    for step in (["--no-run"], []):
        run("cargo-zigbuild", "test", "--locked", "--target", with_glibc(architecture), *chosen, *step, cwd=ROOT, env=env)
        words = "built" if step else "passed"
        print(f"core_tests.py: {words} after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
