#!/usr/bin/env python3
"""Tries the packages of this machine's architecture in clean roots: install, start, a first call, upgrade, downgrade, remove.

    python3 packaging/try.py            deb, rpm and every architecture that build.py has built; needs root
    python3 packaging/try.py rpm s390x  one of them, and the packages of another architecture under qemu

Each root is a fresh Debian with a real systemd, in namespaces of its own: it sees no network, no process and no file of
this machine. rpm runs in such a root too, with a package that stands in for the base of a distribution, so that what our
package requires is checked. Another architecture has no system here: qemu-user runs its program, with the C library of the
image. `make try-packages` runs this, docs/how-to/install.md says what holds.
"""

import argparse
import functools
import http.server
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from build import ARCHITECTURES, OUT, ROOT, output_of, run

HERE = ROOT / "packaging"
WORK = OUT / "try"
CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
IN_ROOT = ("systemd", "busybox", "curl", "procps", "rpm")
UNITS = ("tidegate", "tidegate-lease-server", "tidegate-lease-agent")
OLD, NEW = "0.1.0", "0.1.1"
GREETING = "hello from the service"
LINE = "# Written by the administrator."
# What the start of a system, the tools of this trial and the databases of packages write.
NOISE = ("/var/lib/apt", "/var/lib/dpkg", "/var/lib/rpm", "/var/lib/systemd", "/var/log", "/var/cache", "/root", "/srv", "/packages")


class Failed(Exception):
    """Something does not hold."""


def expect(holds, what):
    if not holds:
        raise Failed(what)


