#!/usr/bin/env python3
"""Packs what build.py has built: .deb, .rpm, a tarball and an image for each architecture, the list of what is in them
(CycloneDX), and checksums. `make packages` runs both.

    python3 packaging/pack.py                            everything, into target/packages/dist
    python3 packaging/pack.py s390x --formats deb,rpm    a part of it
    python3 packaging/pack.py --list rpm                 the paths of a package, without packing

The same programs give the same bytes: every file has the time of the commit, belongs to root, and has its place by its name.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import image
from archive import Entry, archive
from build import ARCHITECTURES, CARGO, OUT, PROGRAMS, ROOT, commit_time, output_of, run

HERE = ROOT / "packaging"
FORMATS = ("deb", "rpm", "tar", "image", "sbom")
CARGO_CYCLONEDX = "cargo-cyclonedx@0.5.9"
# The folders that rpm removes with the last package that has them. A system without zsh or fish has not all of them.
FOLDERS = (
    "/etc/tidegate",
    "/usr/share/doc/@NAME@",
    "/usr/share/doc/@NAME@/docs",
    "/usr/share/doc/@NAME@/docs/explanation",
    "/usr/share/doc/@NAME@/docs/how-to",
    "/usr/share/doc/@NAME@/docs/reference",
    "/usr/share/doc/@NAME@/examples",
    "/usr/share/fish",
    "/usr/share/fish/vendor_completions.d",
    "/usr/share/licenses",
    "/usr/share/licenses/@NAME@",
    "/usr/share/zsh",
    "/usr/share/zsh/site-functions",
)
# The pages that messages, options and alerts name, and those beside them. Messages name them from the root: docs/how-to/runbook.md.
PAGES = ("explanation", "how-to", "reference")


@dataclass(frozen=True)
class Package:
    """A package of each format: a program of the same name, and what belongs to it."""

    name: str
    summary: str
    description: tuple
    relations: dict
    units: tuple = ()
    # Units that an upgrade leaves alone: their sockets stay open.
    sockets: tuple = ()

    @property
    def running(self):
        """What may run of the units, as systemctl finds it: every instance of a template."""
        return " ".join(f"'{unit.replace('@', '@*')}'" for unit in self.units)


PACKAGES = (
    Package(
        "tidegate",
        "A sidecar proxy that holds a flood back",
        (
            "Tidegate is a sidecar reverse proxy. It accepts every call, lets each wait its",
            "turn, and never sends the service behind it more than it can bear. That service",
            "may be the z/VM SDK server, or any HTTP or TCP server.",
        ),
        # /bin/kill, which reloads the service.
        {"Recommends": "procps", "Suggests": "tidegate-lab, tidegate-leases"},
        ("tidegate.service", "tidegate@.service"),
        ("tidegate.socket",),
    ),
    Package(
        "tidegate-lab",
        "Tidegate's tools for logs, models, screens and load",
        (
            "The commands of Tidegate that a sidecar does not need: audit, plan and advise read",
            "access logs, simulate runs scenarios, top follows a sidecar on a screen, and demo,",
            "backend, bench and relay try it out.",
        ),
        {"Recommends": "tidegate"},
    ),
    Package(
        "tidegate-leases",
        "Tidegate's capacity server: shares of one capacity for many clients",
        (
            "A server that leases shares of one capacity to sidecars and programs on many",
            "machines, and an agent through which programs of a machine use such leases.",
        ),
        {"Recommends": "procps"},
        ("tidegate-lease-server.service", "tidegate-lease-agent.service"),
    ),
)


@dataclass(frozen=True)
class File:
    """A file of a package: where it comes from, and where it is installed."""

    source: Path
    path: str
    mode: int = 0o644
    # The administrator changes it: an upgrade keeps it.
    is_config: bool = False


def files(kind, package, programs, manual, config=HERE / "config.toml"):
    """The files of a package of a kind ("deb", "rpm" or "tar"), in the order of their paths."""
    name = package.name
    docs = f"/usr/share/doc/{name}"
    # Each shell of a distribution looks in its own folder.
    zsh = "/usr/share/zsh/vendor-completions" if kind == "deb" else "/usr/share/zsh/site-functions"
    license_path = {"deb": f"{docs}/copyright", "rpm": f"/usr/share/licenses/{name}/LICENSE", "tar": f"{docs}/LICENSE"}
    completions = manual / "completions"
    found = [
        File(programs / name, f"/usr/bin/{name}", 0o755),
        File(ROOT / "LICENSE", license_path[kind]),
        File(completions / f"{name}.bash", f"/usr/share/bash-completion/completions/{name}"),
        File(completions / f"_{name}", f"{zsh}/_{name}"),
        File(completions / f"{name}.fish", f"/usr/share/fish/vendor_completions.d/{name}.fish"),
    ]
    found += [File(HERE / unit, f"/usr/lib/systemd/system/{unit}") for unit in package.units + package.sockets]
    found += [
        File(page, f"/usr/share/man/man1/{page.name}.gz")
        for page in (manual / "man").glob("*.1")
        if owner_of(page.stem) == name
    ]
    if name == "tidegate-leases":
        found.append(File(ROOT / "config.lease-server.toml.example", f"{docs}/config.lease-server.toml.example"))
    if name == "tidegate":
        found += files_of_the_sidecar(docs, config)
    return sorted(found, key=lambda file: file.path)


def owner_of(page):
    """The package of a manual page. Those of `tidegate plan` and its like are where `tidegate` is."""
    others = (package.name for package in PACKAGES if package.name != "tidegate")
    return next((name for name in others if f"{page}-".startswith(f"{name}-")), "tidegate")


def files_of_the_sidecar(docs, config):
    found = [
        File(HERE / "sysusers.conf", "/usr/lib/sysusers.d/tidegate.conf"),
        File(config, "/etc/tidegate/config.toml", is_config=True),
        File(HERE / "environment", "/etc/tidegate/environment", 0o600, is_config=True),
        File(ROOT / "CHANGELOG.md", f"{docs}/CHANGELOG.md"),
        File(ROOT / "config.toml.example", f"{docs}/config.toml.example"),
        File(HERE / "sdkserver-behind-tidegate.conf", f"{docs}/examples/sdkserver-behind-tidegate.conf"),
        File(HERE / "grafana/tidegate.json", f"{docs}/examples/grafana.json"),
        File(HERE / "prometheus/alerts.yml", f"{docs}/examples/prometheus-alerts.yml"),
        File(HERE / "prometheus/rules.yml", f"{docs}/examples/prometheus-rules.yml"),
    ]
    pages = [page for folder in PAGES for page in (ROOT / "docs" / folder).glob("*.md")]
    return found + [File(page, f"{docs}/{page.relative_to(ROOT)}") for page in pages]


def contents(file, kind):
    """The bytes of a file as they are installed."""
    data = file.source.read_bytes()
    if file.path.endswith(".gz"):
        return gzip.compress(data, mtime=0)
    # What is unpacked by hand belongs below /usr/local.
    if kind == "tar" and file.path.endswith(".service"):
        return data.replace(b"/usr/bin/", b"/usr/local/bin/")
    return data


def lay_out(folder, kind, package, listed):
    """Writes the files as they are installed, below an empty folder."""
    if folder.exists():
        shutil.rmtree(folder)
    if package.units:
        # Administrators write what the units read here.
        (folder / "etc/tidegate").mkdir(parents=True)
    for file in listed:
        path = folder / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents(file, kind))
        path.chmod(file.mode)


def at_commit_time(folder, time):
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (time, time), follow_symlinks=False)


def filled(template, package, **values):
    """A template with its @WORDS@ replaced."""
    text = (HERE / template).read_text()
    of_package = {
        "NAME": package.name,
        "UNITS": " ".join(package.units),
        "SOCKETS": " ".join(package.sockets),
        "RUNNING": package.running,
    }
    for word, value in {**of_package, **values}.items():
        text = text.replace(f"@{word}@", value)
    return text


def pack_deb(job):
    return [pack_one_deb(job, package) for package in PACKAGES]


def pack_one_deb(job, package):
    root = job.work / "deb" / package.name
    listed = job.files("deb", package)
    lay_out(root, "deb", package, listed)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    fields = {
        "Package": package.name,
        "Version": f"{job.version}-1",
        "Architecture": job.architecture.deb,
        "Maintainer": "Tidegate maintainers <maintainers@tidegate.invalid>",
        "Installed-Size": f"{-(-size // 1024)}",
        **({} if job.architecture.is_static else {"Depends": "libc6 (>= 2.28)"}),
        **package.relations,
        "Section": "net",
        "Priority": "optional",
        "Description": package.summary,
    }
    debian = root / "DEBIAN"
    debian.mkdir()
    control = [f"{name}: {value}" for name, value in fields.items()] + [f" {line}" for line in package.description]
    (debian / "control").write_text("\n".join(control) + "\n")
    (debian / "conffiles").write_text("".join(f"{file.path}\n" for file in listed if file.is_config))
    sums = [
        f"{hashlib.md5((root / file.path.lstrip('/')).read_bytes()).hexdigest()}  {file.path.lstrip('/')}\n"
        for file in listed
        if not file.is_config
    ]
    (debian / "md5sums").write_text("".join(sums))
    for script in ("postinst", "prerm", "postrm") if package.units else ():
        (debian / script).write_text(filled(f"deb/{script}", package))
        (debian / script).chmod(0o755)
    at_commit_time(root, job.time)
    deb = job.out / f"{package.name}_{job.version}-1_{job.architecture.deb}.deb"
    # One thread: xz cuts its blocks by the number of threads.
    one_thread = job.environment | {"DPKG_DEB_THREADS_MAX": "1"}
    run("dpkg-deb", "--root-owner-group", f"-Z{job.compression}", "--build", root, deb, env=one_thread, stdout=subprocess.DEVNULL)
    return deb


def pack_rpm(job):
    return [pack_one_rpm(job, package) for package in PACKAGES]


def pack_one_rpm(job, package):
    root = job.work / "rpm" / package.name
    listed = job.files("rpm", package)
    lay_out(root, "rpm", package, listed)
    at_commit_time(root, job.time)
    folders = [folder.replace("@NAME@", package.name) for folder in FOLDERS]
    has = lambda folder: any(file.path.startswith(f"{folder}/") for file in listed)  # noqa: E731
    lines = [f"%dir {folder}" for folder in folders if has(folder) or (folder == "/etc/tidegate" and package.units)]
    for file in listed:
        config = "%config(noreplace) " if file.is_config else ""
        kind = "%license " if file.path.startswith("/usr/share/licenses") else "%doc " if "/doc/" in file.path else ""
        lines.append(f"%attr({file.mode:04o},root,root) {config}{kind}{file.path}")
    text = filled(
        "tidegate.spec",
        package,
        VERSION=job.version,
        SUMMARY=package.summary,
        DESCRIPTION="\n".join(package.description),
        LAID_OUT=str(root),
        FILES="\n".join(lines),
    )
    if not package.units:
        text = re.sub(r"^%post\n.*?(?=^%files)", "", text, flags=re.M | re.S)
    spec = job.work / f"{package.name}.spec"
    spec.write_text(text)
    top = job.work / "rpmbuild"
    if top.exists():
        shutil.rmtree(top)
    run(
        "rpmbuild", "-bb", "--quiet", "--target", f"{job.architecture.name}-linux", "--define", f"_topdir {top}",
        "--define", f"_rpmdir {job.out}", "--define", "_build_name_fmt %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm", spec,
        env=job.environment,
    )  # fmt: skip
    return job.out / f"{package.name}-{job.version}-1.{job.architecture.name}.rpm"


def pack_tar(job):
    """What is unpacked below /usr/local."""
    libc = "musl" if job.architecture.is_static else "gnu"
    name = f"tidegate-{job.version}-{job.architecture.name}-linux-{libc}"
    entries = [
        Entry(f"{name}/{file.path.removeprefix('/usr/').lstrip('/')}", file.mode, contents(file, "tar"))
        for package in PACKAGES
        for file in job.files("tar", package)
        # systemd reads no users below /usr/local; the unit makes its own.
        if "/sysusers.d/" not in file.path
    ]
    path = job.out / f"{name}.tar.gz"
    path.write_bytes(gzip.compress(archive(entries, job.time), mtime=0))
    return [path]


def cyclonedx():
    """cargo-cyclonedx, among the other tools below `target`."""
    tool = ROOT / "target/tools/bin/cargo-cyclonedx"
    if not tool.exists():
        print("pack.py: installing", CARGO_CYCLONEDX, flush=True)
        run(CARGO, "install", CARGO_CYCLONEDX, "--quiet", "--locked", "--debug", "--root", ROOT / "target/tools")
    return tool


def list_parts(architectures, version, out, environment):
    """Writes what each program is made of: its crates, with versions, licences and checksums."""
    tool = cyclonedx()
    # It writes beside each manifest, so it gets a copy of the sources.
    source = OUT / "work/source"
    if source.exists():
        shutil.rmtree(source)
    source.mkdir(parents=True)
    archived = run("git", "archive", "HEAD", cwd=ROOT, stdout=subprocess.PIPE).stdout
    run("tar", "-x", "-C", source, input=archived)
    written = []
    for architecture in architectures:
        run(
            tool, "cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--target", architecture.target,
            "--override-filename", "parts", cwd=source, env=environment,
        )  # fmt: skip
        for program, folder in PROGRAMS.items():
            path = out / f"{program}-{version}-{architecture.name}.cdx.json"
            text = (source / folder / "parts.json").read_text()
            path.write_text(text.replace(str(source), "/tidegate"))
            written.append(path)
    shutil.rmtree(source)
    return written


def write_manual():
    """Manual pages and completions, from the definitions of the command lines."""
    folder = OUT / "manual"
    if folder.exists():
        shutil.rmtree(folder)
    # With the features that the tests have, so that nothing is built twice.
    built = ROOT / "target"
    in_target = os.environ | {"CARGO_TARGET_DIR": str(built)}
    run(CARGO, "build", "--quiet", "--locked", "--workspace", "--example", "manual", cwd=ROOT, env=in_target)
    run(built / "debug/examples/manual", folder)
    return folder


@dataclass(frozen=True)
class Job:
    """One architecture, to be packed."""

    architecture: object
    version: str
    summary: str
    time: int
    manual: Path
    config: Path
    out: Path
    programs: Path
    compression: str

    @property
    def work(self):
        return OUT / "work" / self.architecture.name

    @property
    def environment(self):
        return os.environ | {"SOURCE_DATE_EPOCH": str(self.time), "LC_ALL": "C.UTF-8", "TZ": "UTC"}

    def files(self, kind, package):
        return files(kind, package, self.programs, self.manual, self.config)


def pack(arguments):
    manifest = (ROOT / "Cargo.toml").read_text()
    version = arguments.version or re.search(r'^version = "(.+)"', manifest, re.M).group(1)
    summary = re.search(r'^description = "(.+?):', manifest, re.M).group(1)
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    manual = arguments.manual or write_manual()
    time = commit_time()
    jobs = [
        Job(
            ARCHITECTURES[name], version, summary, time, manual, arguments.config, out,
            arguments.programs or OUT / "bin" / name, arguments.compression,
        )
        for name in arguments.architectures or ARCHITECTURES
    ]  # fmt: skip
    for job in jobs:
        missing = [str(job.programs / program) for program in PROGRAMS if not (job.programs / program).exists()]
        if missing:
            sys.exit(f"pack.py: no {', '.join(missing)}: run `python3 packaging/build.py {job.architecture.name}` first")
        job.work.mkdir(parents=True, exist_ok=True)
    written = []
    for package, packed in (("deb", pack_deb), ("rpm", pack_rpm), ("tar", pack_tar)):
        if package in arguments.formats:
            written += [path for job in jobs for path in packed(job)]
    if "image" in arguments.formats:
        written.append(image.pack(jobs, output_of("git", "rev-parse", "HEAD")))
    if "sbom" in arguments.formats:
        written += list_parts([job.architecture for job in jobs], version, out, jobs[0].environment)
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in written}
    (out / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
    for path in written:
        print(f"{path.stat().st_size:>10} bytes  {path.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help=", ".join(ARCHITECTURES))
    parser.add_argument("--formats", default=",".join(FORMATS), help="which of %(default)s")
    parser.add_argument("--list", choices=("deb", "rpm", "tar"), help="print the paths of these packages, and pack nothing")
    parser.add_argument("--manual", type=Path, help="a folder of manual pages, instead of making them")
    parser.add_argument("--out", type=Path, default=OUT / "dist", help="where the packages go (target/packages/dist)")
    parser.add_argument("--version", help="another version than that of Cargo.toml, to try an upgrade")
    parser.add_argument("--config", type=Path, default=HERE / "config.toml", help="another config, likewise")
    parser.add_argument("--programs", type=Path, help="where the programs are, instead of where build.py puts them, likewise")
    parser.add_argument("--compression", default="xz", help="of the .deb, likewise")
    arguments = parser.parse_args()
    arguments.formats = arguments.formats.split(",")
    if wrong := set(arguments.formats) - set(FORMATS):
        parser.error(f"unknown format {', '.join(sorted(wrong))}: choose from {', '.join(FORMATS)}")
    if wrong := set(arguments.architectures) - set(ARCHITECTURES):
        parser.error(f"unknown architecture {', '.join(sorted(wrong))}: choose from {', '.join(ARCHITECTURES)}")
    if arguments.list:
        for package in PACKAGES:
            for file in files(arguments.list, package, Path("bin"), arguments.manual or OUT / "manual"):
                kind = "config" if file.is_config else "-"
                print(f"{package.name}\t{file.path}\t{file.mode:04o}\t{kind}\t{file.source}")
        return
    pack(arguments)


if __name__ == "__main__":
    main()
