#!/usr/bin/env python3
"""Tidegate beside HAProxy and nginx, in one run, on loopback. Writes docs/benchmarks.md.

usage: compare.py [--rounds N] [--seconds S] [--only speed,memory,storm,users,callers,core] [--binary FILE]
                  [--against FILE] [--out FILE]

--against takes an older binary and measures only the two, in turn: CPU a call and memory at rest.

Every peer has its limits switched on and not reached. All of them run at once and are measured
in turn, so other work on the machine affects all alike; the results are medians. The load comes
from `tidegate bench`, the backend is `tidegate backend`, both on the same two cores. So calls a
second are a figure of the whole system, and the proxy's own CPU a call says more.
"""
import argparse
import json
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.join(ROOT, 'target', 'release', 'tidegate')
TICKS = os.sysconf('SC_CLK_TCK')
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('--rounds', type=int, default=3)
parser.add_argument('--seconds', type=float, default=2.5, help='of one run')
parser.add_argument('--only', default='speed,memory,storm,users,callers,core')
parser.add_argument('--binary', default=BIN, help='the tidegate to measure')
parser.add_argument('--against', help='an older tidegate to measure beside it')
parser.add_argument('--out', default=os.path.join(ROOT, 'docs', 'benchmarks.md'))
opts = parser.parse_args()
BIN = os.path.abspath(opts.binary)
WORK = tempfile.mkdtemp(prefix='tidegate-bench-')
CHILDREN = []


def free_port():
    with socket.socket() as it:
        it.bind(('127.0.0.1', 0))
        return it.getsockname()[1]


