#!/usr/bin/env python3
"""Where the cost of a call is: Tidegate, HAProxy and the bare proxies, in the same rounds. Prints tables in Markdown.

usage: profile.py [--rounds N] [--seconds S] [--protocols http,socket] [--only time,calls,counts,variants] [--binary FILE]

`time` is the time in user space and in the kernel, round by round. `calls` is what perf counts in a run of its own, because
to count system calls makes each slower: system calls, switches of context, page faults. `counts` is what callgrind counts
between two numbers of calls, in user space only: instructions, allocations, and misses in a model of this machine's caches.
`variants` changes one thing of Tidegate at a time.

The binary needs its symbols (`make bench-profile` builds it so).
"""
import argparse
import os
import re
import shutil
import subprocess
import time

import callgrind
import peers
from peers import (NOT_REACHED, WORK, Backend, bench, cpu_seconds, family, free_port, haproxy, median, progress,
                   relay, stop, table, tidegate, version)

PARTS = ['time', 'calls', 'counts', 'variants']
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('--rounds', type=int, default=7)
parser.add_argument('--seconds', type=float, default=1.0, help='of one run')
parser.add_argument('--protocols', default='http,socket')
parser.add_argument('--only', default=','.join(PARTS))
parser.add_argument('--binary', default=peers.BIN, help='the tidegate to measure')
parser.add_argument('--other', action='append', default=[], metavar='NAME=FILE', help='another build of Tidegate, as a variant')
opts = parser.parse_args()
BIN = peers.BIN = os.path.abspath(opts.binary)
CONNECTIONS = (1, 16, 64, 256)
# What is measured: closed loops, then a steady rate over few and over many connections. At that rate hardly two calls
# are in flight at once, so its difference is what a connection costs, and not a call.
RATE = {'http': 5000, 'socket': 1000}
LOADS = {'c=%d' % it: ['--connections', it] for it in CONNECTIONS}
STEADY = (16, 256)
FEW, MANY = 1000, 4000
# The sizes of the first and second level of a core of the machine that decision 0025 was measured on. The third is
# larger than all that a proxy uses.
CACHES = ['--cache-sim=yes', '--I1=32768,8,64', '--D1=49152,12,64', '--LL=1048576,16,64']
# Those that a proxy makes for a call; the rest has a column of its own.
SYSTEM_CALLS = {'epoll_wait': ['epoll_wait', 'epoll_pwait'], 'recv': ['recvfrom', 'read', 'readv', 'recvmsg'],
                'send': ['sendto', 'write', 'writev', 'sendmsg'], 'epoll_ctl': ['epoll_ctl']}


def candidates(protocol, backend):
    """Each proxy: its name, and what starts it on a port, perhaps under a tool."""
    target = backend.port(protocol)
    mode = {'socket': 'tcp', 'http': 'http'}[protocol]

    def ours(name, **options):
        return lambda port, under=(): tidegate('%s-%s-%d' % (name, protocol, port), backend, port, NOT_REACHED, under=under, **options)

    def bare(kind):
        return lambda port, under=(): relay('%s-%d' % (kind, port), kind, port, target, under=under)
    found = [('HAProxy, 2 threads', lambda port, under=(): haproxy('haproxy2-%s-%d' % (mode, port), port, target, mode, under=under)),
             ('HAProxy, 1 thread', lambda port, under=(): haproxy('haproxy1-%s-%d' % (mode, port), port, target, mode, threads=1, under=under)),
             ('Tidegate', ours('tidegate'))]
    if protocol == 'http':
        found.append(('relay on hyper', bare('hyper')))
    else:
        found.append(('relay of one call', bare('once')))
    found.append(('relay of bytes', bare('bytes')))
    return found


class Usage:
    """What a process has used so far, all its threads together."""

    def __init__(self, child):
        self.user = self.kernel = self.faults = self.switches = 0
        self.seconds = cpu_seconds(child)
        for pid in family(child.pid):
            with open('/proc/%d/stat' % pid) as it:
                fields = it.read().rsplit(')', 1)[1].split()
            self.user += int(fields[11])
            self.kernel += int(fields[12])
            self.faults += int(fields[7])
            for task in os.listdir('/proc/%d/task' % pid):
                try:
                    with open('/proc/%d/task/%s/status' % (pid, task)) as it:
                        self.switches += sum(map(int, re.findall(r'ctxt_switches:\s+(\d+)', it.read())))
                except OSError:
                    # The thread has ended since it was listed.
                    pass


def loads(protocol, closed):
    """The columns of a table: what each is called, and the load."""
    found = {key: args for key, args in LOADS.items() if key in closed}
    return {**found, **{'%d/s, c=%d' % (RATE[protocol], it): ['--connections', it, '--rate', RATE[protocol]] for it in STEADY}}


def load(protocol, port, *args):
    report = bench('--protocol', protocol, '--target', '127.0.0.1:%d' % port, '--mix', *args)
    if report['failed'] or report['refused']:
        progress('%d failed, %d refused %s' % (report['failed'], report['refused'], report['failures']))
    return report


