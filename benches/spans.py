#!/usr/bin/env python3
"""What spans cost, in one run, on loopback. Replaces their part of docs/reports/benchmarks.md.

usage: spans.py [--rounds N] [--seconds S] [--rate R] [--binary FILE] [--out FILE]

Four sidecars run at once in front of one backend and are measured in turn: one without [trace], with one call in 100 sampled; and
three with it: one in 100 sampled, one in 100 and a collector that accepts no connection, and all sampled. All calls have a
traceparent. The collector is a thread of this script. The CPU time of threads comes from the kernel in nanoseconds.
"""
import os
import re
import socket
import statistics
import threading
import time
import urllib.request

import peers
from peers import Backend, bench, cpu_seconds, free_port, machine, replace, table, tidegate, version

opts = peers.options(__doc__, rounds=8, seconds=5)
peers.BIN = os.path.abspath(opts.binary)


class Collector:
    """Takes every request, and counts them."""
    def __init__(self):
        self.requests = 0
        self.socket = socket.create_server(('127.0.0.1', 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            stream, _ = self.socket.accept()
            threading.Thread(target=self.serve, args=(stream,), daemon=True).start()

    def serve(self, stream):
        read = stream.makefile('rb')
        while read.readline():
            length = 0
            while (line := read.readline().strip().lower()):
                if line.startswith(b'content-length:'):
                    length = int(line.split(b':')[1])
            read.read(length)
            self.requests += 1
            stream.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')


class Sidecar:
    def __init__(self, name, backend, collector, every):
        self.name, self.port, self.every = name, free_port(), every
        trace = '' if collector is None else '[trace]\notlp = "http://127.0.0.1:%d"' % collector
        self.child = tidegate('sidecar-%d' % self.port, backend, self.port, 'per_window = "total:1000000"\noutstanding = 1000',
                              protocol='http', more=trace)

    def spans(self):
        with urllib.request.urlopen('http://127.0.0.1:%d/metrics' % self.child.admin) as metrics:
            text = metrics.read().decode()
        sent = re.search(r'^tidegate_spans_sent_total (\S+)', text, re.M).group(1)
        lost = re.findall(r'^tidegate_spans_lost_total\{[^}]*\} (\S+)', text, re.M)
        return float(sent), sum(map(float, lost))


def main():
    backend, collector = Backend('0ms'), Collector()
    sidecars = [Sidecar('no `[trace]`, 1 % sampled', backend, None, 100), Sidecar('1 % sampled', backend, collector.port, 100),
                Sidecar('1 % sampled, no collector there', backend, free_port(), 100), Sidecar('all sampled', backend, collector.port, 1)]
    cpu, p99 = {it: [] for it in sidecars}, {it: [] for it in sidecars}
    failed = {it: 0 for it in sidecars}
    time.sleep(3)  # Threads of the start have ended.
    for number in range(opts.rounds):
        first = number % len(sidecars)  # What runs behind another load is quicker: each takes each place.
        for it in sidecars[first:] + sidecars[:first]:
            before, began = cpu_seconds(it.child), time.monotonic()
            report = bench('--target', '127.0.0.1:%d' % it.port, '--protocol', 'http', '--connections', 64, '--rate', opts.rate,
                           '--seconds', opts.seconds, '--sampled-every', it.every)
            cpu[it].append((cpu_seconds(it.child) - before) / (time.monotonic() - began) * 100)
            p99[it].append(report['p99_us'] / 1000)
            failed[it] += report['calls'] - report['ok']
    time.sleep(2)  # The last spans leave after a second.
    med = statistics.median
    base = cpu[sidecars[0]]
    rows = []
    for it in sidecars:
        more = med([(a - b) / b * 100 for a, b in zip(cpu[it], base)])
        sent, lost = it.spans()
        rows.append([it.name, '%.1f %%' % med(cpu[it]), '%+.1f %%' % more, '%.2f ms' % med(p99[it]), failed[it], '%d' % sent, '%d' % lost])
    head = ['', 'CPU', 'more than without, round by round', 'p99', 'failed calls', 'spans sent', 'lost']
    replace(opts.out, 'spans', '''
## What spans cost

Measured by `make bench-spans` (%s), %s: %s, loopback only. Medians of %d rounds
of %g s at %d HTTP calls a second. CPU is in percent of one core, and "more" in percent of the CPU without `[trace]`.

%s''' % (version(peers.BIN, '--version'), time.strftime('%Y-%m-%d'), machine(), opts.rounds, opts.seconds, opts.rate, table(head, rows)))


main()
