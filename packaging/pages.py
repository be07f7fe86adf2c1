"""What the pages tell an operator to type, run word by word in a root with a systemd (packaging/machine.py)."""

import json
import re
import textwrap

from build import ROOT
from machine import expect, wait_until

CONFIG = "/etc/tidegate/config.toml"
# A sidecar beside the one of the packages. Another program holds its port at first.
HELD = """
[[listen]]
name = "held"
bind = "127.0.0.1:8097"
protocol = "http"
[backend]
kind = "http"
http = "http://127.0.0.1:8080"
[limits]
per_window = "total:30"
[admin]
bind = "127.0.0.1:9197"
"""
HELD_SECONDS = 8


def page(name):
    return (ROOT / "docs/how-to" / name).read_text()


def section(name, heading):
    """The text below a heading, up to the next one of the same level."""
    text = page(name)
    start = re.search(rf"^## {re.escape(heading)}$", text, re.M)
    expect(start, f"{name} has a heading {heading}")
    return re.split(r"^## ", text[start.end() :], maxsplit=1, flags=re.M)[0]


def blocks(text, language):
    """The blocks of a language; "" for those that name none."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.M | re.S)
    return [textwrap.dedent(block) for _, named, block in found if named == language]


def commands(text):
    """Each line of the blocks for a shell, without its comment."""
    lines = "".join(blocks(text, "sh") + blocks(text, "")).splitlines()
    return [line for line in (re.sub(r"(^| +)# .*", "", line).rstrip() for line in lines) if line]


def quoted(name, *programs):
    """The commands of these programs in the sentences of a page."""
    found = re.findall(r"`([^`\n]+)`", page(name))
    return sorted({command for command in found if command.startswith(programs)})


def typed(machine, lines):
    """Runs commands as they are."""
    expect(lines, "the page has commands")
    return [machine.does(f"cd /packages && {line}") for line in lines]


def write(machine, path, text):
    machine.does(f"cat >{path} <<'END'\n{text.strip()}\nEND")


def install(machine, kind):
    """docs/how-to/install.md, from the package to the first call. Yields what holds, step by step."""
    lines = [kind.filled_in(line) for line in commands(section("install.md", "Install and start"))]
    first, *rest = [line for line in lines if line]
    machine.does(f"cd /packages && {first}")
    yield f"`{first}` installs it"
    said = typed(machine, rest)
    expect("tidegate init --force" in rest[0], f"the page writes a config first: {rest[0]}")
    owner = machine.does(f"stat -c '%a %U:%G' {CONFIG}")
    expect(owner == "640 root:tidegate", f"the group of the service can read what init wrote: {owner}")
    probed = said[rest.index("tidegate check --probe")]
    expect("looked as tidegate" in " ".join(probed.split()), f"root looks with the rights of the service: {probed}")
    yield f"{', '.join(f'`{line}`' for line in rest)}: the service reads what root wrote, and answers"

    machine.does(f"chmod 0600 {CONFIG}")
    for command, words in (
        ("tidegate check --probe", "the service runs as that user, and does not start"),
        ("tidegate check", "tidegate, the user of the service, cannot read"),
    ):
        done = machine.enter(command)
        said = " ".join((done.stdout + done.stderr).split())
        expect(words in said, f"`{command}` as root sees what the service cannot read: {done}")
    machine.does(f"chmod 0640 {CONFIG}")
    yield "`tidegate check --probe` fails and `tidegate check` warns if only root can read the config"


def hold_a_port(machine):
    """Starts a sidecar whose port is in use. `release_the_port` looks at it when some seconds are over."""
    holder = machine.web.format(port=8097, folder="/srv/site")
    machine.does(f"systemd-run --unit=holder {holder}")
    write(machine, "/etc/tidegate/held.toml", HELD)
    wait_until("the port is held", lambda: machine.enter("curl -s -o /dev/null http://127.0.0.1:8097/").returncode == 0)
    machine.does("systemctl start --no-block tidegate@held")


def release_the_port(machine):
    since = "systemctl show -p InactiveExitTimestampMonotonic --value holder"
    now = lambda: float(machine.does("cut -d ' ' -f 1 /proc/uptime")) * 1e6  # noqa: E731
    began = int(machine.does(since))
    wait_until("it was held for some seconds", lambda: now() - began > HELD_SECONDS * 1e6)
    state = machine.unit("is-active", "tidegate@held")
    expect(state == "activating", f"systemd still tries to start it: {state}")
    # A slow machine makes too few tries in this time to meet a limit.
    limit = machine.does("systemctl show -p StartLimitIntervalUSec --value tidegate@held")
    expect(limit == "0", f"no number of tries is too many: {limit}")
    machine.does("systemctl stop holder")
    wait_until("it starts when its port is free", lambda: machine.unit("is-active", "tidegate@held") == "active", 5)
    tries = machine.does("systemctl show -p NRestarts --value tidegate@held")
    machine.does("systemctl stop tidegate@held && rm /etc/tidegate/held.toml")
    yield f"a port that another program holds for {HELD_SECONDS} s costs {tries} tries, and no act of an operator"


def upgrade(machine):
    """docs/how-to/upgrade.md: each command but those that look at a program that is not installed yet."""
    lines = [line for line in commands(page("upgrade.md")) if not line.startswith("./")]
    typed(machine, lines)
    yield f"upgrade.md: {', '.join(f'`{line}`' for line in lines)}"


def runbook(machine):
    """docs/how-to/runbook.md: its commands find what has happened."""
    machine.does("systemctl kill --signal USR1 tidegate")
    warnings = "journalctl -u tidegate -p warning"
    wait_until("the journal has a warning", lambda: "SIGUSR1" in machine.says(warnings), 10)
    lines = quoted("runbook.md", "systemctl ", "journalctl ", "tidegate healthcheck", "tidegate check", "tidegate limits")
    expect(warnings in lines, "the runbook looks for warnings")
    for line in (line.replace("FILE", CONFIG) for line in lines):
        said = machine.does(line)
        expect(said or "healthcheck" in line, f"`{line}` says something")
        expect("-- No entries --" not in said, f"`{line}` finds lines")
    said = machine.does(warnings)
    expect('"level":"INFO"' not in said, f"only warnings are found: {said}")
    yield f"runbook.md: {', '.join(f'`{line}`' for line in lines)}"

    machine.does(f"cp -p {CONFIG} /root/ && echo 'wrong = 1' >>{CONFIG}")
    expect(machine.enter("systemctl reload tidegate").returncode != 0, "a reload of a bad config fails")
    machine.does("journalctl --sync")
    said = machine.does("journalctl -u tidegate -p err")
    expect("wrong" in said, f"the mistakes that `tidegate check` found are errors: {said}")
    machine.does(f"cp -p /root/config.toml {CONFIG} && systemctl reload tidegate")
    for line in quoted("zvm-at-h.md", "journalctl -u tidegate -o cat"):
        machine.does(line.replace("LOG", "/root/LOG"))
    log = machine.does("cat /root/LOG").splitlines()
    events = [json.loads(line) for line in log if line.startswith("{")]
    expect(len(events) > 3, "the journal has the log")
    expect(not any(line.startswith("<") for line in log), "no priority is left in a line")
    yield "the mistakes of a refused reload are errors in the journal, and its lines are those of the log"


def second_sidecar(machine):
    """docs/how-to/zvm-at-both.md: one more unit, beside the first and after it."""
    name = "zvm-at-both.md"
    files = re.findall(r"`(/etc/tidegate/[a-z]+\.toml)`:$", page(name), re.M)
    configs = blocks(page(name), "toml")
    expect(files == [CONFIG, "/etc/tidegate/outer.toml"] and len(configs) == 2, f"the page has two configs: {files}")
    machine.does(f"cp -p {CONFIG} /root/")
    for path, config in zip(files, configs, strict=True):
        write(machine, path, config)
    machine.does("systemctl restart tidegate")
    lines = commands(section(name, "3. Start both"))
    typed(machine, lines)
    owner = machine.does(f"stat -c %U /proc/{machine.pid('tidegate@outer')}")
    expect(owner == "tidegate", f"it runs as tidegate, not {owner}")
    typed(machine, quoted(name, "tidegate limits --admin"))
    expect(machine.unit("is-enabled", "tidegate@outer") == "enabled", "it is enabled")
    machine.does("rm /run/tidegate/* && systemctl reload tidegate")
    wait_until("a reload writes the runtime file again", lambda: machine.says("ls /run/tidegate"), 10)
    stop, *reload = commands(section(name, "5. Go back"))
    typed(machine, [*reload, stop])
    expect(machine.unit("is-active", "tidegate@outer") == "inactive", "it is stopped")
    machine.does("tidegate healthcheck")
    machine.does(f"rm /etc/tidegate/outer.toml && cp -p /root/config.toml {CONFIG} && systemctl restart tidegate")
    yield f"zvm-at-both.md: {', '.join(f'`{line}`' for line in [*lines, *reload, stop])}"
    yield "the first one is left alone, and a reload writes its lost runtime file again"


def main_pid(machine):
    return machine.does("systemctl show --property=MainPID --value tidegate").strip()


def restarts(machine):
    """docs/how-to/upgrade.md: `systemctl restart` and `systemctl kill` in a storm exceed no limit at the backend."""
    limits = {"densest_second": 30, "peak_in_flight": 10}
    machine.does(f"cp -p {CONFIG} /root/")
    # The backend notes a call when its task runs, which is late on a busy machine.
    machine.does(f"sed -i 's/127.0.0.1:8080/127.0.0.1:8090/; s/^\\[limits\\]/&\\nwindow_guard = \"200ms\"/' {CONFIG}")
    machine.does(
        "systemd-run --unit=stand-in tidegate-lab backend --delay 300ms"
        " --http 127.0.0.1:8090 --socket 127.0.0.1:8091 --stats 127.0.0.1:8092"
    )
    machine.does("systemctl restart tidegate")
    machine.does(
        "systemd-run --unit=storm --property=Restart=always tidegate-lab bench --target 127.0.0.1:8081"
        " --protocol http --connections 60 --seconds 3600"
    )
    seen = {}

    def calls():
        seen.update(json.loads(machine.does("curl --silent --show-error --fail http://127.0.0.1:8092/stats")))
        return seen["calls"]

    for command in ["systemctl restart tidegate"] * 10 + ["systemctl kill --signal=KILL tidegate"] * 5:
        before = calls()
        wait_until("calls go on", lambda: calls() > before + 5)
        machine.does(command)
    # A changed program takes over with the next reload, and the process that systemd knows is another one.
    for _ in range(3):
        before = calls()
        wait_until("calls go on", lambda: calls() > before + 5)
        # Not before, because a process that was killed is started again after a second.
        pid = main_pid(machine)
        machine.does("cp -p /usr/bin/tidegate /usr/bin/tidegate.new && mv /usr/bin/tidegate.new /usr/bin/tidegate")
        machine.does("systemctl reload tidegate")
        wait_until("the new program serves", lambda: main_pid(machine) not in (pid, "0"))
        machine.does("tidegate healthcheck")
        wait_until("the old process ends", lambda: machine.does(f"ls -d /proc/{pid} 2>/dev/null || echo gone").strip() == "gone")
    calls()
    for name, most in limits.items():
        expect(0 < seen[name] <= most, f"{name} is at most {most}, not {seen[name]}: {seen}")
    machine.does("systemctl stop storm stand-in")
    machine.does(f"cp -p /root/config.toml {CONFIG} && systemctl restart tidegate")
    shown = ", ".join(f"{name} {seen[name]} of {most}" for name, most in limits.items())
    yield f"`systemctl restart`, `systemctl kill`, and reloads of a changed program in a storm: of {seen['calls']} calls, {shown}"
