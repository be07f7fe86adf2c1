#!/usr/bin/env python3
"""Tries the packages of this machine's architecture in roots with a systemd of their own: what the pages tell an operator to
type, from the installation and a first call to an upgrade, a downgrade and the removal.

    python3 packaging/try.py            deb, rpm and every architecture that build.py has built; needs root
    python3 packaging/try.py rpm s390x  one of them, and the packages of another architecture under qemu
    python3 packaging/try.py here       the .deb with the programs of `cargo build`, as `make test` does

Each root is a fresh Debian with a real systemd, in namespaces of its own: it sees no network, no process and no file of
this machine. rpm runs in such a root too, with a package that stands in for the base of a distribution, so that what our
package requires is checked. Another architecture has no system here: qemu-user runs its program, with the C library of the
image. "here" makes no Debian: it lays a file system over that of this machine, which stays as it is. Where no systemd can
run in a root, it says so, loudly. docs/how-to/install.md says what holds.
"""

import argparse
import functools
import http.server
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pages
from build import ARCHITECTURES, OUT, PROGRAMS, ROOT, output_of, run
from machine import WORK, CleanRoot, Failed, Impossible, ThisSystem, expect, wait_until

HERE = ROOT / "packaging"
UNITS = ("tidegate", "tidegate@any", "tidegate-lease-server", "tidegate-lease-agent")
# As on the pages.
OLD, NEW = "0.1.0", "0.2.0"
GREETING = "hello from the service"
LINE = "# Written by the administrator."


class Kind:
    """A kind of package, and what its users type: the commands of docs/how-to/install.md."""

    def __init__(self, architecture):
        self.architecture = architecture

    def typed(self, heading):
        """The commands below a heading for this kind."""
        lines = (self.filled_in(line) for line in pages.commands(pages.section("install.md", heading)))
        return [line for line in lines if line and line.startswith(self.tool)]

    def filled_in(self, line):
        """A command of the page, with the architecture of this machine; nothing if it is for another kind."""
        if line.startswith(self.others):
            return None
        return re.sub(self.file, lambda found: self.path(found[1]), line)

    @property
    def upgrade(self):
        return self.typed("Upgrade and downgrade")[0]

    @property
    def downgrade(self):
        return self.typed("Upgrade and downgrade")[1]


class Deb(Kind):
    """For apt and dpkg."""

    name = "deb"
    tool = "yes | apt-get"
    others = ("rpm", "dnf", "zypper")
    file = r"\./tidegate\*_([\d.]+)-1_s390x\.deb"
    # dpkg keeps a changed config, and lays the new one beside it.
    beside = "/etc/tidegate/config.toml.dpkg-dist"
    kept = "/etc/tidegate/config.toml"
    version = "dpkg-query --show --showformat '${Version}' tidegate"
    remove = "yes | apt-get remove tidegate tidegate-lab tidegate-leases"
    purge = "yes | apt-get purge tidegate tidegate-lab tidegate-leases"

    def path(self, version):
        return f"/packages/tidegate*_{version}-1_{self.architecture.deb}.deb"

    def filled_in(self, line):
        line = super().filled_in(line)
        # apt asks a person before it downgrades.
        return f"yes | {line}" if line and line.startswith("apt-get") else line


class Rpm(Kind):
    """For rpm."""

    name = "rpm"
    tool = "rpm"
    others = ("apt-get",)
    file = r"tidegate\*-([\d.]+)-1\.s390x\.rpm"
    beside = "/etc/tidegate/config.toml.rpmnew"
    kept = "/etc/tidegate/config.toml.rpmsave"
    version = "rpm --query --queryformat '%{VERSION}-%{RELEASE}' tidegate"
    remove = "rpm --erase tidegate tidegate-lab tidegate-leases"
    purge = "rm -r /etc/tidegate /var/lib/tidegate* /var/lib/private/tidegate*"

    def path(self, version):
        return f"/packages/tidegate*-{version}-1.{self.architecture.name}.rpm"


def make_packages(kind, out, *options):
    """The packages as they are, and as a later version with another config."""
    later = WORK / "later.toml"
    later.write_text((HERE / "config.toml").read_text() + "# This version has another config.\n")
    common = [sys.executable, HERE / "pack.py", kind.architecture.name, "--formats", kind.name, "--out", out, *options]
    if "--manual" not in options and (OUT / "manual/man").exists():
        common += ["--manual", OUT / "manual"]
    run(*common, "--version", OLD, stdout=subprocess.DEVNULL)
    run(*common, "--version", NEW, "--config", later, stdout=subprocess.DEVNULL)


