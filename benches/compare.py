#!/usr/bin/env python3
"""Tidegate beside HAProxy and nginx, in one run, on loopback. Writes docs/reports/benchmarks.md.

usage: compare.py [--rounds N] [--seconds S] [--only PART,PART] [--write] [--binary FILE] [--against FILE] [--out FILE]

The parts are socket, http, memory, storm, users, callers and core. With --only, the tables of these parts are printed,
and written into their places only with --write.

--against takes an older binary and measures only the two, in turn: CPU a call and memory at rest.

Every peer has its limits switched on and not reached, except the relays, which have none: they show what a proxy costs
that does nothing. All run at once and are measured in turn, so other work on the machine affects all alike; the
results are medians. The load comes from `tidegate bench`, the backend is `tidegate backend`, both on the same two
cores. So calls a second are a figure of the whole system, and the proxy's own CPU a call says more.
"""
import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import peers
from peers import (NOT_REACHED, ROOT, WORK, Backend, bench, cpu_seconds, free_port, haproxy, lab, machine, median, nginx, progress,
                   relay, rss_mb, start, stop, table, tidegate, version)

PARTS = ['socket', 'http', 'memory', 'storm', 'users', 'callers', 'core']
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('--rounds', type=int, default=7)
parser.add_argument('--seconds', type=float, default=1.0, help='of one run')
parser.add_argument('--only', default=','.join(PARTS))
parser.add_argument('--write', action='store_true', help='also what --only measures')
parser.add_argument('--binary', default=peers.BIN, help='the tidegate to measure')
parser.add_argument('--against', help='an older tidegate to measure beside it')
parser.add_argument('--out', default=os.path.join(ROOT, 'docs', 'reports', 'benchmarks.md'))
opts = parser.parse_args()
BIN = peers.BIN = os.path.abspath(opts.binary)


def admin(child, path):
    with urllib.request.urlopen('http://127.0.0.1:%d%s' % (child.admin, path), timeout=10) as reply:
        return json.load(reply)


def waiting(child):
    queue = admin(child, '/v1/queue')
    return queue['depth'] + queue['door']


# What is asked of Tidegate, as a share of HAProxy in the same round: must, and goal.
TARGETS = {
    ('http', 'cpu', 16): (1.00, 0.85), ('http', 'cpu', 64): (1.00, 0.85), ('http', 'cpu', 256): (1.00, 0.85),
    ('http', 'cpu', 'open'): (1.00, 0.85),
    ('http', 'rate', 16): (1.00, 1.15), ('http', 'rate', 64): (1.00, 1.15), ('http', 'rate', 256): (1.00, 1.15),
    ('http', 'added', 1): (1.00, 0.85),
    ('socket', 'cpu', 1): (0.74, 0.65), ('socket', 'cpu', 16): (0.72, 0.68), ('socket', 'cpu', 64): (0.95, 0.85),
    ('socket', 'cpu', 256): (0.83, 0.78),
}
TITLES = {'socket': 'socket protocol, a connection a call', 'http': 'HTTP/1.1 keep-alive'}
RATES = {'socket': 1000, 'http': 5000}
CONNECTIONS = (1, 16, 64, 256)