class Spent:
    """What the calls of several rounds took."""

    def __init__(self):
        self.micros, self.rates, self.opened = [], [], []
        self.user = self.kernel = self.switches = self.faults = self.calls = 0

    def add(self, before, after, calls, rate, opened):
        self.micros.append((after.seconds - before.seconds) / calls * 1e6)
        self.rates.append(rate)
        self.opened.append(opened / calls)
        self.user += after.user - before.user
        self.kernel += after.kernel - before.kernel
        self.switches += after.switches - before.switches
        self.faults += after.faults - before.faults
        self.calls += calls

    def share(self):
        """Of user space. Ticks are few in one round, so it is that of all rounds."""
        return self.user / max(1, self.user + self.kernel)

    def told(self):
        total = median(self.micros)
        return '%.1f = %.1f + %.1f' % (total, total * self.share(), total * (1 - self.share()))


def rounds(protocol, backend, found, columns, what):
    """Runs every proxy in turn, under each load."""
    running = {}
    for name, make in found:
        port = free_port()
        running[name] = (port, make(port))
    got = {(key, name): Spent() for key in columns for name in running}
    for round_number in range(opts.rounds + 1):
        for key, args in columns.items():
            # The order alternates, so that no proxy always follows the same one.
            for name in sorted(running, reverse=round_number % 2 == 1):
                port, child = running[name]
                opened, before = backend.seen()['connections'], Usage(child)
                report = load(protocol, port, *args, '--seconds', opts.seconds)
                # The first round warms up.
                if round_number:
                    opened = backend.seen()['connections'] - opened
                    got[key, name].add(before, Usage(child), report['ok'], report['per_second'], opened)
        progress('%s %s: round %d of %d' % (protocol, what, round_number, opts.rounds))
    for _, child in running.values():
        stop(child)
    return got


def compared(got, keys, names, to):
    """The tables of a set of rounds."""
    def ratio(key, name, what):
        return '%.2f' % median([own / its for own, its in zip(getattr(got[key, name], what), getattr(got[key, to], what))])
    closed = [key for key in keys if key in LOADS]
    busiest = closed[-1]
    return [
        'CPU of the proxy a call in us: all = in user space + in the kernel.\n',
        table(['', *keys], [[name] + [got[key, name].told() for key in keys] for name in names]),
        'CPU a call as a share of %s in the same round.\n' % to,
        table(['', *keys], [[name] + [ratio(key, name, 'micros') for key in keys] for name in names]),
        'Calls a second, and as a share of %s; a call at %s: connections opened at the backend, page faults.\n' % (to, busiest),
        table(['', *closed, *('share, ' + it for it in closed), 'opened', 'page faults'],
              [[name] + ['%.0f' % median(got[key, name].rates) for key in closed] + [ratio(key, name, 'rates') for key in closed]
               + ['%.3f' % median(got[busiest, name].opened), '%.3f' % (got[busiest, name].faults / got[busiest, name].calls)] for name in names]),
        'Switches of context a call.\n',
        table(['', *keys], [[name] + ['%.2f' % (got[key, name].switches / got[key, name].calls) for key in keys] for name in names])]


def times(protocol):
    backend = Backend('0ms')
    found = candidates(protocol, backend)
    columns = loads(protocol, LOADS)
    got = rounds(protocol, backend, found, columns, 'time')
    backend.stop()
    return compared(got, list(columns), [name for name, _ in found], 'HAProxy, 2 threads')


