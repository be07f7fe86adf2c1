#!/usr/bin/env python3
"""What the history and its viewers cost, in one run, on loopback. Replaces their part of docs/benchmarks.md.

usage: viewers.py [--rounds N] [--seconds S] [--rate R] [--binary FILE] [--out FILE]

Four sidecars run at once in front of one backend and are measured in turn: one without an admin address, which keeps no
history; and three with, which have 0, 1 and 3 viewers of /v1/stream. The CPU time of threads comes from the kernel
in nanoseconds. All work for the history and for frames is done on threads of their own, which are counted apart, because a difference
of a thousandth of a core is less than what the work for the calls varies by.
"""
import argparse
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('--rounds', type=int, default=7)
parser.add_argument('--seconds', type=float, default=6, help='of one run')
parser.add_argument('--rate', type=int, default=5000, help='calls a second')
parser.add_argument('--binary', default=os.path.join(ROOT, 'target', 'release', 'tidegate'))
parser.add_argument('--out', default=os.path.join(ROOT, 'docs', 'benchmarks.md'))
opts = parser.parse_args()
BIN = os.path.abspath(opts.binary)
WORK = tempfile.mkdtemp(prefix='tidegate-viewers-')
CHILDREN = []
BEGIN, END = '<!-- viewers -->', '<!-- end of viewers -->'
FUNCTIONS = 30


def free_port():
    with socket.socket() as it:
        it.bind(('127.0.0.1', 0))
        return it.getsockname()[1]


def start(args, log, ports):
    out = open(os.path.join(WORK, log), 'wb')
    child = subprocess.Popen(args, stdout=out, stderr=out, cwd=WORK)
    CHILDREN.append(child)
    for port in ports:
        for _ in range(200):
            try:
                socket.create_connection(('127.0.0.1', port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            sys.exit('%s does not listen: %s' % (args, open(os.path.join(WORK, log)).read()))
    return child


class Sidecar:
    def __init__(self, name, backend, viewers):
        self.name, self.port, self.admin = name, free_port(), free_port() if viewers is not None else None
        path = os.path.join(WORK, name + '.toml')
        limits = ', '.join(['total:1000000'] + ['function_%d:1000000' % it for it in range(FUNCTIONS)])
        with open(path, 'w') as out:
            out.write('''
[[listen]]
name = "bench"
bind = "127.0.0.1:%d"
protocol = "http"
[backend]
kind = "zvm"
http = "http://127.0.0.1:%d"
[queue]
capacity = 20000
postpone = "in_turn"
[limits]
allow_unknown = true
per_window = "%s"
outstanding = 1000
[admin]
bind = %s
[log]
access = false
''' % (self.port, backend, limits, '"127.0.0.1:%d"' % self.admin if self.admin else 'false'))
        ports = [self.port] + ([self.admin] if self.admin else [])
        self.child = start([BIN, 'serve', '--config', path], name + '.log', ports)
        self.lines = 0
        for _ in range(viewers or 0):
            threading.Thread(target=self.view, daemon=True).start()

    def view(self):
        while True:
            try:
                with urllib.request.urlopen('http://127.0.0.1:%d/v1/stream' % self.admin) as stream:
                    for _ in stream:
                        self.lines += 1
            except OSError:
                return

    def cpu(self):
        """Nanoseconds of the thread that moves calls, and of all others."""
        pid, main, others = self.child.pid, 0, 0
        for task in os.listdir('/proc/%d/task' % pid):
            try:
                with open('/proc/%d/task/%s/schedstat' % (pid, task)) as it:
                    spent = int(it.read().split()[0])
            except FileNotFoundError:
                continue
            if int(task) == pid:
                main = spent
            else:
                others += spent
        return main, others

    def rss(self):
        with open('/proc/%d/status' % self.child.pid) as it:
            return int(re.search(r'RssAnon:\s+(\d+)', it.read()).group(1)) / 1024


def load(port, rate, seconds):
    args = ['bench', '--target', '127.0.0.1:%d' % port, '--protocol', 'http', '--connections', '64',
            '--rate', rate, '--seconds', seconds, '--json']
    done = subprocess.run([BIN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if not done.stdout:
        sys.exit('bench: %s' % done.stderr.decode())
    return json.loads(done.stdout)


def main():
    backend = free_port()
    start([BIN, 'backend', '--socket', '127.0.0.1:%d' % free_port(), '--http', '127.0.0.1:%d' % backend, '--delay', '0ms'],
          'backend.log', [backend])
    sidecars = [Sidecar('none', backend, None), Sidecar('history', backend, 0), Sidecar('viewer1', backend, 1),
                Sidecar('viewer3', backend, 3)]
    names = ['no admin address, so no history', 'history, no viewer', 'history, 1 viewer', 'history, 3 viewers']
    idle, busy = {it: [] for it in sidecars}, {it: [] for it in sidecars}
    apart = {it: [] for it in sidecars}
    rates = {it: [] for it in sidecars}
    time.sleep(12)  # Threads of the start have ended.
    for _ in range(opts.rounds):
        before = {it: it.cpu() for it in sidecars}
        began = time.monotonic()
        time.sleep(opts.seconds)
        took = time.monotonic() - began
        for it in sidecars:
            now = it.cpu()
            idle[it].append((sum(now) - sum(before[it])) / took / 1e7)
        for it in sidecars:
            before, began = it.cpu(), time.monotonic()
            report = load(it.port, opts.rate, opts.seconds)
            now, took = it.cpu(), time.monotonic() - began
            busy[it].append((sum(now) - sum(before)) / took / 1e7)
            apart[it].append((now[1] - before[1]) / took / 1e7)
            rates[it].append(report)
    med = statistics.median
    base = busy[sidecars[0]]
    with open('/proc/cpuinfo') as it:
        cpu = re.search(r'model name\s*: (.*)', it.read()).group(1)
    version = subprocess.run([BIN, '--version'], stdout=subprocess.PIPE).stdout.decode().strip()
    rows = ['| | idle | %d calls/s | of that, threads beside the one that moves calls | more than without history, round by round | memory |' % opts.rate,
            '|---|---|---|---|---|---|']
    for it, name in zip(sidecars, names):
        more = med([a - b for a, b in zip(busy[it], base)])
        rows.append('| %s | %.3f | %.1f | %.3f | %+.1f | %.1f MB |' % (
            name, med(idle[it]), med(busy[it]), med(apart[it]), more, it.rss()))
    text = '''%s
## What the history and its viewers cost

Measured by `make bench-viewers` (%s), %s: %s, %d cores, Linux %s, loopback only. Medians of %d rounds of %g s, in
percent of one core. HTTP, %d limits; a viewer reads `/v1/stream`. Memory is what the process has allocated, at the end.

%s

%s
''' % (BEGIN, version, time.strftime('%Y-%m-%d'), cpu, os.cpu_count(), platform.release(), opts.rounds, opts.seconds,
       FUNCTIONS + 2, '\n'.join(rows), END)
    print(text)
    print('calls a second:', [round(med([r.get('per_second') or r.get('calls_per_second') or 0 for r in rates[it]])) for it in sidecars],
          'lines:', [it.lines for it in sidecars], file=sys.stderr)
    whole = open(opts.out).read()
    if BEGIN in whole:
        whole = whole[:whole.index(BEGIN)] + text.rstrip('\n') + whole[whole.index(END) + len(END):]
    else:
        whole = whole.rstrip('\n') + '\n\n' + text
    with open(opts.out, 'w') as out:
        out.write(whole)


try:
    main()
finally:
    for child in CHILDREN:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            child.wait(10)