def speed(protocol):
    rate = RATES[protocol]
    backend = Backend('0ms')
    target = backend.port(protocol)
    mode, ngx = {'socket': ('tcp', 'stream'), 'http': ('http', 'http')}[protocol]

    def ours(name, **options):
        return lambda port: tidegate(name + '-' + protocol, backend, port, NOT_REACHED, **options)
    candidates = [
        ('HAProxy', lambda port: haproxy('haproxy-' + mode, port, target, mode)),
        ('Tidegate', ours('tidegate'))]
    candidates += [
        ('HAProxy, 1 thread', lambda port: haproxy('haproxy1-' + mode, port, target, mode, threads=1)),
        ('nginx', lambda port: nginx('nginx-' + ngx, port, target, ngx)),
        ('Tidegate, 1 thread', ours('tidegate1', threads=1)),
        ('Tidegate, access log', ours('tidegatelog', log='access = true')),
        ('relay of bytes', lambda port: relay('bytes-' + protocol, 'bytes', port, target))]
    name, kind = {'socket': ('relay of one call', 'once'), 'http': ('relay on hyper', 'hyper')}[protocol]
    candidates.append((name, lambda port: relay(kind, kind, port, target)))
    running = {'direct': (target, None)}
    for name, make in candidates:
        port = free_port()
        running[name] = (port, make(port))
    got = {}

    def run(key, name, *args):
        port, child = running[name]
        before = cpu_seconds(child) if child else 0
        report = bench('--protocol', protocol, '--target', '127.0.0.1:%d' % port, '--mix', *args)
        spent = cpu_seconds(child) - before if child else None
        if report['failed'] or report['refused']:
            progress('%s %s: %d failed, %d refused %s' % (name, key, report['failed'], report['refused'], report['failures']))
        entry = got.setdefault((key, name), {'rate': [], 'cpu': [], 'p50': [], 'p99': [], 'bad': 0})
        entry['bad'] += report['failed'] + report['refused']
        entry['rate'].append(report['per_second'])
        entry['cpu'].append(spent / report['ok'] * 100000 if child and report['ok'] else None)
        entry['p50'].append(report['p50_us'])
        entry['p99'].append(report['p99_us'])

    for round_number in range(opts.rounds):
        # Alternates, so that no proxy always follows the same one. Those that are compared most are neighbours.
        order = sorted(running, key=list(running).index, reverse=round_number % 2 == 1)
        for connections in CONNECTIONS:
            for name in order:
                run(connections, name, '--connections', connections, '--seconds', opts.seconds)
        for name in order:
            run('open', name, '--connections', 64, '--rate', rate, '--seconds', opts.seconds * 1.5)
        progress('%s: round %d of %d' % (protocol, round_number + 1, opts.rounds))
    for _, child in running.values():
        if child:
            stop(child)
    backend.stop()
    for (key, name), entry in got.items():
        entry['added'] = [own - direct for own, direct in zip(entry['p50'], got[key, 'direct']['p50'])]

    def cell(key, name, what, digits=2):
        value = median(got[key, name][what])
        return '-' if value is None else '%.*f' % (digits, value)

    def ratios(key, name, what):
        """To HAProxy, round by round."""
        return [own / its for own, its in zip(got[key, name][what], got[key, 'HAProxy'][what]) if own and its and its > 0]

    def ratio(key, name, what):
        return '%.2f' % median(ratios(key, name, what)) if ratios(key, name, what) else '-'

    out = ['### %s\n' % TITLES[protocol], 'Closed loop: calls a second with 1, 16, 64 and 256 connections.\n']
    out.append(table(['', '1', '16', '64', '256', 'failed'], [
        [name] + [cell(key, name, 'rate', 0) for key in CONNECTIONS] + [sum(got[key, name]['bad'] for key in (*CONNECTIONS, 'open'))]
        for name in running]))
    out.append('The proxy\'s CPU seconds for 100,000 calls, closed loop and open loop at %d calls a second; latency of the open loop from the intended start, added to direct.\n' % rate)
    rows = []
    for name in list(running)[1:]:
        row = [name] + [cell(key, name, 'cpu') for key in (*CONNECTIONS, 'open')]
        row += ['%.0f us' % (median(got['open', name][what]) - median(got['open', 'direct'][what])) for what in ('p50', 'p99')]
        rows.append(row + ['%.0f us' % median(got[1, name]['added'])])
    out.append(table(['', 'c=1', '16', '64', '256', '%d/s' % rate, '+p50', '+p99', '+p50 at c=1'], rows))
    out.append('Ratio to HAProxy, round by round, median.\n')
    columns = [('CPU, c=1', 1, 'cpu'), ('16', 16, 'cpu'), ('64', 64, 'cpu'), ('256', 256, 'cpu'), ('%d/s' % rate, 'open', 'cpu'),
               ('calls/s, c=16', 16, 'rate'), ('64', 64, 'rate'), ('256', 256, 'rate'), ('added p50, c=1', 1, 'added')]
    rows = [[name] + [ratio(key, name, what) for _, key, what in columns] for name in list(running)[2:]]
    out.append(table([''] + [title for title, _, _ in columns], rows))
    out.append('Tidegate beside what is asked of it; the range is that of the rounds.\n')
    rows = []
    for title, key, what in columns:
        told = ratios(key, 'Tidegate', what)
        if told and (protocol, what, key) in TARGETS:
            kind = {'cpu': 'CPU a call', 'rate': 'calls/s', 'added': 'added p50'}[what]
            rows.append(['%s, %s' % (kind, '%d/s' % rate if key == 'open' else 'c=%d' % key), '%.2f' % median(told), '%.2f to %.2f' % (min(told), max(told)),
                         *('%.2f' % it for it in TARGETS[protocol, what, key])])
    out.append(table(['÷ HAProxy', 'median', 'range', 'must', 'goal'], rows))
    return out