class Machine:
    """A clean root, with its own systemd."""

    def __init__(self, root):
        self.root = root
        if root.exists():
            shutil.rmtree(root)
        root.mkdir(parents=True)
        run("tar", "-C", root, "-xf", clean_root())
        (root / "packages").mkdir()

    def __enter__(self):
        hierarchy = next((path for path in CGROUPS if (path / "cgroup.controllers").exists()), None)
        if hierarchy is None:
            sys.exit("try.py: no version 2 of cgroups is mounted, so no systemd can run in a root")
        self.cgroup = hierarchy / f"tidegate-try-{os.getpid()}"
        self.cgroup.mkdir()
        self.log = (WORK / f"{self.root.name}.log").open("w")
        self.outside = subprocess.Popen(
            ["sh", "-ec", BOOT, "boot", str(self.root), str(self.cgroup)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip
        try:
            self.boot()
        except Failed:
            self.__exit__()
            raise
        return self

    def boot(self):
        children = Path(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children")
        wait_until("systemd starts", lambda: children.read_text().split() or self.outside.poll() is not None)
        expect(self.outside.poll() is None, f"systemd starts in the root: see {self.log.name}")
        self.init = children.read_text().split()[0]
        wait_until("systemd is up", lambda: self.says("systemctl is-system-running") in ("running", "degraded"))

    def __exit__(self, *_):
        # Its end kills the systemd in the root, and so all that runs there.
        self.outside.kill()
        self.outside.wait()
        self.log.close()
        wait_until("the control group is empty", lambda: gone(self.cgroup))
        shutil.rmtree(self.root)

    def enter(self, command):
        inside = ["nsenter", "--target", self.init, "--all", "--root", "--wd", "env", "-i"]
        inside += ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", command]
        try:
            return subprocess.run(inside, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            raise Failed(f"`{command}` did not end within 120 s") from None

    def does(self, command):
        """Runs a command in the root; fails if it fails."""
        done = self.enter(command)
        if done.returncode != 0:
            journal = self.says("journalctl --no-pager --lines 20 --unit 'tidegate*'")
            raise Failed(f"`{command}` ended with {done.returncode}: {done.stdout}{done.stderr}\n{journal}")
        return done.stdout.strip()

    def says(self, command):
        return self.enter(command).stdout.strip()

    def files(self):
        found = set()
        for folder, names, files in os.walk(self.root):
            inside = folder.removeprefix(str(self.root))
            names[:] = [name for name in names if not f"{inside}/{name}".startswith(NOISE)]
            if not inside.startswith(("/proc", "/sys", "/dev", "/run", "/tmp")):
                found |= {f"{inside}/{name}" for name in files + names}
        return found

    def unit(self, question, unit="tidegate"):
        return self.says(f"systemctl {question} {unit}")

    def pid(self):
        return self.says("systemctl show -p MainPID --value tidegate")


# The first process of a container, as https://systemd.io/CONTAINER_INTERFACE asks for.
BOOT = """
echo $$ >"$2/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup sh -ec '
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in run tmp dev; do mount -t tmpfs tmpfs $folder; done
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
mkdir dev/shm dev/pts run/outside
# Not chroot, in which systemd cannot lay out the file systems of a unit.
pivot_root . run/outside
exec env -i container=try PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
  sh -c "umount --lazy /run/outside && exec /lib/systemd/systemd --system --log-target=console"
' "$1"
"""


def gone(cgroup):
    """Removes a control group; whether that was possible. Its processes end a moment after their first one."""
    try:
        for folder, _, _ in os.walk(cgroup, topdown=False):
            os.rmdir(folder)
    except OSError:
        return False
    return True


def wait_until(what, holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"after {seconds} s it does not hold that {what}")
        time.sleep(0.1)


def clean_root():
    """An archive of a fresh Debian, made once."""
    archive = WORK / f"{'-'.join(IN_ROOT)}.tar"
    if not archive.exists():
        print("try.py: making a clean root", flush=True)
        release = platform.freedesktop_os_release()["VERSION_CODENAME"]
        part = archive.with_suffix(".part.tar")
        run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(IN_ROOT)}", release, part)
        part.rename(archive)
    return archive


class Deb:
    """What a user of apt and dpkg types."""

    name = "deb"
    # dpkg keeps a changed config, and lays the new one beside it.
    beside = "/etc/tidegate/config.toml.dpkg-dist"
    kept = "/etc/tidegate/config.toml"

    def __init__(self, architecture):
        self.architecture = architecture

    def path(self, version):
        return f"/packages/tidegate_{version}-1_{self.architecture.deb}.deb"

    def install(self, version):
        # apt asks nothing of a network for a package that needs nothing else.
        return f"apt-get install --quiet --yes {self.path(version)}"

    def upgrade(self, version):
        return f"apt-get install --quiet --yes -o Dpkg::Options::=--force-confold {self.path(version)}"

    def downgrade(self, version):
        return f"{self.upgrade(version)} --allow-downgrades"

    remove = "apt-get remove --quiet --yes tidegate"
    version = "dpkg-query --show --showformat '${Version}' tidegate"
    purge = "apt-get purge --quiet --yes tidegate"


class Rpm:
    """What a user of rpm types."""

    name = "rpm"
    beside = "/etc/tidegate/config.toml.rpmnew"
    kept = "/etc/tidegate/config.toml.rpmsave"

    def __init__(self, architecture):
        self.architecture = architecture

    def path(self, version):
        return f"/packages/tidegate-{version}-1.{self.architecture.name}.rpm"

    def install(self, version):
        return f"rpm --install {self.path(version)}"

    def upgrade(self, version):
        return f"rpm --upgrade {self.path(version)}"

    def downgrade(self, version):
        return f"rpm --upgrade --oldpackage {self.path(version)}"

    remove = "rpm --erase tidegate"
    version = "rpm --query --queryformat '%{VERSION}-%{RELEASE}' tidegate"
    purge = "rm -r /etc/tidegate /var/lib/tidegate /var/lib/private/tidegate"


def make_packages(kind):
    """The packages as they are, and as a later version with another config."""
    later = WORK / "later.toml"
    later.write_text((HERE / "config.toml").read_text() + "# This version has another config.\n")
    common = [sys.executable, HERE / "pack.py", kind.architecture.name, "--formats", kind.name, "--out", WORK / "packages"]
    common += ["--manual", OUT / "manual"] if (OUT / "manual/man").exists() else []
    run(*common, "--version", OLD, stdout=subprocess.DEVNULL)
    run(*common, "--version", NEW, "--config", later, stdout=subprocess.DEVNULL)


def base_of_a_distribution(machine):
    """A package without files that provides what every distribution has."""
    spec = machine.root / "packages/base.spec"
    spec.write_text(
        "Name: base\nVersion: 1\nRelease: 1\nSummary: Stands in for a distribution\nLicense: none\nBuildArch: noarch\n"
        "Provides: /bin/sh\n%description\nStands in.\n%files\n"
    )
    define = ["--define", f"_topdir {WORK}/rpmbuild", "--define", f"_rpmdir {spec.parent}"]
    define += ["--define", "_build_name_fmt %{NAME}.rpm"]
    run("rpmbuild", "-bb", "--quiet", *define, spec, stdout=subprocess.DEVNULL)
    refused = machine.enter(Rpm(ARCHITECTURES[platform.machine()]).install(OLD))
    expect("/bin/sh is needed" in refused.stderr, f"rpm checks what the package requires: {refused.stderr}")
    machine.does("rpm --install /packages/base.rpm")


def trial(kind):
    """Yields what holds, step by step."""
    make_packages(kind)
    root = WORK / kind.name
    with Machine(root) as machine:
        for path in (WORK / "packages").glob(f"*.{kind.name}"):
            shutil.copy(path, root / "packages")
        if kind.name == "rpm":
            base_of_a_distribution(machine)
        before = machine.files()

        machine.does(kind.install(OLD))
        yield f"`{kind.install(OLD)}` installs {len(machine.files() - before)} files and folders"
        for unit in UNITS:
            expect(machine.unit("is-active", unit) == "inactive", f"{unit} is not started")
            expect(machine.unit("is-enabled", unit) == "disabled", f"{unit} is not enabled")
        yield "nothing is started or enabled"
        expect("tidegate" in machine.does("getent passwd tidegate"), "the user exists")
        machine.does("tidegate --version && tidegate check && tidegate-lab --version")
        machine.does("systemd-analyze verify tidegate.service tidegate-lease-server.service")
        machine.does("tidegate lease-server --check --config /usr/share/doc/tidegate/config.lease-server.toml.example")
        yield "`tidegate check` accepts the config, systemd accepts the units"

        machine.does(f"mkdir -p /srv/site && echo {GREETING} >/srv/site/index.html")
        machine.does("systemd-run --unit=service busybox httpd -f -p 127.0.0.1:8080 -h /srv/site")
        machine.does("systemctl enable --now tidegate")
        first_call(machine)
        owner = machine.does(f"ps -o user= -p {machine.pid()} 2>/dev/null || stat -c %U /proc/{machine.pid()}")
        expect(owner == "tidegate", f"it runs as tidegate, not {owner}")
        machine.does("TIDEGATE_RUNTIME_DIR=/run/tidegate tidegate healthcheck")
        yield "`systemctl enable --now tidegate` starts it as user tidegate, and a first call is answered"

        machine.does(f"echo '{LINE}' >>/etc/tidegate/config.toml && systemctl reload tidegate")
        old = machine.pid()
        machine.does(kind.upgrade(NEW))
        expect(machine.does(kind.version) == f"{NEW}-1", "the new version is installed")
        expect_config(machine, kind)
        expect(machine.pid() not in (old, "0"), "it was restarted")
        first_call(machine)
        expect(machine.unit("is-enabled") == "enabled", "it is still enabled")
        for unit in UNITS[1:]:
            expect(machine.unit("is-active", unit) == "inactive", f"{unit} is not started")
        yield "an upgrade keeps the changed config, lays the new one beside it, and restarts what runs"

        machine.does("systemctl stop tidegate")
        machine.does(kind.downgrade(OLD))
        expect(machine.does(kind.version) == f"{OLD}-1", "the old version is installed")
        expect(machine.unit("is-active") == "inactive", "what did not run is not started")
        expect_config(machine, kind)
        machine.does("systemctl start tidegate")
        first_call(machine)
        yield "a downgrade keeps it too, and does not start what was stopped"

        machine.does(kind.remove)
        expect(machine.unit("is-active") == "inactive", "it is stopped")
        expect(LINE in machine.does(f"cat {kind.kept}"), "the changed config is kept")
        yield f"`{kind.remove}` stops it and leaves {', '.join(left(machine, before))}"
        machine.does(kind.purge)
        rest = left(machine, before)
        expect(not rest, f"nothing is left, except the user: {rest}")
        yield f"after `{kind.purge}` nothing is left but the user"

        machine.does(kind.install(OLD))
        machine.does(kind.remove)
        if kind.name == "deb":
            machine.does(kind.purge)
        rest = left(machine, before)
        expect(not rest, f"a package that was never started leaves nothing: {rest}")
        yield "a package that was never started leaves nothing"


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
        "skopeo", "copy", "--quiet", "--override-arch", architecture.image, f"oci-archive:{image}",
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
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="deb, rpm, s390x, aarch64")
    arguments = parser.parse_args()
    architecture = ARCHITECTURES[platform.machine()]
    kinds = {"deb": Deb, "rpm": Rpm}
    WORK.mkdir(parents=True, exist_ok=True)
    built = [name for name in ARCHITECTURES if (OUT / "bin" / name / "tidegate").exists()]
    every = [*kinds, *(name for name in built if name != architecture.name)]
    if wrong := set(arguments.kinds) - set(every):
        parser.error(f"cannot try {', '.join(sorted(wrong))}: choose from {', '.join(every)}; build.py builds others")
    for name in arguments.kinds or every:
        steps = foreign(ARCHITECTURES[name]) if name in ARCHITECTURES else trial(kinds[name](architecture))
        try:
            for number, holds in enumerate(steps, 1):
                print(f"{name} {number}: {holds}", flush=True)
        except Failed as failed:
            sys.exit(f"try.py: {name}: {failed}")


if __name__ == "__main__":
    main()
