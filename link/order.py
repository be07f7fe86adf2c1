#!/usr/bin/env python3
"""Finds out which functions a sidecar runs, and writes their names to link/order.txt.

usage: order.py BINARY LAB

BINARY is a release build with its symbols, and LAB is tidegate-lab (`make order` builds both). The binary serves
under callgrind twice: once without a call, once with calls on both protocols, a reload and a look at the admin address.
What calls need comes first in the list, most used first; then what only a start needs. build.rs makes a linker script
of it.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

BINARY, LAB = (os.path.abspath(it) for it in sys.argv[1:])
HERE = os.path.dirname(os.path.abspath(__file__))
WORK = tempfile.mkdtemp(prefix='tidegate-order-')
CALLS = 300


def free_port():
    with socket.socket() as it:
        it.bind(('127.0.0.1', 0))
        return it.getsockname()[1]


def wait_for(port, child):
    for _ in range(600):
        if child.poll() is not None:
            sys.exit('ended with %d' % child.returncode)
        try:
            socket.create_connection(('127.0.0.1', port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit('nothing listens on %d' % port)


def look(port, path):
    with urllib.request.urlopen('http://127.0.0.1:%d%s' % (port, path), timeout=60) as it:
        it.read()


def bench(port, protocol):
    subprocess.run([LAB, 'bench', '--protocol', protocol, '--target', '127.0.0.1:%d' % port, '--mix',
                    '--connections', '4', '--calls', str(CALLS), '--seconds', '120', '--json'],
                   check=True, stdout=subprocess.DEVNULL)


def serve(backends, with_calls):
    """Instructions by function of one run, without those of what it calls."""
    listen, admin = free_port(), free_port()
    config = os.path.join(WORK, 'config.toml')
    with open(config, 'w') as out:
        out.write('''
[[listen]]
name = "order"
bind = "127.0.0.1:%d"
protocol = "auto"
[backend]
kind = "zvm"
socket = "127.0.0.1:%d"
http = "http://127.0.0.1:%d"
[limits]
per_window = "total:100"
max_wait = "50s"
[admin]
bind = "127.0.0.1:%d"
''' % (listen, *backends, admin))
    profile = os.path.join(WORK, 'profile')
    child = subprocess.Popen(['valgrind', '--tool=callgrind', '--demangle=no', '--callgrind-out-file=' + profile,
                              BINARY, 'serve', '--config', config], stdout=subprocess.DEVNULL,
                             stderr=open(os.path.join(WORK, 'log'), 'w'))
    wait_for(listen, child)
    wait_for(admin, child)
    if with_calls:
        bench(listen, 'socket')
        bench(listen, 'http')
        for path in ('/', '/metrics', '/livez', '/readyz'):
            look(admin, path)
        child.send_signal(signal.SIGHUP)
        time.sleep(1)
        bench(listen, 'http')
    else:
        time.sleep(1)
    child.send_signal(signal.SIGTERM)
    if child.wait(120) != 0:
        sys.exit('serve ended with %d: see %s' % (child.returncode, WORK))
    return read(profile)


def read(profile):
    names, spent, function, is_call = {}, {}, None, False
    for line in open(profile):
        named = re.match(r'^(c?)fn=\((\d+)\)(?: (.*))?$', line.rstrip())
        if named:
            if named[3]:
                # Recursion has a number of its own.
                names[named[2]] = re.sub(r"'\d+$", '', named[3])
            if not named[1]:
                function = names[named[2]]
                spent.setdefault(function, 0)
        elif line.startswith('calls='):
            is_call = True
        elif re.match(r'^[+\-*\d]', line):
            if not is_call and function is not None:
                spent[function] += int(line.split()[-1])
            is_call = False
    return spent


def main():
    listing = subprocess.run(['nm', '--defined-only', BINARY], check=True, stdout=subprocess.PIPE, text=True).stdout
    ours = {line.split()[2] for line in listing.splitlines() if line.split()[1] in 'tTwW'}
    if len(ours) < 1000:
        sys.exit('%s has no symbols' % BINARY)
    backends = free_port(), free_port()
    backend = subprocess.Popen([LAB, 'backend', '--socket', '127.0.0.1:%d' % backends[0],
                                '--http', '127.0.0.1:%d' % backends[1], '--delay', '0ms'],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for port in backends:
            wait_for(port, backend)
        idle, busy = serve(backends, False), serve(backends, True)
    finally:
        backend.terminate()
        backend.wait()
    calls = {name: spent - idle.get(name, 0) for name, spent in busy.items()}
    # A function of which a call runs an instruction or more.
    first = sorted((name for name, spent in calls.items() if spent >= CALLS), key=lambda name: -calls[name])
    then = sorted((set(idle) | set(busy)) - set(first))
    names = [name for name in first + then if name in ours and re.match(r'^[\w.$]+$', name)]
    with open(os.path.join(HERE, 'order.txt'), 'w') as out:
        out.write('# Functions that a sidecar runs, in the order in which they lie in the program. Made by `make order`.\n')
        out.writelines(name + '\n' for name in names)
    print('%d functions, %d of them on the way of calls' % (len(names), len(first)))
    shutil.rmtree(WORK)


main()