def against():
    """CPU a call and memory at rest beside an older binary. The order within a round alternates."""
    out = []
    backend = Backend('0ms')
    binaries = {'before': os.path.abspath(opts.against), 'now': BIN}
    running, rest = {}, {}
    for name, binary in binaries.items():
        port = free_port()
        running[name] = (port, tidegate(name, backend, port, NOT_REACHED, binary=binary))
    time.sleep(2)
    for name, (_, child) in running.items():
        rest[name] = rss_mb(child)
    keys = [(protocol, connections) for protocol in ('socket', 'http') for connections in (1, 16, 64, 256)]
    spent = {(key, name): [] for key in keys for name in running}
    bad = 0
    for round_number in range(opts.rounds):
        for key in keys:
            protocol, connections = key
            for name in sorted(running, reverse=round_number % 2 == 1):
                port, child = running[name]
                before = cpu_seconds(child)
                report = bench('--protocol', protocol, '--target', '127.0.0.1:%d' % port, '--mix',
                               '--connections', connections, '--seconds', opts.seconds)
                bad += report['failed'] + report['refused']
                spent[key, name].append((cpu_seconds(child) - before) / report['ok'] * 1e6)
        progress('round %d of %d' % (round_number + 1, opts.rounds))
    rows = []
    for key in keys:
        ratios = [now / before for now, before in zip(spent[key, 'now'], spent[key, 'before'])]
        rows.append(['%s, %d connections' % key] + ['%.2f' % median(spent[key, name]) for name in ('before', 'now')]
                    + ['%.3f' % median(ratios), '%.3f to %.3f' % (min(ratios), max(ratios))])
    out.append('### Beside an older version\n')
    out.append('Before: %s. Now: %s. %d rounds in turn, %d failed calls.\n' % (
        version(binaries['before'], '--version'), version(BIN, '--version'), opts.rounds, bad))
    out.append(table(['', 'CPU a call before, us', 'now, us', 'ratio, median of rounds', 'range'], rows))
    out.append('Memory at rest: %.1f MB before, %.1f MB now.\n' % (rest['before'], rest['now']))
    for _, child in running.values():
        stop(child)
    backend.stop()
    return out


CLOSED = 'window = "300s"\nper_window = "total:1"\nmax_wait = "600s"'


