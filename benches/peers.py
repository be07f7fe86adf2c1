"""Starts what a benchmark compares, each on a free port of its own, and reads what it took.

Tidegate, HAProxy and nginx have their limits switched on and not reached. The relays of tidegate-lab have none.
A benchmark sets `BIN` to the tidegate it measures. All that was started ends with the benchmark.
"""
import argparse
import atexit
import json
import os
import platform
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
WORK = tempfile.mkdtemp(prefix='tidegate-bench-')
CHILDREN = []


def free_port():
    with socket.socket() as it:
        it.bind(('127.0.0.1', 0))
        return it.getsockname()[1]


def start(args, log, ports, env=None):
    """Starts a program, and waits until it listens on its ports."""
    out = open(os.path.join(WORK, log), 'wb')
    child = subprocess.Popen(args, stdout=out, stderr=out, cwd=WORK, env={**os.environ, **(env or {})})
    CHILDREN.append(child)
    for port in ports:
        # Under valgrind a start takes a while.
        for _ in range(1200):
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
    """Of all threads that live. From the scheduler, in nanoseconds: the ticks of `stat` are hundredths of a second, and a run is short."""
    total = 0
    for pid in family(child.pid):
        for task in os.listdir('/proc/%d/task' % pid):
            try:
                with open('/proc/%d/task/%s/schedstat' % (pid, task)) as it:
                    total += int(it.read().split()[0])
            except OSError:
                # The thread has ended since it was listed.
                pass
    return total / 1e9


def rss_mb(child):
    total = 0
    for pid in family(child.pid):
        with open('/proc/%d/status' % pid) as it:
            for line in it:
                if line.startswith('VmRSS'):
                    total += int(line.split()[1])
    return total / 1024


def lab():
    """The lab beside the measured binary, or that of this tree."""
    beside = os.path.join(os.path.dirname(BIN), 'tidegate-lab')
    return beside if os.path.exists(beside) else os.path.join(ROOT, 'target', 'release', 'tidegate-lab')


def bench(*args):
    done = subprocess.run([lab(), 'bench', '--json', *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if not done.stdout:
        sys.exit('bench %s: %s' % (args, done.stderr.decode()))
    return json.loads(done.stdout)


class Backend:
    """The stand-in backend on free ports."""

    def __init__(self, delay):
        self.socket, self.http, self.stats = free_port(), free_port(), free_port()
        self.child = start([lab(), 'backend', '--socket', '127.0.0.1:%d' % self.socket, '--http', '127.0.0.1:%d' % self.http,
                            '--stats', '127.0.0.1:%d' % self.stats, '--delay', delay], 'backend-%d.log' % self.http, [self.stats])

    def port(self, protocol):
        return self.socket if protocol == 'socket' else self.http

    def seen(self):
        with urllib.request.urlopen('http://127.0.0.1:%d/stats' % self.stats, timeout=10) as reply:
            return json.load(reply)

    def stop(self):
        stop(self.child)


def relay(name, kind, listen, target, under=()):
    """A proxy that does nothing of its own: kind is `bytes`, `once` or `hyper`."""
    return start([*under, lab(), 'relay', '--as', kind, '--listen', '127.0.0.1:%d' % listen, '--to', '127.0.0.1:%d' % target],
                 name + '.log', [listen])


def configure(name, behind, listen, limits, queue='', threads=2, log='access = false', protocol='auto', listener='', more='', lines={}, workers=8192, has_admin=True):
    """Writes a config. `lines` are more lines of a section: `server`, `listen`, `client`, or `backend`, where they replace
    the size of the pool. Returns its path and the admin port, if it has one."""
    admin = free_port() if has_admin else None
    path = os.path.join(WORK, name + '.toml')
    with open(path, 'w') as out:
        out.write('''
[server]
threads = %d
max_connections = 20000
%s
[[listen]]
name = "bench"
bind = "127.0.0.1:%d"
protocol = "%s"
%s
%s
[client]
%s
idle_timeout = "10m"
request_timeout = "10m"
[backend]
kind = "zvm"
socket = "127.0.0.1:%d"
http = "http://127.0.0.1:%d"
%s
[queue]
capacity = 20000
workers = %d
postpone = "in_turn"
%s
[limits]
%s
[admin]
bind = %s
[log]
%s
%s
''' % (threads, lines.get('server', ''), listen, protocol, lines.get('listen', ''), listener, lines.get('client', ''), behind.socket, behind.http, lines.get('backend', 'pool_max_idle = 512'),
       workers, queue, limits, '"127.0.0.1:%d"' % admin if admin else 'false', log, more))
    return path, admin


def refuses(path, binary=None):
    """What `tidegate check` says against a config, or nothing."""
    checked = subprocess.run([binary or BIN, 'check', '--config', path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return checked.stderr if checked.returncode else b''


def tidegate(name, behind, listen, limits, binary=None, under=(), env=None, **options):
    path, admin = configure(name, behind, listen, limits, **options)
    if b'backend.kind' in refuses(path, binary):
        # A version with only one kind of backend.
        text = open(path).read().replace('kind = "zvm"\n', '')
        open(path, 'w').write(text)
    child = start([*under, binary or BIN, 'serve', '--config', path], name + '.log', [listen] + [admin] * bool(admin), env)
    child.admin = admin
    return child


NOT_REACHED = 'per_window = "total:1000000"\noutstanding = 5000\nmax_wait = "50s"'


def haproxy(name, listen, target, mode, maxconn=5000, threads=2, under=()):
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
    return start([*under, 'haproxy', '-db', '-f', path], name + '.log', [listen])


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


def version(*args):
    try:
        done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout.decode().splitlines()[0]
    except OSError:
        return '%s is not here' % args[0]


def machine():
    """The processor, and what else a table names of the machine."""
    with open('/proc/cpuinfo') as lines:
        cpu = next((line.split(':')[1].strip() for line in lines if line.startswith('model name')), platform.machine())
    return '%s, %d cores, Linux %s' % (cpu, os.cpu_count(), platform.release())


def options(text, rounds, seconds):
    """The flags of a benchmark that replaces one part of the file of benchmarks."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=rounds)
    parser.add_argument('--seconds', type=float, default=seconds, help='of one run')
    parser.add_argument('--rate', type=int, default=5000, help='calls a second')
    parser.add_argument('--binary', default=BIN, help='the tidegate to measure')
    parser.add_argument('--out', default=os.path.join(ROOT, 'docs', 'reports', 'benchmarks.md'))
    return parser.parse_args()


def replace(out, part, text):
    """Puts a text in place of the part between its two comments, or at the end."""
    begin, end = '<!-- %s -->' % part, '<!-- end of %s -->' % part
    text = '%s\n%s\n%s\n' % (begin, text.strip('\n'), end)
    print(text)
    whole = open(out).read()
    if begin in whole:
        whole = whole[:whole.index(begin)] + text.rstrip('\n') + whole[whole.index(end) + len(end):]
    else:
        whole = whole.rstrip('\n') + '\n\n' + text
    with open(out, 'w') as file:
        file.write(whole)


def progress(text):
    print('%s  %s' % (time.strftime('%H:%M:%S'), text), file=sys.stderr, flush=True)


@atexit.register
def clear():
    for child in CHILDREN:
        stop(child)
    shutil.rmtree(WORK, ignore_errors=True)
