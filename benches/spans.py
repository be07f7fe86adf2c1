#!/usr/bin/env python3
"""What spans cost, in one run, on loopback. Replaces their part of docs/benchmarks.md.

usage: spans.py [--rounds N] [--seconds S] [--rate R] [--binary FILE] [--out FILE]

Four sidecars run at once in front of one backend and are measured in turn: one without [trace], with one call in 100 sampled; and
three with it: one in 100 sampled, one in 100 and a collector that accepts no connection, and all sampled. All calls have a
traceparent. The collector is a thread of this script. The CPU time of threads comes from the kernel in nanoseconds.
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
WORK = tempfile.mkdtemp(prefix='tidegate-spans-')
CHILDREN = []
BEGIN, END = '<!-- spans -->', '<!-- end of spans -->'


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
        self.name, self.port, self.admin, self.every = name, free_port(), free_port(), every
        path = os.path.join(WORK, name + '.toml')
        trace = '' if collector is None else '[trace]\notlp = "http://127.0.0.1:%d"' % collector
        with open(path, 'w') as out:
            out.write('''
[[listen]]
name = "bench"
bind = "127.0.0.1:%d"
protocol = "http"
[backend]
kind = "http"
http = "http://127.0.0.1:%d"
[queue]
postpone = "in_turn"
[limits]
per_window = "total:1000000"
outstanding = 1000
[admin]
bind = "127.0.0.1:%d"
[log]
access = false
%s
''' % (self.port, backend, self.admin, trace))
        self.child = start([BIN, 'serve', '--config', path], name + '.log', [self.port, self.admin])

    def spans(self):
        with urllib.request.urlopen('http://127.0.0.1:%d/metrics' % self.admin) as metrics:
            text = metrics.read().decode()
        sent = re.search(r'^tidegate_spans_sent_total (\S+)', text, re.M).group(1)
        lost = re.findall(r'^tidegate_spans_lost_total\{[^}]*\} (\S+)', text, re.M)
        return float(sent), sum(map(float, lost))

    def cpu(self):
        """Nanoseconds of all threads."""
        pid, spent = self.child.pid, 0
        for task in os.listdir('/proc/%d/task' % pid):
            try:
                with open('/proc/%d/task/%s/schedstat' % (pid, task)) as it:
                    spent += int(it.read().split()[0])
            except FileNotFoundError:
                continue
        return spent


def load(port, rate, seconds, every):
    args = ['bench', '--target', '127.0.0.1:%d' % port, '--protocol', 'http', '--connections', '64',
            '--rate', rate, '--seconds', seconds, '--sampled-every', every, '--json']
    done = subprocess.run([BIN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if not done.stdout:
        sys.exit('bench: %s' % done.stderr.decode())
    return json.loads(done.stdout)


def main():
    backend = free_port()
    start([BIN, 'backend', '--socket', '127.0.0.1:%d' % free_port(), '--http', '127.0.0.1:%d' % backend, '--delay', '0ms'],
          'backend.log', [backend])
    collector = Collector()
    sidecars = [Sidecar('none', backend, None, 100), Sidecar('one', backend, collector.port, 100),
                Sidecar('dead', backend, free_port(), 100), Sidecar('all', backend, collector.port, 1)]
    names = ['no `[trace]`, 1 % sampled', '1 % sampled', '1 % sampled, no collector there', 'all sampled']
    cpu, p99 = {it: [] for it in sidecars}, {it: [] for it in sidecars}
    failed = {it: 0 for it in sidecars}
    time.sleep(3)  # Threads of the start have ended.
    for number in range(opts.rounds):
        first = number % len(sidecars)  # What runs behind another load is quicker: each takes each place.
        for it in sidecars[first:] + sidecars[:first]:
            before, began = it.cpu(), time.monotonic()
            report = load(it.port, opts.rate, opts.seconds, it.every)
            cpu[it].append((it.cpu() - before) / (time.monotonic() - began) / 1e7)
            p99[it].append(report['p99_us'] / 1000)
            failed[it] += report['calls'] - report['ok']
    time.sleep(2)  # The last spans leave after a second.
    med = statistics.median
    base = cpu[sidecars[0]]
    with open('/proc/cpuinfo') as it:
        model = re.search(r'model name\s*: (.*)', it.read()).group(1)
    version = subprocess.run([BIN, '--version'], stdout=subprocess.PIPE).stdout.decode().strip()
    rows = ['| | CPU | more than without, round by round | p99 | failed calls | spans sent | lost |', '|---|---|---|---|---|---|---|']
    for it, name in zip(sidecars, names):
        more = med([(a - b) / b * 100 for a, b in zip(cpu[it], base)])
        rows.append('| %s | %.1f %% | %+.1f %% | %.2f ms | %d | %d | %d |' % (
            name, med(cpu[it]), more, med(p99[it]), failed[it], *it.spans()))
    text = '''%s
## What spans cost

Measured by `python3 %s` (%s), %s: %s, %d cores, Linux %s, loopback only. Medians of %d rounds of %g s
at %d HTTP calls a second. CPU is in percent of one core, and "more" in percent of the CPU without `[trace]`.

%s

%s
''' % (BEGIN, ' '.join(['benches/spans.py', *sys.argv[1:]]), version, time.strftime('%Y-%m-%d'), model, os.cpu_count(), platform.release(), opts.rounds, opts.seconds,
       opts.rate, '\n'.join(rows), END)
    print(text)
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
