"""Roots with a systemd of their own, in namespaces of their own: what runs there sees no network, no process and, unless
it is asked for, no file of this machine. packaging/try.py tries the packages in them."""

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

from build import OUT, run

WORK = OUT / "try"
CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
SYSTEMD = "/lib/systemd/systemd"
IN_ROOT = ("systemd", "busybox", "curl", "procps", "rpm")
# What the start of a system, the tools of a trial and the databases of packages write.
NOISE = ("/var/lib/apt", "/var/lib/dpkg", "/var/lib/rpm", "/var/lib/systemd", "/var/lib/PackageKit", "/var/log", "/var/cache",
         "/root", "/srv", "/packages")  # fmt: skip


class Failed(Exception):
    """Something does not hold."""


class Impossible(Exception):
    """No systemd can run in a root here."""


def expect(holds, what):
    if not holds:
        raise Failed(what)


def wait_until(what, holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"after {seconds} s it does not hold that {what}")
        time.sleep(0.1)


class Machine:
    """A root with its own systemd."""

    def __init__(self, name):
        self.folder = WORK / name
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.packages = self.folder / "packages"
        self.packages.mkdir(parents=True)

    def __enter__(self):
        self.prepare()
        hierarchy = next((path for path in CGROUPS if (path / "cgroup.controllers").exists()), None)
        if hierarchy is None:
            raise Impossible("no version 2 of cgroups is mounted")
        self.cgroup = hierarchy / f"tidegate-try-{os.getpid()}"
        try:
            self.cgroup.mkdir()
        except OSError as error:
            raise Impossible(f"cannot make a control group: {error}") from None
        self.log = (WORK / f"{self.folder.name}.log").open("w")
        self.outside = subprocess.Popen(
            ["sh", "-ec", START, "start", str(self.folder), str(self.cgroup), self.mount + BOOT],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip
        try:
            self.boot()
        except Failed as failed:
            self.__exit__()
            raise Impossible(f"{failed}: see {self.log.name}") from None
        return self

    def boot(self):
        children = Path(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children")
        wait_until("systemd starts", lambda: self.outside.poll() is not None or children.read_text().split(), 20)
        expect(self.outside.poll() is None, "systemd starts")
        self.init = children.read_text().split()[0]
        is_up = lambda: self.says("systemctl is-system-running") in ("running", "degraded")  # noqa: E731
        wait_until("systemd is up", lambda: self.outside.poll() is not None or is_up(), 40)
        expect(self.outside.poll() is None, "systemd is up")

    def __exit__(self, *_):
        # Its end kills the systemd in the root, and so all that runs there.
        self.outside.kill()
        self.outside.wait()
        self.log.close()
        wait_until("the control group is empty", lambda: gone(self.cgroup))
        shutil.rmtree(self.folder)

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
        """What is in the root, and not in that of this machine if it lies over it."""
        changed = f"/proc/{self.init}/root{self.changed}"
        found = set()
        for folder, names, files in os.walk(changed):
            inside = folder.removeprefix(changed)
            names[:] = [name for name in names if not f"{inside}/{name}".startswith(NOISE)]
            if not inside.startswith(("/proc", "/sys", "/dev", "/run", "/tmp")):
                found |= {f"{inside}/{name}" for name in files + names}
        return {path for path in found if not (self.changed and os.path.lexists(path))}

    def unit(self, question, unit="tidegate"):
        return self.says(f"systemctl {question} {unit}")

    def pid(self, unit="tidegate"):
        return self.says(f"systemctl show -p MainPID --value {unit}")


class CleanRoot(Machine):
    """A fresh Debian."""

    changed = ""
    web = "busybox httpd -f -p 127.0.0.1:{port} -h {folder}"
    mount = """
mkdir "$0/root/packages"
mount --bind "$0/root" "$0/root"
"""

    def prepare(self):
        root = self.folder / "root"
        root.mkdir()
        run("tar", "-C", root, "-xf", clean_root())


class ThisSystem(Machine):
    """The programs of this machine, with its own set-up hidden. Nothing that is written there reaches the machine."""

    changed = "/srv/changed"
    web = "python3 -m http.server --bind 127.0.0.1 --directory {folder} {port}"
    # A device 0:0 hides the file of the machine that has this name.
    mount = """
mkdir "$0/disk" "$0/root"
mount -t tmpfs -o size=2g tmpfs "$0/disk"
hidden="etc/systemd/system etc/fstab etc/machine-id etc/rc2.d etc/rc3.d etc/rc4.d etc/rc5.d etc/rcS.d"
# A hook waits for a service that does not run, and an index of all manual pages takes seconds.
hidden="$hidden etc/apt/apt.conf.d var/lib/man-db/auto-update"
for hidden in $hidden etc/tidegate var/lib/tidegate var/lib/private var/log/journal; do
  mkdir -p "$0/disk/changed/${hidden%/*}"
  mknod "$0/disk/changed/$hidden" c 0 0
done
mkdir "$0/disk/work" "$0/disk/changed/packages" "$0/disk/changed/srv" "$0/disk/changed/srv/changed"
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/disk/changed,workdir=$0/disk/work" "$0/root"
: >"$0/root/etc/fstab"
# With an id it is no first boot, which would enable whatever is installed.
tr -d - </proc/sys/kernel/random/uuid >"$0/root/etc/machine-id"
mkdir -p "$0/root/etc/systemd/system" "$0/root/etc/apt/apt.conf.d"
mount --bind "$0/disk/changed" "$0/root/srv/changed"
"""

    def prepare(self):
        if os.geteuid() != 0:
            raise Impossible("only root can make one")
        for needed in (SYSTEMD, "/usr/bin/systemctl", "/usr/bin/apt-get", "/usr/bin/dpkg-deb", "/usr/bin/curl"):
            if not Path(needed).exists():
                raise Impossible(f"this machine has no {needed}")
        for needed in ("unshare", "nsenter"):
            if shutil.which(needed) is None:
                raise Impossible(f"this machine has no {needed}")


# The first process of a container, as https://systemd.io/CONTAINER_INTERFACE asks for.
START = """
echo $$ >"$2/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup sh -ec "$3" "$1"
"""
BOOT = f"""
mount --bind "$0/packages" "$0/root/packages"
cd "$0/root"
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
  sh -c "umount --lazy /run/outside && exec {SYSTEMD} --system --log-target=console"
"""


def gone(cgroup):
    """Removes a control group; whether that was possible. Its processes end a moment after their first one."""
    try:
        for folder, _, _ in os.walk(cgroup, topdown=False):
            os.rmdir(folder)
    except OSError:
        return False
    return True


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
