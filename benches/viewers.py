#!/usr/bin/env python3
"""What the history and its viewers cost, in one run, on loopback. Replaces their part of docs/reports/benchmarks.md.

usage: viewers.py [--rounds N] [--seconds S] [--rate R] [--binary FILE] [--out FILE]

Four sidecars run at once in front of one backend and are measured in turn: one without an admin address, which keeps no
history; and three with, which have 0, 1 and 3 viewers of /v1/stream. The CPU time of threads comes from the kernel
in nanoseconds. All work for the history and for frames is done on threads of their own, which are counted apart, because a difference
of a thousandth of a core is less than what the work for the calls varies by.
"""
import os
import re
import statistics
import sys
import threading
import time
import urllib.request

import peers
from peers import Backend, bench, free_port, machine, replace, table, tidegate, version

opts = peers.options(__doc__, rounds=7, seconds=6)
peers.BIN = os.path.abspath(opts.binary)
FUNCTIONS = 30


class Sidecar:
    def __init__(self, name, backend, viewers):
        self.name, self.port, self.lines = name, free_port(), 0
        limits = ', '.join(['total:1000000'] + ['function_%d:1000000' % it for it in range(FUNCTIONS)])
        limits = 'allow_unknown = true\nper_window = "%s"\noutstanding = 1000' % limits
        self.child = tidegate('sidecar-%d' % self.port, backend, self.port, limits, protocol='http', threads=1, has_admin=viewers is not None)
        for _ in range(viewers or 0):
            threading.Thread(target=self.view, daemon=True).start()

    def view(self):
        while True:
            try:
                with urllib.request.urlopen('http://127.0.0.1:%d/v1/stream' % self.child.admin) as stream:
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

    def allocated(self):
        """In MB."""
        with open('/proc/%d/status' % self.child.pid) as it:
            return int(re.search(r'RssAnon:\s+(\d+)', it.read()).group(1)) / 1024


def main():
    backend = Backend('0ms')
    sidecars = [Sidecar('no admin address, so no history', backend, None), Sidecar('history, no viewer', backend, 0),
                Sidecar('history, 1 viewer', backend, 1), Sidecar('history, 3 viewers', backend, 3)]
    idle, busy = {it: [] for it in sidecars}, {it: [] for it in sidecars}
    apart, rates = {it: [] for it in sidecars}, {it: [] for it in sidecars}
    time.sleep(12)  # Threads of the start have ended.
    for _ in range(opts.rounds):
        before = {it: it.cpu() for it in sidecars}
        began = time.monotonic()
        time.sleep(opts.seconds)
        took = time.monotonic() - began
        for it in sidecars:
            idle[it].append((sum(it.cpu()) - sum(before[it])) / took / 1e7)
        for it in sidecars:
            before, began = it.cpu(), time.monotonic()
            report = bench('--target', '127.0.0.1:%d' % it.port, '--protocol', 'http', '--connections', 64, '--rate', opts.rate,
                           '--seconds', opts.seconds)
            now, took = it.cpu(), time.monotonic() - began
            busy[it].append((sum(now) - sum(before)) / took / 1e7)
            apart[it].append((now[1] - before[1]) / took / 1e7)
            rates[it].append(report['calls'] / took)
    med = statistics.median
    base = busy[sidecars[0]]
    rows = []
    for it in sidecars:
        more = med([a - b for a, b in zip(busy[it], base)])
        rows.append([it.name, '%.3f' % med(idle[it]), '%.1f' % med(busy[it]), '%.3f' % med(apart[it]), '%+.1f' % more,
                     '%.1f MB' % it.allocated()])
    head = ['', 'idle', '%d calls/s' % opts.rate, 'of that, threads beside the one that moves calls',
            'more than without history, round by round', 'memory']
    replace(opts.out, 'viewers', '''
## What the history and its viewers cost

Measured by `make bench-viewers` (%s), %s: %s, loopback only. Medians of %d rounds of %g s, in
percent of one core. HTTP, %d limits; a viewer reads `/v1/stream`. Memory is what the process has allocated, at the end.

%s''' % (version(peers.BIN, '--version'), time.strftime('%Y-%m-%d'), machine(), opts.rounds, opts.seconds, FUNCTIONS + 2, table(head, rows)))
    print('calls a second:', [round(med(rates[it])) for it in sidecars], 'lines:', [it.lines for it in sidecars], file=sys.stderr)


main()