def storm_of(calls, port, protocol='socket'):
    return subprocess.Popen([lab(), 'bench', '--protocol', protocol, '--target', '127.0.0.1:%d' % port, '--storm', str(calls),
                             '--timeout', '25', '--seconds', '25', '--json'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def until_waiting(child, calls):
    """How many wait, as soon as all do."""
    for _ in range(200):
        if waiting(child) >= calls - 2:
            break
        time.sleep(0.1)
    return waiting(child)


def idle(child, port, connections):
    """Memory with connections that have sent nothing."""
    hold = subprocess.Popen([lab(), 'bench', '--target', '127.0.0.1:%d' % port, '--hold', str(connections), '--seconds', '8', '--json'], stdout=subprocess.PIPE)
    time.sleep(5)
    size = rss_mb(child)
    hold.communicate()
    return size


def idle_after_a_call(child, port, connections):
    """Memory with connections that have each had one call answered."""
    request = b'GET /guests/HRX00001/info HTTP/1.1\r\nHost: t\r\nAccept: */*\r\n\r\n'
    clients = []
    for _ in range(connections):
        client = socket.create_connection(('127.0.0.1', port), 30)
        client.sendall(request)
        if b' 200 ' not in client.recv(1 << 16):
            sys.exit('a call was not answered')
        clients.append(client)
    time.sleep(1)
    size = rss_mb(child)
    for client in clients:
        client.close()
    return size


def cpu_of_waiting(child):
    before, since = cpu_seconds(child), time.time()
    time.sleep(10)
    return '%.2f %%' % ((cpu_seconds(child) - before) / (time.time() - since) * 100)


def memory():
    rows, cpu_rows = [], []
    backend, quick = Backend('100ms'), Backend('0ms')
    named = [('Tidegate, socket', 'socket'), ('Tidegate, http', 'http')]
    for number, (name, protocol) in enumerate(named):
        def ours(limits, behind=backend):
            port = free_port()
            return port, tidegate('memory-%d-%d' % (number, port), behind, port, limits, protocol=protocol)
        port, child = ours(CLOSED)
        row = [name, '%.1f' % rss_mb(child), '%.1f' % idle(child, port, 9900), '']
        stop(child)
        if protocol == 'http':
            port, child = ours(NOT_REACHED, quick)
            row[-1] = '%.1f' % idle_after_a_call(child, port, 9900)
            stop(child)
        for calls in (1000, 5000, 9900):
            port, child = ours(CLOSED)
            storm = storm_of(calls, port, protocol)
            count = until_waiting(child, calls)
            row.append('%.1f%s' % (rss_mb(child), '' if count >= calls - 2 else ' (%d)' % count))
            if calls == 5000:
                cpu_rows.append(['in_turn, ' + name, cpu_of_waiting(child)])
            storm.kill()
            storm.wait()
            stop(child)
        rows.append(row)
        progress('memory: ' + name)
    for mode, protocol in (('tcp', 'socket'), ('http', 'http')):
        def theirs(behind=backend, maxconn=1):
            port = free_port()
            return port, haproxy('memory-%s-%d' % (mode, port), port, behind.port(protocol), mode, maxconn=maxconn)
        port, child = theirs()
        row = ['HAProxy, ' + mode, '%.1f' % rss_mb(child), '%.1f' % idle(child, port, 9400), '']
        stop(child)
        if protocol == 'http':
            port, child = theirs(quick, 5000)
            row[-1] = '%.1f' % idle_after_a_call(child, port, 9400)
            stop(child)
        for calls in (1000, 5000, 9400):
            port, child = theirs()
            storm = storm_of(calls, port, protocol)
            time.sleep(5)
            row.append('%.1f' % rss_mb(child))
            storm.kill()
            storm.wait()
            stop(child)
        rows.append(row)
    out = ['### Resident memory\n',
           'MB. 9,900 stands for 10,000, and for HAProxy 9,400: a process here may have 20,000 files. HAProxy opens a backend connection for each idle client in '
           'mode tcp. Asked for: at most 9.5 at rest, and on HTTP 25 with 9,900 idle and 50 with 9,900 waiting; as a goal 8, 20 and 40.\n',
           table(['', 'at rest', '9,900 idle, no call yet', '9,900 idle, after a call', '1,000 waiting', '5,000 waiting', '9,900 waiting'], rows)]
    port = free_port()
    child = tidegate('waiting-jitter', backend, port, CLOSED, protocol='socket')
    stop(child)
    path = os.path.join(WORK, 'waiting-jitter.toml')
    text = open(path).read().replace('postpone = "in_turn"', 'postpone = "jitter"')
    open(path, 'w').write(text)
    jitter = start([BIN, 'serve', '--config', path], 'waiting-jitter.log', [port])
    jitter.admin = child.admin
    storm = storm_of(5000, port)
    until_waiting(jitter, 5000)
    cpu_rows.append(['jitter, socket', cpu_of_waiting(jitter)])
    storm.kill()
    storm.wait()
    stop(jitter)
    backend.stop()
    quick.stop()
    out.append('CPU of the process with 5,000 calls waiting and every limit closed, over 10 s.\n')
    out.append(table(['', 'of one core'], cpu_rows))
    return out


def densest(times, span):
    """The most of sorted times within a half-open span."""
    best, low = 0, 0
    for high, at in enumerate(times):
        while times[low] <= at - span:
            low += 1
        best = max(best, high - low + 1)
    return best


def storm():
    out = ['### The storm\n']
    rows = []
    storm_limits = 'per_window = "total:30"\noutstanding = 10\nmax_wait = "60s"'
    only_outstanding = 'window = "0s"\noutstanding = 10\nmax_wait = "60s"'
    replied = storm_limits + '\nwindow_stamp = "replied"'
    cases = [('300 at once, 30/s, 10 in flight, 50 ms, in_turn', 'in_turn', storm_limits, '50ms', 300, 20, []),
             ('the same, window_stamp = "replied"', 'in_turn', replied, '50ms', 300, 2, []),
             ('the same, jitter', 'jitter', storm_limits, '50ms', 300, 3, []),
             ('every second client leaves after 0.5 s', 'in_turn', storm_limits, '50ms', 300, 3, ['--leave-after', '0.5']),
             ('1,000 at once, 10 in flight, 100 ms', 'in_turn', only_outstanding, '100ms', 1000, 3, [])]
    for title, postpone, limits, delay, calls, runs, extra in cases:
        spans, peaks, dense, own, answered, failed = [], [], [], [], [], []
        for number in range(runs):
            backend, port = Backend(delay), free_port()
            name = 'storm'
            child = tidegate(name, backend, port, limits, protocol='socket', log='access = true\nformat = "json"',
                             queue='')
            if postpone == 'jitter':
                stop(child)
                path = os.path.join(WORK, name + '.toml')
                open(path + 'x', 'w').write(open(path).read().replace('postpone = "in_turn"', 'postpone = "jitter"'))
                child = start([BIN, 'serve', '--config', path + 'x'], name + '.log', [port])
            report = bench('--target', '127.0.0.1:%d' % port, '--storm', calls, *extra)
            seen = backend.seen()
            stop(child)
            backend.stop()
            sent = []
            with open(os.path.join(WORK, name + '.log')) as log:
                for line in log:
                    if '"sent_us":' in line and '"access"' in line:
                        at = json.loads(line).get('sent_us')
                        if at is not None:
                            sent.append(at)
            spans.append(report['makespan_s'])
            peaks.append(seen['peak_in_flight'])
            dense.append(seen['densest_second'])
            own.append(densest(sorted(sent), 1000000))
            answered.append(report['ok'])
            failed.append(report['failed'] + report['refused'])
        rows.append([title, runs, '%d to %d' % (min(answered), max(answered)), sum(failed), '%.2f / %.2f' % (median(spans), max(spans)),
                     max(peaks), max(dense), max(own)])
        progress('storm: ' + title)
    out.append(table(['', 'runs', 'answered', 'failed', 'seconds, median / longest', 'most in flight', "backend's densest second", 'densest second sent'], rows))
    out.append('At best: 9.05 s for 300 at 30/s and 50 ms, 10.0 s for 1,000 with 10 in flight and 100 ms. A window slot comes back 1 s and a guard of 5 ms after a call was sent.\n')
    return out


def access_log(name):
    """The access lines of a process that has ended."""
    with open(os.path.join(WORK, name + '.log')) as log:
        return [json.loads(line) for line in log if '"sent_us":' in line and '"access"' in line]


def users():
    """User calls in a storm of polls: two clients, each with a listener of its own."""
    limits = 'per_window = "total:30"\noutstanding = 10\nmax_wait = "60s"'
    # One caller for all and one class: the last call waits for all others.
    plain = ('class = "polling"', '[callers]\nauto_register = 0\n[[class]]\nname = "polling"\nfunctions = ["guest_start"]')
    rows = []
    for title, (listener, more) in [('users before polls', ('', '')), ('plain order of arrival', plain)]:
        p50, longest, spans, answered, dense = [], [], [], [], []
        for number in range(opts.rounds):
            backend, port, poll = Backend('50ms'), free_port(), free_port()
            poller = '[[listen]]\nname = "poll"\nbind = "127.0.0.1:%d"\nprotocol = "socket"\nclass = "polling"' % poll
            child = tidegate('users', backend, port, limits, protocol='socket', log='access = true\nformat = "json"',
                             listener=listener + '\n' + poller, more=more)
            storm = subprocess.Popen([lab(), 'bench', '--json', '--target', '127.0.0.1:%d' % poll, '--storm', '300'],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(1000):
                if waiting(child) >= 200:
                    break
                time.sleep(0.01)
            else:
                sys.exit('the storm does not come: %s' % admin(child, '/v1/queue'))
            user = bench('--target', '127.0.0.1:%d' % port, '--function', 'guest_start', '--userid', 'OTHER',
                         '--connections', 12, '--rate', 20, '--calls', 12)
            polls = json.loads(storm.communicate()[0])
            seen = backend.seen()
            stop(child)
            backend.stop()
            waits = sorted(line['queue_ms'] / 1000 for line in access_log('users') if line['listener'] == 'bench')
            if len(waits) != 12:
                sys.exit('%d of 12 user calls are in the log' % len(waits))
            p50.append(statistics.median(waits))
            longest.append(waits[-1])
            spans.append(polls['makespan_s'])
            answered.append(user['ok'] + polls['ok'])
            dense.append(seen['densest_second'])
        rows.append([title, opts.rounds, '%d to %d' % (min(answered), max(answered)), '%.2f / %.2f' % (median(p50), max(p50)),
                     '%.2f' % max(longest), '%.2f' % median(spans), max(dense)])
        progress('users: ' + title)
    return ['### User calls in a storm of polls\n',
            '300 polls at once on a listener of their own; then 12 calls of guest_start, one each 50 ms, on another; 30/s, 10 in flight, 50 ms each. '
            'Asked for: a p50 below 1 s, where plain order of arrival has 9.6 s. Waits are those in the queue, by the access log.\n',
            table(['', 'runs', 'answered, of 312', "users' p50 wait, median / worst run", 'longest', "seconds of the polls", "backend's densest second"], rows)]


class Agents:
    """Sends calls over one HTTP connection, each with a given user agent."""

    def __init__(self, port):
        self.socket = socket.create_connection(('127.0.0.1', port), 30)
        self.left = b''

    def send(self, agents, call='guest_list'):
        """All at once; returns when all are answered."""
        body = '["%s",["HRX00001"],{}]' % call
        self.socket.sendall(''.join(
            'POST / HTTP/1.1\r\nHost: t\r\nUser-Agent: %s\r\nContent-Length: %d\r\n\r\n%s' % (agent, len(body), body)
            for agent in agents).encode())
        for _ in agents:
            self.answer()

    def answer(self):
        while b'\r\n\r\n' not in self.left:
            self.more()
        head, self.left = self.left.split(b'\r\n\r\n', 1)
        if b' 200 ' not in head.split(b'\r\n')[0]:
            sys.exit('answered %s' % head)
        length = int(re.search(rb'(?i)content-length: *(\d+)', head).group(1))
        while len(self.left) < length:
            self.more()
        self.left = self.left[length:]

    def more(self):
        got = self.socket.recv(1 << 16)
        if not got:
            sys.exit('the connection was closed')
        self.left += got


def metric(child, name):
    with urllib.request.urlopen('http://127.0.0.1:%d/metrics' % child.admin, timeout=10) as reply:
        return sum(float(line.rsplit(' ', 1)[1]) for line in reply.read().decode().splitlines() if line.startswith(name))


def at_pace(agents, per_second, seconds, child, prefix):
    """New agents in every second for a time; the memory of the process at the end of each."""
    sizes, began, made = [], time.time(), 0
    for second in range(seconds):
        for tenth in range(10):
            agents.send(['%s/%d' % (prefix, made + n) for n in range(per_second // 10)])
            made += per_second // 10
            time.sleep(max(0, began + second + (tenth + 1) / 10 - time.time()))
        sizes.append(rss_mb(child))
    return sizes, made / (time.time() - began)


# A call of each, so that every caller has counted all of them.
FUNCTIONS = ['guest_list', 'guest_get_info', 'host_get_info', 'guest_get_power_state', 'guest_get_user_direct', 'image_query',
             'guest_get_adapters_info', 'host_diskpool_get_info', 'vswitch_get_list', 'volume_attach', 'guest_start', 'guest_stop']


# Seconds. The table of statistics grows once more after half a minute, when it has evicted as many rows as it holds.
ROTATION = 90


def range_of(sizes):
    half = sizes[len(sizes) // 2:]
    return '%.1f to %.1f MB in the second half' % (min(half), max(half))


def callers():
    """The memory of the real process for callers, and the cost of a look-up."""
    backend = Backend('0ms')
    rows = []
    port = free_port()
    many = '[callers]\nauto_register = 10000\nauto_register_per_s = 1000'
    child = tidegate('callers', backend, port, NOT_REACHED, more=many)
    agents = Agents(port)
    agents.send(['warm'] * 2000)
    before = rss_mb(child)
    at_pace(agents, 990, 11, child, 'python-requests/2.31.0 worker')
    registered = metric(child, 'tidegate_callers_registered{kind="auto"}')
    one = rss_mb(child)
    for call in FUNCTIONS:
        for first in range(1000, 10890, 100):
            agents.send(['python-requests/2.31.0 worker/%d' % n for n in range(first, min(first + 100, 10890))], call)
    dozen = rss_mb(child)
    for what, now in [('a call of each', one), ('calls of 12 functions of each', dozen)]:
        rows.append(['%d auto-registered callers, %s' % (registered, what), '%.1f' % before, '%.1f' % now,
                     '%.1f KB a caller' % ((now - before) * 1024 / registered), '100 MB for 10,000'])
    progress('callers: 10,000')
    evicted = metric(child, 'tidegate_callers_evicted_total')
    sizes, pace = at_pace(agents, 1000, ROTATION, child, 'rotates')
    evicted = metric(child, 'tidegate_callers_evicted_total') - evicted
    rows.append(['%.0f agents a second that rotate, for %d s; the table full, %d registered and as many evicted' % (pace, ROTATION, evicted),
                 '%.1f' % dozen, '%.1f' % sizes[-1], range_of(sizes), 'flat'])
    stop(child)
    port = free_port()
    child = tidegate('callers-usual', backend, port, NOT_REACHED)
    agents = Agents(port)
    agents.send(['warm'] * 2000)
    before = rss_mb(child)
    sizes, pace = at_pace(agents, 1000, ROTATION, child, 'rotates')
    registered = metric(child, 'tidegate_callers_registered{kind="auto"}')
    rows.append(['%.0f agents a second that rotate, for %d s; as configured by default, %d rows' % (pace, ROTATION, registered),
                 '%.1f' % before, '%.1f' % sizes[-1], range_of(sizes), 'flat'])
    stop(child)
    backend.stop()
    progress('callers: rotation')
    out = ['### Callers: memory of the whole process\n', 'MB resident, of the real process with a backend behind it.\n',
           table(['', 'before', 'after', '', 'asked for'], rows)]
    return out + costs_of_callers()


def cargo_bench(*args):
    done = subprocess.run(['cargo', 'bench', '-q', *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit('cargo bench %s: %s' % (args, done.stderr.decode()))
    return done.stdout.decode()


def timings(text):
    """The results that a bench printed: median and minimum in nanoseconds, by name, with the heading above it, if any."""
    found, heading = {}, ''
    for line in text.splitlines():
        told = re.match(r'(\s*)(.*?)\s+([\d.]+) ns, at least\s+([\d.]+) ns', line)
        if told:
            found[(heading + ': ' if told.group(1) else '') + told.group(2)] = float(told.group(3)), float(told.group(4))
        elif re.match(r'\w+: ', line):
            heading = line.split(':')[0]
    return found


def nanoseconds(median_and_least):
    def told(value):
        return '%.1f us' % (value / 1000) if value >= 1000 else '%.0f ns' % value if value >= 20 else '%.1f ns' % value
    return '%s (%s)' % tuple(map(told, median_and_least))


def costs_of_callers():
    """Beside the figures of the design's source. They are from another machine, so only their order of magnitude counts."""
    core = timings(cargo_bench('-p', 'tidegate-limits', '--bench', 'scheduler'))
    table_of = timings(cargo_bench('-p', 'tidegate-callers', '--bench', 'callers'))
    usage = timings(cargo_bench('-p', 'tidegate-callers', '--bench', 'usage'))
    whole = cargo_bench('--bench', 'callers')
    rows = [['a bucket admits a call', nanoseconds(core['bucket: take that passes']), '118 ns', 'below 50 ns'],
            ['a bucket refuses', nanoseconds(core['bucket: take that does not']), '102 ns', 'below 50 ns']]
    source = {10: '118 ns; 0.5 us', 100: '204 ns; 3.5 us', 1000: '272 ns; 22.9 us', 10000: '137 ns; 216 us'}
    for patterns in (10, 100, 1000, 10000):
        told = [nanoseconds(table_of['%s: %s patterns, %s' % (mix, format(patterns, ''), what)])
                for mix in ('registered', 'mixed') for what in ('hit', 'miss')]
        rows.append(['the caller of a call, of %s patterns: exact ones, hit and miss; of all kinds, hit and miss' % format(patterns, ','),
                     ', '.join(told), source[patterns], 'below 1 us'])
    rows.append(['the worst possible patterns, 10,000 nested prefixes', nanoseconds(table_of['nested: 10000 patterns, hit']), '', ''])
    rows.append(['a caller registers, and another is evicted for it; 10,000 in the table', nanoseconds(table_of['full: every call registers one and forgets one']),
                 '3468 us', ''])
    rows.append(['a call is counted, of 10 functions', nanoseconds(usage['count a call, 29 a second, 10 functions']), '10 ns, without windows', ''])
    rows.append(['a call arrives, is admitted, ends; no call waits', nanoseconds(core['submit + next + sent + finish, 0 waiting, 1 callers, 1 classes']),
                 '121 ns for its bucket alone', ''])
    rows.append(['a rate limit is changed, 1,000 waiting for it', nanoseconds(core['set_bucket, 1000 waiting']),
                 'waits until they have run: 2.0 s for 20', 'below 10 ms'])
    rows.append(['a rate limit is removed, 1,000 waiting for it', nanoseconds(core['remove_bucket, 1000 waiting']), 'the same', 'below 10 ms'])
    return ['### Callers: what they cost a call\n',
            'Medians, and the minimum in brackets, of `cargo bench -p tidegate-limits --bench scheduler` and `cargo bench -p tidegate-callers`, on one thread. Beside them the library of '
            'xen-api (e2ee48d6883e) for the same, in OCaml 4.13.1 on another machine of two cores: a look-up with a hit in its cache of 100, and one with a miss.\n',
            table(['', 'Tidegate', 'xen-api', 'asked for'], rows),
            'All of it for one call, from `cargo bench --bench callers`: a claim (the caller, the cost, the charge, the count), and the result, in ns.\n',
            '```text\n%s\n```\n' % whole.strip()]


def core():
    done = subprocess.run(['cargo', 'bench', '-q', '-p', 'tidegate-limits', '--bench', 'scheduler'], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    text = done.stdout.decode().strip()
    out = ['### The scheduler alone\n', '```text\n%s\n```\n' % text]
    if shutil.which('valgrind'):
        build = subprocess.run(['cargo', 'bench', '-p', 'tidegate-limits', '--bench', 'scheduler', '--no-run', '--message-format', 'json'],
                               cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        binary = [json.loads(line).get('executable') for line in build.stdout.decode().splitlines() if '"executable":"' in line]
        if binary:
            counts = {}
            for rounds in (1000, 11000):
                run = subprocess.run(['valgrind', '--tool=callgrind', '--callgrind-out-file=/dev/null', binary[-1], '--count', str(rounds)],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                for line in run.stderr.decode().splitlines():
                    if 'Collected' in line:
                        counts[rounds] = int(line.split(':')[1])
            if len(counts) == 2:
                out.append('Instructions of one call (submit, next, sent, next, finish, next) with 10,000 waiting, counted by callgrind: %d.\n' % ((counts[11000] - counts[1000]) / 10000))
    return out


def sections(text):
    """The text above the first heading of the third level, and each section with its heading."""
    return [it.rstrip() + '\n\n' for it in re.split(r'(?m)^(?=### )', text)]


def heading(section):
    return section.split('\n')[0][4:]


def measured(body, parts, began):
    """Replaces what was measured in the file of benchmarks, and keeps the rest."""
    load = os.getloadavg()[0]
    stamp = '%s, %s, load average %.1f at the end' % (version(BIN, '--version'), time.strftime('%Y-%m-%d'), load)
    head = ['# Benchmarks\n',
            'Measured by `make bench` (%s), %s: %s, loopback only; load average %.1f at the end. %d rounds of %.1f s a run, medians. '
            'Load, proxy and backend share the cores.\n' % (version(BIN, '--version'), time.strftime('%Y-%m-%d'), machine(), load, opts.rounds, opts.seconds),
            'Peers: %s; %s. With two threads or workers if nothing else is said, limits on and not reached, no access log. Took %.0f s.\n' % (
                version('haproxy', '-v'), version('nginx', '-v'), time.time() - began),
            'Relays: `tidegate-lab relay`, on one thread. Of bytes: each client has a connection of its own at the backend. '
            'Of one call: what a client sends first, and the reply to its end. On hyper: hyper on both sides. '
            'None has limits, deadlines or a log, so they show what a proxy costs that does nothing.\n']
    old_head, old, by_hand = '', [], ''
    if os.path.exists(opts.out):
        # From the first heading of the second level on, the text is from other benchmarks.
        made, *others = re.split(r'(?m)^(?=## )', open(opts.out).read())
        old_head, *old = sections(made)
        by_hand = ''.join(others)
    new = sections('\n'.join(body))[1:]
    if parts == PARTS:
        # Keep the section that is written by hand.
        text = '\n'.join(head) + '\n' + ''.join([it for it in old if heading(it) == 'What the figures say'] + new)
    else:
        # Keep what is not measured now. New sections say when they were measured.
        new = {heading(it): it.replace('\n', '\n\nMeasured by itself: %s.\n' % stamp, 1) for it in new}
        known = [heading(it) for it in old]
        kept = [new.get(heading(it), it) for it in old]
        text = (old_head or '\n'.join(head) + '\n') + ''.join(kept + [it for it in new.values() if heading(it) not in known])
    with open(opts.out, 'w') as out:
        out.write((text.rstrip() + '\n\n' + by_hand).rstrip() + '\n')
    progress('written to ' + opts.out)


def main():
    parts = opts.only.split(',')
    unknown = set(parts) - set(PARTS)
    if unknown:
        sys.exit('not a part: %s; the parts are %s' % (', '.join(sorted(unknown)), ', '.join(PARTS)))
    began = time.time()
    if opts.against:
        parts, body = [], against()
    else:
        body = []
        run = {'memory': memory, 'storm': storm, 'users': users, 'callers': callers, 'core': core}
        for name in PARTS:
            if name in parts:
                body += speed(name) if name in TITLES else run[name]()
                progress(name + ' done')
    if parts == PARTS or opts.write:
        measured(body, parts, began)
    else:
        print('\n'.join(body))


main()
