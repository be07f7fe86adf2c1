#!/usr/bin/env python3
"""What long bodies and WebSocket tunnels cost, beside HAProxy, in one run.

An upload and a download of 100 MB go through each proxy in turn: CPU of the proxy, and time. Then 5,000 idle WebSocket
tunnels: memory. Then messages of 1 KB, echoed over 16 tunnels: CPU of the proxy for each. Last, 9,900 connections that
have each sent an unusual request: memory while they are idle, and while each has a call that waits.
"""
import os
import selectors
import socket
import sys
import threading
import time

import peers
from peers import cpu_seconds, free_port, haproxy, machine, median, options, progress, replace, rss_mb, stop, table, tidegate, version

SIZE = 100 << 20
PART = b'x' * (1 << 16)
TUNNELS, ECHOES, TALKERS = 5000, 2000, 16
ODD = 9900
NOT_REACHED = 'per_window = "total:1000000"\noutstanding = 100000'
CLOSED = 'window = "0s"\noutstanding = 1\nmax_wait = "10m"'
HANDSHAKE = (b'GET /chat HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n'
             b'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
SWITCHED = (b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n'
            b'Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n')
# What was left to another engine for the life of its connection: a list in Connection, and an expectation.
UNUSUAL = b'GET /guests/HRX00001/info HTTP/1.1\r\nHost: t\r\nConnection: x-foo, keep-alive\r\nTE: trailers\r\nExpect: 100-continue\r\n\r\n'


class Service:
    """A server of bodies and tunnels in a process of its own."""

    def __init__(self):
        self.http = self.socket = free_port()
        listener = socket.create_server(('127.0.0.1', self.http), backlog=4096)
        self.pid = os.fork()
        if not self.pid:
            serve(listener)
        listener.close()

    def stop(self):
        os.kill(self.pid, 15)
        os.waitpid(self.pid, 0)


def serve(listener):
    """Bodies on a thread each; tunnels, of which there are thousands, on one loop."""
    tunnels = selectors.DefaultSelector()
    lock = threading.Lock()

    def echo():
        while True:
            with lock:
                pass
            for key, _ in tunnels.select(0.01):
                try:
                    message = key.fileobj.recv(1 << 16)
                    if message:
                        key.fileobj.sendall(message)
                        continue
                except OSError:
                    pass
                tunnels.unregister(key.fileobj)
                key.fileobj.close()

    def talk(client):
        here = b''
        while True:
            while b'\r\n\r\n' not in here:
                more = client.recv(1 << 16)
                if not more:
                    return client.close()
                here += more
            head, _, here = here.partition(b'\r\n\r\n')
            if b'websocket' in head:
                client.sendall(SWITCHED)
                tunnels.register(client, selectors.EVENT_READ)
                return None
            if head.startswith(b'POST'):
                left = SIZE - len(here)
                room = bytearray(1 << 18)
                while left > 0:
                    left -= client.recv_into(room)
                here = b''
                client.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
            elif b'/large' in head:
                client.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n' % SIZE)
                for _ in range(SIZE // len(PART)):
                    client.sendall(PART)
            else:
                client.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')

    def quietly(client):
        try:
            talk(client)
        except OSError:
            client.close()

    threading.Thread(target=echo, daemon=True).start()
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=quietly, args=(client,), daemon=True).start()


def connect(port):
    client = socket.create_connection(('127.0.0.1', port), 60)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def upload(port):
    with connect(port) as client:
        client.sendall(b'POST /files HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n' % SIZE)
        for _ in range(SIZE // len(PART)):
            client.sendall(PART)
        if b' 200 ' not in client.recv(4096):
            sys.exit('an upload was refused')


def download(port):
    with connect(port) as client:
        client.sendall(b'GET /large HTTP/1.1\r\nHost: t\r\n\r\n')
        left, room = SIZE, bytearray(1 << 18)
        while left > 0:
            read = client.recv_into(room)
            if not read:
                sys.exit('a download broke off')
            left -= read


def tunnel(port):
    client = connect(port)
    client.sendall(HANDSHAKE)
    answer = client.recv(4096)
    if b' 101 ' not in answer:
        sys.exit('a handshake was refused: %r' % answer)
    return client


def talk(clients):
    """Echoes messages over all tunnels, one after the other in each."""
    message = b'm' * 1024
    for _ in range(ECHOES // len(clients)):
        for client in clients:
            client.sendall(message)
        for client in clients:
            left = len(message)
            while left:
                left -= len(client.recv(left))


def measured(child, run):
    before, began = cpu_seconds(child), time.monotonic()
    run()
    return cpu_seconds(child) - before, time.monotonic() - began


def streams(service, rounds):
    port_of = {name: free_port() for name in ('Tidegate', 'HAProxy')}
    child_of = {'Tidegate': tidegate('streams', service, port_of['Tidegate'], NOT_REACHED, protocol='http'),
                'HAProxy': haproxy('streams', port_of['HAProxy'], service.http, 'http')}
    rows = []
    for what, run in (('upload of 100 MB', upload), ('download of 100 MB', download)):
        got = {name: [] for name in port_of}
        for number in range(rounds):
            for name in sorted(port_of, reverse=number % 2 == 1):
                got[name].append(measured(child_of[name], lambda: run(port_of[name])))
        ours, theirs = got['Tidegate'], got['HAProxy']
        ratio = [median([mine[at] / other[at] for mine, other in zip(ours, theirs)]) for at in (0, 1)]
        rows.append([what, '%.0f ms; %.0f ms' % (median([cpu for cpu, _ in ours]) * 1000, median([took for _, took in ours]) * 1000),
                     '%.0f ms; %.0f ms' % (median([cpu for cpu, _ in theirs]) * 1000, median([took for _, took in theirs]) * 1000),
                     '%.2f; %.2f' % tuple(ratio)])
        progress(what)
    for child in child_of.values():
        stop(child)
    return rows


def tunnels(service, rounds):
    size, cost = {}, {}
    for name in ('Tidegate', 'HAProxy'):
        port = free_port()
        child = (tidegate('tunnels', service, port, NOT_REACHED, protocol='http') if name == 'Tidegate'
                 else haproxy('tunnels', port, service.http, 'http', maxconn=9000))
        idle = [tunnel(port) for _ in range(TUNNELS if name == 'Tidegate' else 4500)]
        time.sleep(1)
        size[name] = rss_mb(child)
        for client in idle:
            client.close()
        time.sleep(1)
        talkers = [tunnel(port) for _ in range(TALKERS)]
        talk(talkers)
        cost[name] = [measured(child, lambda: talk(talkers))[0] / ECHOES * 1e6 for _ in range(rounds)]
        stop(child)
        progress('tunnels: ' + name)
    ratio = median(cost['Tidegate']) / median(cost['HAProxy'])
    return [['idle WebSocket tunnels (5,000; HAProxy 4,500)', '%.1f MB' % size['Tidegate'], '%.1f MB' % size['HAProxy'], ''],
            ['a message of 1 KB, echoed over 16 tunnels, CPU', '%.1f µs' % median(cost['Tidegate']), '%.1f µs' % median(cost['HAProxy']),
             '%.2f' % ratio]]


def unusual(service):
    """Memory of connections that have each sent an unusual request: idle behind it, and with a call that waits."""
    port = free_port()
    child = tidegate('unusual', service, port, NOT_REACHED, protocol='http')
    clients = []
    for _ in range(ODD):
        client = connect(port)
        client.sendall(UNUSUAL)
        if b' 200 ' not in client.recv(4096):
            sys.exit('an unusual request was refused')
        clients.append(client)
    time.sleep(1)
    idle = rss_mb(child)
    stop(child)
    for client in clients:
        client.close()
    port = free_port()
    child = tidegate('waiting', service, port, CLOSED, protocol='http', lines={'backend': 'pool_max_idle = 512\nresponse_timeout = "10m"'})
    clients = []
    for number in range(ODD):
        client = connect(port)
        # The first has the only slot.
        client.sendall(UNUSUAL if number else b'POST /files HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n' % SIZE + PART * 2)
        clients.append(client)
    time.sleep(3)
    waiting = rss_mb(child)
    stop(child)
    for client in clients:
        client.close()
    return [['9,900 connections, idle after an unusual request', '%.1f MB' % idle, '', ''],
            ['9,900 unusual requests that wait', '%.1f MB' % waiting, '', '']]


def main():
    opts = options(__doc__, 5, 0)
    peers.BIN = os.path.abspath(opts.binary)
    service = Service()
    try:
        rows = streams(service, opts.rounds) + tunnels(service, opts.rounds) + unusual(service)
    finally:
        service.stop()
    replace(opts.out, 'streams', '''
## Long bodies and tunnels

Measured by `make bench-streams` (%s), %s: %s, loopback only. Medians of %d rounds; the ratio is taken round by round.
CPU; time.

%s''' % (version(peers.BIN, '--version'), time.strftime('%Y-%m-%d'), machine(), opts.rounds,
         table(['', 'Tidegate', 'HAProxy 2.6, 2 threads', 'Tidegate ÷ HAProxy'], rows)))


main()
