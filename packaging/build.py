#!/usr/bin/env python3
"""Builds the programs of the packages for three architectures, on an x86_64 machine. `make packages` runs it, then pack.py.

    python3 packaging/build.py                     all three, optimised as a release
    python3 packaging/build.py s390x               one of them
    python3 packaging/build.py --profile quick     in a fraction of the time, to try the packages

zig is the C compiler and linker of every target: it carries musl for x86_64 and aarch64, and for s390x the symbols of each
version of glibc, so that the program starts on a system as old as the one named below. The same commit gives the same bytes,
in whichever folder it is built: paths are replaced, and nothing that is linked contains a time.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "target/packages"
CARGO = os.environ.get("CARGO", "cargo")
# The folder of each program's manifest.
PROGRAMS = {"tidegate": ".", "tidegate-lab": "crates/lab", "tidegate-leases": "crates/lease-server"}
# The oldest glibc that the program for s390x may need: that of RHEL 8, and older than those of SLES 15 SP3 and Debian 10.
GLIBC_MAX = (2, 28)
TOOLS = ("cargo-zigbuild==0.24.1", "ziglang==0.15.2")


@dataclass(frozen=True)
class Architecture:
    """An architecture, and what it is called elsewhere."""

    name: str
    target: str
    deb: str
    image: str

    @property
    def is_static(self):
        return self.target.endswith("musl")


# In the order in which they are built. rpm and uname use the name as it is.
ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("s390x", "s390x-unknown-linux-gnu", "s390x", "s390x"),
        Architecture("aarch64", "aarch64-unknown-linux-musl", "arm64", "arm64"),
        Architecture("x86_64", "x86_64-unknown-linux-musl", "amd64", "amd64"),
    )
}


def run(*command, **options):
    """Runs a command; ends the build if it fails."""
    done = subprocess.run([str(part) for part in command], **options)
    if done.returncode != 0:
        sys.exit(f"build.py: `{' '.join(map(str, command))}` failed with exit code {done.returncode}")
    return done


def output_of(*command):
    return run(*command, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()


def commit_time():
    """When the commit that is built was made: the only time in any file of the packages."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or output_of("git", "log", "-1", "--format=%ct"))


def tools():
    """zig and cargo-zigbuild, in a virtual environment below `target`."""
    venv = OUT / "tools"
    complete = venv / "complete"
    if not complete.exists() or complete.read_text() != " ".join(TOOLS):
        print("build.py: installing", *TOOLS, flush=True)
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
        complete.write_text(" ".join(TOOLS))
    return venv / "bin"


def environment():
    """What every cross build sees."""
    cargo_home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")).resolve()
    # Messages of panics contain paths of sources. The last one that fits wins.
    paths = {cargo_home: "/cargo", ROOT: "/tidegate", OUT: "/target"}
    remapped = [f"--remap-path-prefix={path}={name}" for path, name in paths.items()]
    c = [f"-ffile-prefix-map={path}={name}" for path, name in paths.items()]
    return os.environ | {
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(remapped),
        "CARGO_INCREMENTAL": "0",
        "CARGO_TARGET_DIR": str(OUT / "cargo"),
        "CARGO_ZIGBUILD_CACHE_DIR": str(OUT / "zigbuild"),
        "CFLAGS": " ".join(c),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{tools()}{os.pathsep}{os.environ['PATH']}",
        "SOURCE_DATE_EPOCH": str(commit_time()),
        "TZ": "UTC",
        "ZIG_GLOBAL_CACHE_DIR": str(OUT / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(OUT / "zig"),
    }


def with_glibc(architecture):
    """The target as cargo-zigbuild takes it."""
    return architecture.target if architecture.is_static else f"{architecture.target}.{GLIBC_MAX[0]}.{GLIBC_MAX[1]}"


def add_target(architecture):
    if shutil.which("rustup"):
        run("rustup", "target", "add", architecture.target, cwd=ROOT, stderr=subprocess.DEVNULL)


def build(architecture, profile):
    """Builds the programs and checks what they need."""
    add_target(architecture)
    # One after the other: a program has only the features of dependencies that it asks for itself.
    for program in PROGRAMS:
        run(
            CARGO, "zigbuild", "--locked", "--profile", profile, "--target", with_glibc(architecture),
            "--manifest-path", ROOT / PROGRAMS[program] / "Cargo.toml", "--bin", program,
            cwd=ROOT, env=environment(),
        )  # fmt: skip
    built = OUT / "cargo" / architecture.target / profile
    programs = OUT / "bin" / architecture.name
    programs.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        shutil.copyfile(built / program, programs / program)
        (programs / program).chmod(0o755)
        print(f"{architecture.name}: {program}, {needs(architecture, programs / program)}", flush=True)


def needs(architecture, program):
    """What the program needs of the system that runs it, in words; ends the build if that is more than promised."""
    read = output_of("readelf", "--wide", "--dynamic", "--program-headers", "--version-info", program)
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", read)
    if architecture.is_static:
        if libraries or "INTERP" in read:
            sys.exit(f"build.py: {program} is not static: it needs {', '.join(libraries) or 'an interpreter'}")
        return "static"
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([\d.]+)", read)}
    # Only glibc's own libraries: each of them is on every system that has glibc.
    foreign = [name for name in libraries if not re.match(r"(lib(c|m|dl|rt|util|pthread|resolv)|ld64)\.so\.", name)]
    if foreign or not versions or max(versions) > GLIBC_MAX:
        sys.exit(f"build.py: {program} needs {', '.join(libraries)} with glibc {sorted(versions)}, above {GLIBC_MAX}")
    return f"glibc {'.'.join(map(str, max(versions)))} or later ({', '.join(libraries)})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help=", ".join(ARCHITECTURES))
    parser.add_argument("--profile", default="release", help="cargo's profile (release)")
    arguments = parser.parse_args()
    unknown = set(arguments.architectures) - set(ARCHITECTURES)
    if unknown:
        parser.error(f"unknown architecture {', '.join(sorted(unknown))}: choose from {', '.join(ARCHITECTURES)}")
    for name in arguments.architectures or ARCHITECTURES:
        build(ARCHITECTURES[name], arguments.profile)


if __name__ == "__main__":
    main()