def of_the_tests(programs):
    """Options for packages with the programs of `cargo build`: without what only a debugger reads, and not compressed."""
    stripped = WORK / "programs"
    stripped.mkdir(exist_ok=True)
    for program in PROGRAMS:
        run("strip", "-o", stripped / program, programs / program)
    manual = WORK / "manual"
    if manual.exists():
        shutil.rmtree(manual)
    run(programs / "examples/manual", manual)
    return "--programs", stripped, "--compression", "none", "--manual", manual


def base_of_a_distribution(machine):
    """A package without files that provides what every distribution has."""
    spec = machine.packages / "base.spec"
    spec.write_text(
        "Name: base\nVersion: 1\nRelease: 1\nSummary: Stands in for a distribution\nLicense: none\nBuildArch: noarch\n"
        "Provides: /bin/sh\n%description\nStands in.\n%files\n"
    )
    define = ["--define", f"_topdir {WORK}/rpmbuild", "--define", f"_rpmdir {spec.parent}"]
    define += ["--define", "_build_name_fmt %{NAME}.rpm"]
    run("rpmbuild", "-bb", "--quiet", *define, spec, stdout=subprocess.DEVNULL)
    kind = Rpm(ARCHITECTURES[platform.machine()])
    refused = machine.enter(f"rpm --install {kind.path(OLD)}")
    expect("/bin/sh is needed" in refused.stderr, f"rpm checks what the package requires: {refused.stderr}")
    machine.does("rpm --install /packages/base.rpm")


def trial(kind, machine, *options):
    """Yields what holds, step by step."""
    make_packages(kind, machine.packages, *options)
    with machine:
        if kind.name == "rpm":
            base_of_a_distribution(machine)
        before = machine.files()
        machine.does(f"mkdir -p /srv/site && echo {GREETING} >/srv/site/index.html")
        machine.does(f"systemd-run --unit=service {machine.web.format(port=8080, folder='/srv/site')}")

        install, *_ = kind.typed("Install and start")
        machine.does(install)
        yield f"`{install}` installs {len(machine.files() - before)} files and folders"
        for unit in UNITS:
            expect(machine.unit("is-active", unit) == "inactive", f"{unit} is not started")
            expect(machine.unit("is-enabled", unit) == "disabled", f"{unit} is not enabled")
        yield "nothing is started or enabled"
        expect("tidegate" in machine.does("getent passwd tidegate"), "the user exists")
        machine.does("tidegate --version && tidegate check && tidegate-lab --version && tidegate-leases --version")
        machine.does("systemd-analyze verify tidegate.service tidegate@any.service tidegate-lease-server.service")
        machine.does("tidegate lease-server --check --config /usr/share/doc/tidegate-leases/config.lease-server.toml.example")
        yield "`tidegate check` accepts the config, systemd accepts the units"
        machine.does(kind.purge if kind.name == "deb" else kind.remove)
        rest = left(machine, before)
        expect(not rest, f"a package that was never started leaves nothing: {rest}")
        yield "a package that was never started leaves nothing"

        yield from pages.install(machine, kind)
        first_call(machine)
        owner = machine.does(f"stat -c %U /proc/{machine.pid()}")
        expect(owner == "tidegate", f"it runs as tidegate, not {owner}")
        pages.hold_a_port(machine)
        yield from pages.runbook(machine)
        yield from pages.second_sidecar(machine)
        yield from pages.restarts(machine)
        yield from pages.upgrade(machine)
        yield from pages.release_the_port(machine)

        machine.does(f"echo '{LINE}' >>/etc/tidegate/config.toml && systemctl reload tidegate")
        write_instance(machine)
        old, old_instance = machine.pid(), machine.pid("tidegate@more")
        machine.does(kind.upgrade)
        expect(machine.does(kind.version) == f"{NEW}-1", "the new version is installed")
        expect_config(machine, kind)
        expect(machine.pid() not in (old, "0"), "it was restarted")
        expect(machine.pid("tidegate@more") not in (old_instance, "0"), "the second one was restarted")
        first_call(machine)
        expect(machine.unit("is-enabled") == "enabled", "it is still enabled")
        for unit in UNITS[1:]:
            expect(machine.unit("is-active", unit) == "inactive", f"{unit} is not started")
        yield f"`{kind.upgrade}` keeps the changed config, lays the new one beside it, and restarts what runs"

        machine.does("systemctl stop tidegate")
        machine.does(kind.downgrade)
        expect(machine.does(kind.version) == f"{OLD}-1", "the old version is installed")
        expect(machine.unit("is-active") == "inactive", "what did not run is not started")
        expect_config(machine, kind)
        machine.does("systemctl start tidegate")
        first_call(machine)
        yield f"`{kind.downgrade}` keeps it too, and does not start what was stopped"

        machine.does(kind.remove)
        for unit in ("tidegate", "tidegate@more"):
            expect(machine.unit("is-active", unit) == "inactive", f"{unit} is stopped")
        links = machine.says("ls /etc/systemd/system/multi-user.target.wants")
        expect("tidegate" not in links, f"nothing is enabled: {links}")
        expect(LINE in machine.does(f"cat {kind.kept}"), "the changed config is kept")
        machine.does("rm /etc/tidegate/more.toml")
        yield f"`{kind.remove}` stops both and leaves {', '.join(left(machine, before))}"
        machine.does(kind.purge)
        rest = left(machine, before)
        expect(not rest, f"nothing is left, except the user: {rest}")
        yield f"after `{kind.purge}` nothing is left but the user"