def start(args, log, ports, env=None):
    out = open(os.path.join(WORK, log), 'wb')
    child = subprocess.Popen(args, stdout=out, stderr=out, cwd=WORK, env=env)
    CHILDREN.append(child)
    for port in ports:
        for _ in range(200):
            if child.poll() is not None:
                sys.exit('%s ended: %s' % (args, open(os.path.join(WORK, log)).read()))
            try:
                socket.create_connection(('127.0.0.1', port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            sys.exit('%s does not listen on %d' % (args, port))
    return child


def stop(child):
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def family(pid):
    """A process and its children: nginx works in them."""
    pids = [pid]
    for task in os.listdir('/proc/%d/task' % pid):
        with open('/proc/%d/task/%s/children' % (pid, task)) as it:
            for child in it.read().split():
                pids += family(int(child))
    return pids


def cpu_seconds(child):
    total = 0
    for pid in family(child.pid):
        with open('/proc/%d/stat' % pid) as it:
            fields = it.read().rsplit(')', 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def rss_mb(child):
    total = 0
    for pid in family(child.pid):
        with open('/proc/%d/status' % pid) as it:
            for line in it:
                if line.startswith('VmRSS'):
                    total += int(line.split()[1])
    return total / 1024


def bench(*args):
    done = subprocess.run([BIN, 'bench', '--json', *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if not done.stdout:
        sys.exit('bench %s: %s' % (args, done.stderr.decode()))
    return json.loads(done.stdout)


def tidegate(name, backend_socket, backend_http, listen, limits, queue='', threads=1, log='access = false', protocol='auto', listener='', more='', binary=None):
    binary = binary or BIN
    admin = free_port()
    path = os.path.join(WORK, name + '.toml')
    with open(path, 'w') as out:
        out.write('''
[server]
threads = %d
max_connections = 20000
[[listen]]
name = "bench"
bind = "127.0.0.1:%d"
protocol = "%s"
%s
[client]
idle_timeout = "10m"
request_timeout = "10m"
[backend]
kind = "zvm"
socket = "127.0.0.1:%d"
http = "http://127.0.0.1:%d"
pool_max_idle = 512
[queue]
capacity = 20000
workers = 8192
postpone = "in_turn"
%s
[limits]
%s
[admin]
bind = "127.0.0.1:%d"
[log]
%s
%s
''' % (threads, listen, protocol, listener, backend_socket, backend_http, queue, limits, admin, log, more))
    checked = subprocess.run([binary, 'check', '--config', path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if checked.returncode and b'backend.kind' in checked.stderr:
        # A version with only one kind of backend.
        text = open(path).read().replace('kind = "zvm"\n', '')
        open(path, 'w').write(text)
    child = start([binary, 'serve', '--config', path], name + '.log', [listen, admin])
    child.admin = admin
    return child


NOT_REACHED = 'smapi_rate_limit_per_window = "total:1000000"\nsmapi_max_outstanding_requests = 5000\nsmapi_request_postpone_threshold_seconds = 50'


def haproxy(name, listen, target, mode, maxconn=5000, threads=2):
    path = os.path.join(WORK, name + '.cfg')
    track = {'tcp': 'tcp-request connection track-sc0 src\n  tcp-request connection reject if { sc_conn_rate(0) gt 5000000 }',
             'http': 'http-request track-sc0 src\n  http-request deny if { sc_http_req_rate(0) gt 5000000 }'}[mode]
    rate = {'tcp': 'conn_rate(1s)', 'http': 'http_req_rate(1s)'}[mode]
    with open(path, 'w') as out:
        out.write('''global
  maxconn 9500
  nbthread %d
defaults
  mode %s
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout queue 600s
  timeout http-keep-alive 600s
  timeout http-request 600s
frontend f
  bind 127.0.0.1:%d backlog 4096
  stick-table type ip size 100k expire 10s store %s
  %s
  default_backend b
backend b
  %s
  server s 127.0.0.1:%d maxconn %d
''' % (threads, mode, listen, rate, track, 'http-reuse always' if mode == 'http' else '', target, maxconn))
    return start(['haproxy', '-db', '-f', path], name + '.log', [listen])


def nginx(name, listen, target, mode):
    path = os.path.join(WORK, name + '.conf')
    module = '/usr/lib/nginx/modules/ngx_stream_module.so'
    load = 'load_module %s;' % module if mode == 'stream' and os.path.exists(module) else ''
    body = {
        'stream': '''stream {
  limit_conn_zone $server_port zone=c:1m;
  server { listen 127.0.0.1:%d backlog=4096; limit_conn c 9000; proxy_pass 127.0.0.1:%d; }
}''' % (listen, target),
        'http': '''http {
  access_log off;
  limit_req_zone $server_port zone=r:1m rate=1000000r/s;
  limit_conn_zone $server_port zone=c:1m;
  keepalive_requests 100000000;
  upstream b { server 127.0.0.1:%d; keepalive 512; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:%d backlog=4096;
    location / {
      limit_req zone=r burst=100000 nodelay;
      limit_conn c 9000;
      proxy_pass http://b;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }
  }
}''' % (target, listen)}[mode]
    with open(path, 'w') as out:
        out.write('''%s
daemon off;
worker_processes 2;
pid %s/%s.pid;
error_log %s/%s.err;
worker_rlimit_nofile 20000;
events { worker_connections 10000; }
%s
''' % (load, WORK, name, WORK, name, body))
    return start(['nginx', '-c', path, '-p', WORK], name + '.log', [listen])


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def table(head, rows):
    lines = ['| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)]
    lines += ['| ' + ' | '.join(str(cell) for cell in row) + ' |' for row in rows]
    return '\n'.join(lines) + '\n'


def admin(child, path):
    with urllib.request.urlopen('http://127.0.0.1:%d%s' % (child.admin, path), timeout=10) as reply:
        return json.load(reply)


def waiting(child):
    queue = admin(child, '/v1/queue')
    return queue['depth'] + queue['door']


def progress(text):
    print('%s  %s' % (time.strftime('%H:%M:%S'), text), file=sys.stderr, flush=True)


def speed():
    out = []
    backend_socket, backend_http = free_port(), free_port()
    backend = start([BIN, 'backend', '--socket', '127.0.0.1:%d' % backend_socket, '--http', '127.0.0.1:%d' % backend_http,
                     '--delay', '0ms'], 'backend.log', [backend_socket, backend_http])
    planes = [('socket protocol, a connection a call', 'socket', backend_socket, 'tcp', 'stream', 1000),
              ('HTTP/1.1 keep-alive', 'http', backend_http, 'http', 'http', 5000)]
    for title, protocol, target, hap, ngx, rate in planes:
        peers = {'direct': (target, None)}
        for name, make in [
                ('HAProxy', lambda port: haproxy('haproxy-' + hap, port, target, hap)),
                ('nginx', lambda port: nginx('nginx-' + ngx, port, target, ngx)),
                ('Tidegate', lambda port: tidegate('tidegate-' + protocol, backend_socket, backend_http, port, NOT_REACHED)),
                ('Tidegate, 2 threads', lambda port: tidegate('tidegate2-' + protocol, backend_socket, backend_http, port, NOT_REACHED, threads=2)),
                ('Tidegate, access log', lambda port: tidegate('tidegatelog-' + protocol, backend_socket, backend_http, port, NOT_REACHED, log='access = true'))]:
            port = free_port()
            peers[name] = (port, make(port))
        got = {}

        def run(key, name, *args):
            port, child = peers[name]
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
            for connections in (1, 16, 64, 256):
                for name in peers:
                    run(connections, name, '--connections', connections, '--seconds', opts.seconds)
            for name in peers:
                run('open', name, '--connections', 64, '--rate', rate, '--seconds', opts.seconds * 1.5)
            progress('%s: round %d of %d' % (protocol, round_number + 1, opts.rounds))
        for _, child in peers.values():
            if child:
                stop(child)

        def cell(key, name, what, digits=2):
            value = median(got[key, name][what])
            return '-' if value is None else '%.*f' % (digits, value)

        out.append('### %s\n' % title)
        out.append('Closed loop: calls a second with 1, 16, 64 and 256 connections.\n')
        out.append(table(['', '1', '16', '64', '256', 'failed'], [
            [name] + [cell(key, name, 'rate', 0) for key in (1, 16, 64, 256)] + [sum(got[key, name]['bad'] for key in (1, 16, 64, 256, 'open'))]
            for name in peers]))
        out.append('The proxy\'s CPU seconds for 100,000 calls, closed loop and open loop at %d calls a second; latency of the open loop from the intended start, added to direct.\n' % rate)
        rows = []
        for name in list(peers)[1:]:
            row = [name] + [cell(key, name, 'cpu') for key in (1, 16, 64, 256, 'open')]
            for what in ('p50', 'p99'):
                row.append('%.0f us' % (median(got['open', name][what]) - median(got['open', 'direct'][what])))
            row.append('%.0f us' % (median(got[1, name]['p50']) - median(got[1, 'direct']['p50'])))
            rows.append(row)
        out.append(table(['', 'c=1', '16', '64', '256', '%d/s' % rate, '+p50', '+p99', '+p50 at c=1'], rows))
        ratios = []
        for name in list(peers)[2:]:
            def ratio(key, what):
                a = [x / y for x, y in zip(got[key, name][what], got[key, 'HAProxy'][what]) if x and y]
                return '%.2f' % median(a) if a else '-'
            added = (median(got[1, name]['p50']) - median(got[1, 'direct']['p50'])) / max(1e-9, median(got[1, 'HAProxy']['p50']) - median(got[1, 'direct']['p50']))
            ratios.append([name, ratio(64, 'cpu'), ratio('open', 'cpu'), ratio(16, 'rate'), ratio(64, 'rate'), ratio(256, 'rate'), '%.2f' % added])
        out.append('Ratio to HAProxy, round by round, median.\n')
        out.append(table(['', 'CPU, c=64', 'CPU, %d/s' % rate, 'calls/s, c=16', 'c=64', 'c=256', 'added p50, c=1'], ratios))
    stop(backend)
    return out


def against():
    """CPU a call and memory at rest beside an older binary. The order within a round alternates."""
    out = []
    backend_socket, backend_http = free_port(), free_port()
    backend = start([BIN, 'backend', '--socket', '127.0.0.1:%d' % backend_socket, '--http', '127.0.0.1:%d' % backend_http,
                     '--delay', '0ms'], 'backend.log', [backend_socket, backend_http])
    binaries = {'before': os.path.abspath(opts.against), 'now': BIN}
    peers, rest = {}, {}
    for name, binary in binaries.items():
        port = free_port()
        peers[name] = (port, tidegate(name, backend_socket, backend_http, port, NOT_REACHED, binary=binary))
    time.sleep(2)
    for name, (_, child) in peers.items():
        rest[name] = rss_mb(child)
    keys = [(protocol, connections) for protocol in ('socket', 'http') for connections in (1, 16, 64, 256)]
    spent = {(key, name): [] for key in keys for name in peers}
    bad = 0
    for round_number in range(opts.rounds):
        for key in keys:
            protocol, connections = key
            for name in sorted(peers, reverse=round_number % 2 == 1):
                port, child = peers[name]
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
    for _, child in peers.values():
        stop(child)
    stop(backend)
    return out


def memory():
    out = ['### Resident memory\n']
    rows = []
    backend_socket, backend_http = free_port(), free_port()
    backend = start([BIN, 'backend', '--socket', '127.0.0.1:%d' % backend_socket, '--http', '127.0.0.1:%d' % backend_http,
                     '--delay', '100ms'], 'backend-memory.log', [backend_socket, backend_http])
    closed = 'smapi_rate_limit_window_size_seconds = 300\nsmapi_rate_limit_per_window = "total:1"\nsmapi_request_postpone_threshold_seconds = 600'
    cpu_rows = []
    for protocol in ('socket', 'http'):
        target = backend_socket if protocol == 'socket' else backend_http
        row = ['Tidegate, ' + protocol]
        port = free_port()
        child = tidegate('idle-' + protocol, backend_socket, backend_http, port, closed, protocol=protocol)
        row.append('%.1f' % rss_mb(child))
        hold = subprocess.Popen([BIN, 'bench', '--target', '127.0.0.1:%d' % port, '--hold', '9900', '--seconds', '12', '--json'], stdout=subprocess.PIPE)
        time.sleep(8)
        row.append('%.1f' % rss_mb(child))
        hold.communicate()
        stop(child)
        for calls in (1000, 5000, 9900):
            port = free_port()
            child = tidegate('waiting-%s-%d' % (protocol, calls), backend_socket, backend_http, port, closed, protocol=protocol)
            storm = subprocess.Popen([BIN, 'bench', '--protocol', protocol, '--target', '127.0.0.1:%d' % port, '--storm', str(calls),
                                      '--timeout', '25', '--seconds', '25', '--json'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for _ in range(200):
                if waiting(child) >= calls - 2:
                    break
                time.sleep(0.1)
            count = waiting(child)
            row.append('%.1f%s' % (rss_mb(child), '' if count >= calls - 2 else ' (%d)' % count))
            if calls == 5000:
                before, since = cpu_seconds(child), time.time()
                time.sleep(10)
                cpu_rows.append(['in_turn, ' + protocol, '%.2f %%' % ((cpu_seconds(child) - before) / (time.time() - since) * 100)])
            storm.kill()
            storm.wait()
            stop(child)
        rows.append(row)
        row = ['HAProxy, ' + ('tcp' if protocol == 'socket' else 'http')]
        mode = 'tcp' if protocol == 'socket' else 'http'
        port = free_port()
        child = haproxy('idle-haproxy-' + mode, port, target, mode, maxconn=1)
        row.append('%.1f' % rss_mb(child))
        hold = subprocess.Popen([BIN, 'bench', '--target', '127.0.0.1:%d' % port, '--hold', '9400', '--seconds', '8', '--json'], stdout=subprocess.PIPE)
        time.sleep(5)
        row.append('%.1f' % rss_mb(child))
        hold.communicate()
        stop(child)
        for calls in (1000, 5000, 9400):
            port = free_port()
            child = haproxy('waiting-haproxy-%s-%d' % (mode, calls), port, target, mode, maxconn=1)
            storm = subprocess.Popen([BIN, 'bench', '--protocol', protocol, '--target', '127.0.0.1:%d' % port, '--storm', str(calls),
                                      '--timeout', '20', '--seconds', '20', '--json'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            time.sleep(5)
            row.append('%.1f' % rss_mb(child))
            storm.kill()
            storm.wait()
            stop(child)
        rows.append(row)
    out.append('MB. 9,900 stands for 10,000: a process here may have 20,000 files. HAProxy opens a backend connection for each idle client in mode tcp.\n')
    out.append(table(['', 'at rest', '9,900 idle', '1,000 waiting', '5,000 waiting', '9,900 waiting'], rows))
    port = free_port()
    child = tidegate('waiting-jitter', backend_socket, backend_http, port, closed, queue='', protocol='socket')
    stop(child)
    path = os.path.join(WORK, 'waiting-jitter.toml')
    text = open(path).read().replace('postpone = "in_turn"', 'postpone = "jitter"')
    open(path, 'w').write(text)
    jitter = start([BIN, 'serve', '--config', path], 'waiting-jitter.log', [port])
    jitter.admin = child.admin
    storm = subprocess.Popen([BIN, 'bench', '--target', '127.0.0.1:%d' % port, '--storm', '5000', '--timeout', '25', '--json'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for _ in range(200):
        if waiting(jitter) >= 4998:
            break
        time.sleep(0.1)
    before, since = cpu_seconds(jitter), time.time()
    time.sleep(10)
    cpu_rows.append(['jitter, socket', '%.2f %%' % ((cpu_seconds(jitter) - before) / (time.time() - since) * 100)])
    storm.kill()
    storm.wait()
    stop(jitter)
    stop(backend)
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
    storm_limits = 'smapi_rate_limit_per_window = "total:30"\nsmapi_max_outstanding_requests = 10\nsmapi_request_postpone_threshold_seconds = 60'
    only_outstanding = 'smapi_rate_limit_window_size_seconds = 0\nsmapi_max_outstanding_requests = 10\nsmapi_request_postpone_threshold_seconds = 60'
    replied = storm_limits + '\nwindow_stamp = "replied"'
    cases = [('300 at once, 30/s, 10 in flight, 50 ms, in_turn', 'in_turn', storm_limits, '50ms', 300, 20, []),
             ('the same, window_stamp = "replied"', 'in_turn', replied, '50ms', 300, 2, []),
             ('the same, jitter', 'jitter', storm_limits, '50ms', 300, 3, []),
             ('every second client leaves after 0.5 s', 'in_turn', storm_limits, '50ms', 300, 3, ['--leave-after', '0.5']),
             ('1,000 at once, 10 in flight, 100 ms', 'in_turn', only_outstanding, '100ms', 1000, 3, [])]
    for title, postpone, limits, delay, calls, runs, extra in cases:
        spans, peaks, dense, own, answered, failed = [], [], [], [], [], []
        for number in range(runs):
            backend_socket, backend_http, stats, port = free_port(), free_port(), free_port(), free_port()
            backend = start([BIN, 'backend', '--socket', '127.0.0.1:%d' % backend_socket, '--http', '127.0.0.1:%d' % backend_http,
                             '--stats', '127.0.0.1:%d' % stats, '--delay', delay], 'backend-storm.log', [stats])
            name = 'storm'
            child = tidegate(name, backend_socket, backend_http, port, limits, protocol='socket', log='access = true\nformat = "json"',
                             queue='')
            if postpone == 'jitter':
                stop(child)
                path = os.path.join(WORK, name + '.toml')
                open(path + 'x', 'w').write(open(path).read().replace('postpone = "in_turn"', 'postpone = "jitter"'))
                child = start([BIN, 'serve', '--config', path + 'x'], name + '.log', [port])
            report = bench('--target', '127.0.0.1:%d' % port, '--storm', calls, *extra)
            seen = json.load(urllib.request.urlopen('http://127.0.0.1:%d/stats' % stats, timeout=10))
            stop(child)
            stop(backend)
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
    limits = 'smapi_rate_limit_per_window = "total:30"\nsmapi_max_outstanding_requests = 10\nsmapi_request_postpone_threshold_seconds = 60'
    # One caller for all and one class: the last call waits for all others.
    plain = ('class = "polling"', '[callers]\nauto_register = 0\n[[class]]\nname = "polling"\nfunctions = ["guest_start"]')
    rows = []
    for title, (listener, more) in [('users before polls', ('', '')), ('plain order of arrival', plain)]:
        p50, longest, spans, answered, dense = [], [], [], [], []
        for number in range(opts.rounds):
            backend_socket, backend_http, stats, port, poll = [free_port() for _ in range(5)]
            backend = start([BIN, 'backend', '--socket', '127.0.0.1:%d' % backend_socket, '--http', '127.0.0.1:%d' % backend_http,
                             '--stats', '127.0.0.1:%d' % stats, '--delay', '50ms'], 'backend-users.log', [stats])
            poller = '[[listen]]\nname = "poll"\nbind = "127.0.0.1:%d"\nprotocol = "socket"\nclass = "polling"' % poll
            child = tidegate('users', backend_socket, backend_http, port, limits, protocol='socket', log='access = true\nformat = "json"',
                             listener=listener + '\n' + poller, more=more)
            storm = subprocess.Popen([BIN, 'bench', '--json', '--target', '127.0.0.1:%d' % poll, '--storm', '300'],
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
            seen = json.load(urllib.request.urlopen('http://127.0.0.1:%d/stats' % stats, timeout=10))
            stop(child)
            stop(backend)
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
    backend_socket, backend_http = free_port(), free_port()
    backend = start([BIN, 'backend', '--socket', '127.0.0.1:%d' % backend_socket, '--http', '127.0.0.1:%d' % backend_http,
                     '--delay', '0ms'], 'backend-callers.log', [backend_socket, backend_http])
    rows = []
    port = free_port()
    many = '[callers]\nauto_register = 10000\nauto_register_per_s = 1000'
    child = tidegate('callers', backend_socket, backend_http, port, NOT_REACHED, more=many)
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
    child = tidegate('callers-usual', backend_socket, backend_http, port, NOT_REACHED)
    agents = Agents(port)
    agents.send(['warm'] * 2000)
    before = rss_mb(child)
    sizes, pace = at_pace(agents, 1000, ROTATION, child, 'rotates')
    registered = metric(child, 'tidegate_callers_registered{kind="auto"}')
    rows.append(['%.0f agents a second that rotate, for %d s; as configured by default, %d rows' % (pace, ROTATION, registered),
                 '%.1f' % before, '%.1f' % sizes[-1], range_of(sizes), 'flat'])
    stop(child)
    stop(backend)
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


def version(*args):
    try:
        done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout.decode().splitlines()[0]
    except OSError:
        return '%s is not here' % args[0]


PARTS = ['speed', 'memory', 'storm', 'users', 'callers', 'core']


def sections(text):
    """The text above the first heading of the third level, and each section with its heading."""
    return [it.rstrip() + '\n\n' for it in re.split(r'(?m)^(?=### )', text)]


def heading(section):
    return section.split('\n')[0][4:]


def main():
    parts = opts.only.split(',')
    body = []
    began = time.time()
    if opts.against:
        parts = []
        body += against()
    for name, part in (('speed', speed), ('memory', memory), ('storm', storm), ('users', users), ('callers', callers), ('core', core)):
        if name in parts:
            body += part()
            progress(name + ' done')
    cpu = next((line.split(':')[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')), platform.machine())
    load = os.getloadavg()[0]
    stamp = '%s, %s, load average %.1f at the end' % (version(BIN, '--version'), time.strftime('%Y-%m-%d'), load)
    head = ['# Benchmarks\n',
            'Measured by `make bench` (%s), %s: %s, %d cores, Linux %s, loopback only; load average %.1f at the end. %d rounds of %.1f s a run, medians. '
            'Load, proxy and backend share the cores.\n' % (version(BIN, '--version'), time.strftime('%Y-%m-%d'), cpu, os.cpu_count(), platform.release(),
                                                     load, opts.rounds, opts.seconds),
            'Peers: %s; %s. Both with two threads or workers, limits on and not reached, no access log. Took %.0f s.\n' % (
                version('haproxy', '-v'), version('nginx', '-v'), time.time() - began)]
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


try:
    main()
finally:
    for child in CHILDREN:
        stop(child)
    shutil.rmtree(WORK, ignore_errors=True)