def system_calls(protocol):
    """Counted by perf while the load runs."""
    if not shutil.which('perf'):
        return ['perf is not here: no system calls were counted.\n']
    backend = Backend('0ms')
    found = candidates(protocol, backend)
    names = [name for group in SYSTEM_CALLS.values() for name in group]
    events = ['raw_syscalls:sys_enter'] + ['syscalls:sys_enter_' + name for name in names]
    rows = []
    for name, make in found:
        port = free_port()
        child = make(port)
        load(protocol, port, '--connections', 16, '--calls', 2000)
        row = [name]
        for args in LOADS.values():
            counter = subprocess.Popen(['perf', 'stat', '-x', ',', '-e', ','.join(events), '-p', ','.join(map(str, family(child.pid)))],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            time.sleep(0.5)
            report = load(protocol, port, *args, '--seconds', opts.seconds)
            counter.send_signal(2)
            count = {}
            for line in counter.communicate()[1].splitlines():
                fields = line.split(',')
                if len(fields) > 2 and fields[0].isdigit():
                    count[fields[2].split('sys_enter')[1].lstrip('_')] = int(fields[0]) / report['ok']
            groups = {group: sum(count.get(it, 0) for it in those) for group, those in SYSTEM_CALLS.items()}
            row.append('%.1f: %s' % (count.get('', 0), ', '.join('%.2f' % it for it in groups.values())))
        stop(child)
        rows.append(row)
        progress('%s calls: %s' % (protocol, name))
    backend.stop()
    return ['System calls a call: all, and of them %s.\n' % ', '.join(SYSTEM_CALLS), table(['', *LOADS], rows)]


def under_callgrind(protocol, make, connections, calls):
    profile = os.path.join(WORK, 'profile')
    port = free_port()
    child = make(port, under=['valgrind', '--tool=callgrind', '--callgrind-out-file=' + profile, *CACHES])
    load(protocol, port, '--connections', connections, '--calls', calls, '--seconds', 300)
    stop(child)
    return callgrind.counts(profile)


def counted(protocol):
    if not shutil.which('valgrind'):
        return ['valgrind is not here: nothing was counted.\n']
    backend = Backend('0ms')
    # Threads take turns under valgrind, so one is enough.
    found = [(name, make) for name, make in candidates(protocol, backend) if name != 'HAProxy, 2 threads']
    keys, rows, by_stage = (1, 64, 256), [], {}
    for name, make in found:
        row = [name]
        for key in keys:
            few, many = (under_callgrind(protocol, make, key, calls) for calls in (FEW, MANY))
            events = many[0]
            own = {}
            for function in set(few[1]) | set(many[1]):
                none = [0] * len(events)
                own[function] = [(more - less) / (MANY - FEW) for more, less in zip(many[1].get(function, none), few[1].get(function, none))]
            total = dict(zip(events, map(sum, zip(*own.values()))))
            allocations = sum(many[2].get(it, 0) - few[2].get(it, 0) for it in many[2] if callgrind.ALLOCATES.match(it)) / (MANY - FEW)
            row.append('%d; %.1f; %d; %d; %d' % (round(total['Ir']), abs(allocations), round(total['I1mr']), round(total['D1mr'] + total['D1mw']),
                                                 round(total['ILmr'] + total['DLmr'] + total['DLmw'])))
            if name == 'Tidegate':
                for function, costs in own.items():
                    costs = dict(zip(events, costs))
                    of_stage = by_stage.setdefault(callgrind.stage_of(function), {}).setdefault(key, [0, 0, 0])
                    of_stage[0] += costs['Ir']
                    of_stage[1] += costs['D1mr'] + costs['D1mw']
                    of_stage[2] += costs['ILmr'] + costs['DLmr'] + costs['DLmw']
        rows.append(row)
        progress('%s counts: %s' % (protocol, name))
    backend.stop()
    order = [stage for stage, _ in callgrind.STAGES] + ['the rest: std, the C library']
    stages = [[stage] + ['%d; %d; %d' % tuple(map(round, by_stage[stage].get(key, (0, 0, 0)))) for key in keys] for stage in order if stage in by_stage]
    return ['In user space, a call: instructions; allocations; misses of the first level, instructions and data; misses of the second level.\n',
            table([''] + ['c=%d' % key for key in keys], rows),
            'Tidegate by stage: instructions; misses of data in the first level; misses of the second level.\n',
            table([''] + ['c=%d' % key for key in keys], stages)]


def variants(protocol):
    """One thing of Tidegate at a time."""
    backend = Backend('0ms')

    def ours(name, env=None, binary=None, **options):
        def make(port):
            return tidegate('%s-%d' % (name, port), backend, port, NOT_REACHED, env=env, binary=binary, **options)
        return make
    found = [('as above', ours('plain'))]
    if protocol == 'http':
        found += [('the default: 64 workers, and as many idle connections', ours('usual', workers=64, lines={'backend': ''})),
                  ('64 idle connections', ours('pool64', lines={'backend': 'pool_max_idle = 64'})),
                  ('4,096 idle connections', ours('pool4096', lines={'backend': 'pool_max_idle = 4096'}))]
    found += [('16 workers', ours('workers16', workers=16)),
              ('allocator: no cache of a thread', ours('tcache', env={'_RJEM_MALLOC_CONF': 'tcache:false'})),
              ('allocator: never returns pages', ours('decay', env={'_RJEM_MALLOC_CONF': 'dirty_decay_ms:-1,muzzy_decay_ms:-1'})),
              ('1 thread', ours('threads1', threads=1))]
    for other in opts.other:
        name, binary = other.split('=', 1)
        found.append((name, ours(name.replace(' ', '-'), binary=os.path.abspath(binary))))
    columns = loads(protocol, ('c=16', 'c=64', 'c=256'))
    got = rounds(protocol, backend, found, columns, 'variants')
    backend.stop()
    return compared(got, list(columns), [name for name, _ in found], 'as above')


def main():
    print('Measured by `make bench-profile` (%s; %s), %s, %d rounds of %.1f s a run, medians.\n' % (
        version(BIN, '--version'), version('haproxy', '-v').split(' - ')[0], time.strftime('%Y-%m-%d'), opts.rounds, opts.seconds))
    for protocol in opts.protocols.split(','):
        for name, part in (('time', times), ('calls', system_calls), ('counts', counted), ('variants', variants)):
            if name in opts.only.split(','):
                print('### %s: %s\n' % ({'http': 'HTTP', 'socket': 'The socket protocol'}[protocol], name))
                print('\n'.join(part(protocol)), flush=True)


main()