def write_instance(machine):
    """A second sidecar, which an upgrade and a removal must not forget."""
    more = pages.HELD.replace("8097", "8098").replace("9197", "9198")
    pages.write(machine, "/etc/tidegate/more.toml", more)
    machine.does("systemctl enable --now tidegate@more")


def foreign(architecture):
    """Yields what holds for the packages of an architecture whose programs run under qemu-user."""
    packages = WORK / "packages"
    command = [sys.executable, HERE / "pack.py", architecture.name, "--formats", "deb,rpm,tar,image", "--out", packages]
    command += ["--manual", OUT / "manual"] if (OUT / "manual/man").exists() else []
    run(*command, "--version", OLD, stdout=subprocess.DEVNULL)
    root = WORK / architecture.name
    if root.exists():
        shutil.rmtree(root)
    root.mkdir()
    image = packages / f"tidegate-{OLD}-image.tar"
    run(
        "skopeo", "copy", "--quiet", "--override-arch", architecture.image, f"oci-archive:{image}:{OLD}",
        f"dir:{root}/image", stdout=subprocess.DEVNULL,
    )  # fmt: skip
    manifest = json.loads((root / "image/manifest.json").read_text())
    system = root / "system"
    system.mkdir()
    for layer in manifest["layers"]:
        run("tar", "-C", system, "-xf", root / "image" / layer["digest"].removeprefix("sha256:"))
    qemu = [f"qemu-{architecture.name}-static", "-L", system]
    said = output_of(*qemu, system / "tidegate", "--version")
    yield f"skopeo reads the image, whose program is {said}"

    run("dpkg-deb", "-x", packages / f"tidegate_{OLD}-1_{architecture.deb}.deb", root / "deb")
    query = ["rpm", "--query", "--package", "--queryformat", "%{ARCH}"]
    packed = output_of(*query, packages / f"tidegate-{OLD}-1.{architecture.name}.rpm")
    expect(packed == architecture.name, f"the rpm is for {architecture.name}, not {packed}")
    program, config = root / "deb/usr/bin/tidegate", root / "deb/etc/tidegate/config.toml"
    expect(program.read_bytes() == (system / "tidegate").read_bytes(), "package and image have the same program")
    output_of(*qemu, program, "check", "--config", config)
    yield "the .deb has the same program, the .rpm the architecture, and `tidegate check` accepts the config"

    local = root / "local"
    local.mkdir()
    tarball = next(packages.glob(f"tidegate-{OLD}-{architecture.name}-linux-*.tar.gz"))
    run("tar", "-xf", tarball, "--strip-components=1", "-C", local)
    expect((local / "bin/tidegate").read_bytes() == program.read_bytes(), "the tarball has the same program")
    unit = (local / "lib/systemd/system/tidegate.service").read_text()
    expect("ExecStart=/usr/local/bin/tidegate serve" in unit and "/usr/bin/" not in unit, "its unit runs that program")
    yield "the tarball has the same program, and units that run it below /usr/local"

    site = root / "site"
    site.mkdir()
    (site / "index.html").write_text(GREETING)
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{free_port()}"
        settings = {
            "TIDEGATE_LISTEN__0__BIND": address,
            "TIDEGATE_BACKEND__HTTP": f"http://127.0.0.1:{service.server_port}",
            "TIDEGATE_ADMIN__BIND": f"127.0.0.1:{free_port()}",
            "TIDEGATE_RUNTIME_DIR": str(root),
        }
        serve = [*map(str, qemu), str(program), "serve", "--config", str(config)]
        with (WORK / f"{architecture.name}.log").open("w") as log:
            sidecar = subprocess.Popen(serve, env=os.environ | settings, stdin=subprocess.DEVNULL, stderr=log)
            try:
                wait_until("it listens", lambda: called(address) is not None)
                expect(called(address) == GREETING, "the call is answered by the service")
            finally:
                sidecar.terminate()
            expect(sidecar.wait(60) == 0, "it drains and ends with 0")
        service.shutdown()
    yield "`tidegate serve` answers a first call under qemu, and ends with 0 on SIGTERM"
    shutil.rmtree(root)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A service that logs nothing."""

    def log_message(self, *_):
        pass


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def called(address):
    """What a GET is answered with; nothing while no program listens."""
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=20) as reply:
            return reply.read().decode()
    except urllib.error.URLError:
        return None


def first_call(machine):
    said = machine.does("curl --silent --show-error --fail --max-time 20 http://127.0.0.1:8081/")
    expect(said == GREETING, f"the call is answered by the service: {said}")


def expect_config(machine, kind):
    expect(LINE in machine.does("cat /etc/tidegate/config.toml"), "the changed config is kept")
    expect(machine.does(f"ls {kind.beside}") == kind.beside, "the config of the package is beside it")


def left(machine, before):
    """What is there now and was not before, except what lists the user."""
    users = {f"/etc/{name}{suffix}" for name in ("passwd", "group", "shadow", "gshadow") for suffix in ("", "-")}
    users.add("/etc/.pwd.lock")
    return sorted(machine.files() - before - users)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="deb, rpm, s390x, aarch64; here")
    parser.add_argument("--programs", type=Path, default=ROOT / "target/debug", help='for "here": where cargo has built them')
    arguments = parser.parse_args()
    architecture = ARCHITECTURES[platform.machine()]
    kinds = {"deb": Deb, "rpm": Rpm}
    WORK.mkdir(parents=True, exist_ok=True)
    if arguments.kinds == ["here"]:
        return here(architecture, arguments.programs.resolve())
    built = [name for name in ARCHITECTURES if (OUT / "bin" / name / "tidegate").exists()]
    every = [*kinds, *(name for name in built if name != architecture.name)]
    if wrong := set(arguments.kinds) - set(every):
        parser.error(f"cannot try {', '.join(sorted(wrong))}: choose from {', '.join(every)}; build.py builds others")
    for name in arguments.kinds or every:
        if name in ARCHITECTURES:
            steps = foreign(ARCHITECTURES[name])
        else:
            steps = trial(kinds[name](architecture), CleanRoot(name))
        try:
            print_each(name, steps)
        except Impossible as why:
            sys.exit(f"try.py: no systemd can run in a root here: {why}")


def print_each(name, steps):
    try:
        for number, holds in enumerate(steps, 1):
            print(f"{name} {number}: {holds}", flush=True)
    except Failed as failed:
        sys.exit(f"try.py: {name}: {failed}")


def here(architecture, programs):
    """The .deb of the programs of `cargo build`. Where it cannot be tried, that is no failure, but it is loud."""
    try:
        machine = ThisSystem("here")
        machine.prepare()
        print_each("here", trial(Deb(architecture), machine, *of_the_tests(programs)))
    except Impossible as why:
        frame = "=" * 100
        print(
            f"{frame}\nNOT TRIED: the package as a service, with the commands of the pages.\n{why}.\n"
            f"`make try-here` tries it as root on a machine with systemd; `make try-packages` in clean roots.\n{frame}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        if os.environ.get("CI"):
            sys.exit("try.py: where CI is set, that is a failure")


if __name__ == "__main__":
    main()
