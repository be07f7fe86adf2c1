#!/usr/bin/env python3
"""Instructions, allocations and system calls of one call, by stage. Replaces their part of docs/reports/benchmarks.md.

usage: instructions.py BINARY LAB [--out FILE] [--against OLDER]

BINARY is a release build with its symbols, and LAB is tidegate-lab (`make bench-instructions` builds both). The binary
serves under callgrind with %d and with %d calls over one connection at a time, and the difference is divided by the
calls between. Callgrind counts what the program itself runs, and not the kernel, so a run repeats within 1 %%.

A function counts for the stage whose module it is in. The compiler puts small functions into those that use them, which
moves their cost to the stage that uses them. --against prints the totals of another binary beside these.
"""
import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from callgrind import ALLOCATES, STAGES, SYSTEM_CALLS, read, stage_of

FEW, MANY = 1000, 5000
__doc__ %= (FEW, MANY)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('binary')
parser.add_argument('lab')
parser.add_argument('--against', help='an older binary, with its symbols')
parser.add_argument('--out', default=os.path.join(ROOT, 'docs', 'reports', 'benchmarks.md'))
opts = parser.parse_args()
LAB = os.path.abspath(opts.lab)
WORK = tempfile.mkdtemp(prefix='tidegate-instructions-')
BEGIN, END = '<!-- instructions -->', '<!-- end of instructions -->'


def free_port():
    with socket.socket() as it:
        it.bind(('127.0.0.1', 0))
        return it.getsockname()[1]


def wait_for(port, child):
    for _ in range(900):
        if child.poll() is not None:
            sys.exit('ended with %d: see %s' % (child.returncode, WORK))
        try:
            socket.create_connection(('127.0.0.1', port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit('nothing listens on %d' % port)


# What is counted: each protocol.
COLUMNS = ['socket', 'http']


def run(binary, protocol, calls, backends):
    listen, admin = free_port(), free_port()
    config = os.path.join(WORK, 'config.toml')
    with open(config, 'w') as out:
        out.write('''
[[listen]]
name = "bench"
bind = "127.0.0.1:%d"
protocol = "auto"
[backend]
kind = "zvm"
socket = "127.0.0.1:%d"
http = "http://127.0.0.1:%d"
[queue]
postpone = "in_turn"
[limits]
per_window = "total:1000000"
[admin]
bind = "127.0.0.1:%d"
[log]
access = false
''' % (listen, *backends, admin))
    profile = os.path.join(WORK, 'profile')
    child = subprocess.Popen(['valgrind', '--tool=callgrind', '--callgrind-out-file=' + profile, os.path.abspath(binary),
                              'serve', '--config', config], stdout=subprocess.DEVNULL,
                             stderr=open(os.path.join(WORK, 'log'), 'w'))
    wait_for(listen, child)
    wait_for(admin, child)
    subprocess.run([LAB, 'bench', '--protocol', protocol, '--target', '127.0.0.1:%d' % listen, '--connections', '1',
                    '--calls', str(calls), '--seconds', '300', '--json'], check=True, stdout=subprocess.DEVNULL)
    child.send_signal(signal.SIGTERM)
    if child.wait(120) != 0:
        sys.exit('serve ended with %d: see %s' % (child.returncode, WORK))
    return read(profile)


def one_call(binary, protocol, backends):
    """Instructions and calls by function, of one call."""
    few, many = (run(binary, protocol, calls, backends) for calls in (FEW, MANY))

    def difference(one, other):
        names = set(one) | set(other)
        return {name: (other.get(name, 0) - one.get(name, 0)) / (MANY - FEW) for name in names}
    return difference(few[0], many[0]), difference(few[1], many[1])


def main():
    backends = free_port(), free_port()
    backend = subprocess.Popen([LAB, 'backend', '--socket', '127.0.0.1:%d' % backends[0], '--http',
                                '127.0.0.1:%d' % backends[1], '--delay', '0ms'], stdout=subprocess.DEVNULL)
    try:
        wait_for(backends[0], backend)
        counted = {column: one_call(opts.binary, column, backends) for column in COLUMNS}
        older = {column: one_call(opts.against, column, backends) for column in COLUMNS} if opts.against else {}
    finally:
        backend.terminate()
        backend.wait()
    by_stage = {}
    for protocol, (spent, _) in counted.items():
        for function, instructions in spent.items():
            of_stage = by_stage.setdefault(stage_of(function), dict.fromkeys(COLUMNS, 0))
            of_stage[protocol] += instructions

    def version_of(binary):
        said = subprocess.run([os.path.abspath(binary), '--version'], check=True, stdout=subprocess.PIPE, text=True)
        return said.stdout.strip()

    def total(of):
        return {protocol: sum(spent.values()) for protocol, (spent, _) in of.items()}

    def count(pattern):
        return {protocol: sum(n for name, n in times.items() if pattern.match(name)) for protocol, (_, times) in counted.items()}
    order = [name for name, _ in STAGES] + ['the rest: std, the C library']
    rows = [(name, by_stage[name], '%.0f') for name in order if name in by_stage]
    rows.append(('**all instructions**', total(counted), '%.0f'))
    if older:
        rows.append(('all of ' + version_of(opts.against), total(older), '%.0f'))
    rows += [('allocations', count(ALLOCATES), '%.1f'), ('system calls', count(SYSTEM_CALLS), '%.1f')]
    table = ['| | socket | HTTP |', '|---|---|---|']
    table += ['| %s | %s |' % (name, ' | '.join(form % of[it] if it in of else '' for it in COLUMNS)) for name, of, form in rows]
    text = '''%s
## Instructions of one call

Counted by `make bench-instructions` (%s), %s, with callgrind: the difference between %d and %d calls, one connection at a
time, no access log, one window that is not reached. HTTP keeps its connections; on the socket each call has two new ones. The
load asks for the same two things again and again, so the heads of its requests are known after the first calls. Only what the
process itself runs, without the kernel.

%s

%s
''' % (BEGIN, version_of(opts.binary), time.strftime('%Y-%m-%d'), FEW, MANY, '\n'.join(table), END)
    print(text)
    whole = open(opts.out).read()
    if BEGIN in whole:
        whole = whole[:whole.index(BEGIN)] + text.rstrip('\n') + whole[whole.index(END) + len(END):]
    else:
        whole = whole.rstrip('\n') + '\n\n' + text
    with open(opts.out, 'w') as out:
        out.write(whole)


main()
