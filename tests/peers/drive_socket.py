#!/usr/bin/env python3
"""Drives an sdkserver, or Tidegate in front of it, with the real socket client.

smoke    calls whose codes are known: one line each
answers  every function of the backend, and --also: one line each, with the answer's bytes
storm    --count calls of guest_get_info at once: one line for all
"""
import argparse
import json
import socket
import sys
import urllib.request

import common
from storm import storm

ap = argparse.ArgumentParser(description=__doc__,
                             formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument('mode', choices=('smoke', 'answers', 'storm'))
ap.add_argument('--port', type=int, required=True)
ap.add_argument('--stats-port', type=int, help='answers: of the backend behind it all')
ap.add_argument('--also', default='', help='answers: further functions, by comma')
ap.add_argument('--count', type=int, default=300)
opts = ap.parse_args()

# (function, args, kwargs)
SMOKE = [('guest_list', (), {}),
         ('guest_get_info', ('HRX00000',), {}),
         ('guest_get_power_state', ('hrx00001',), {}),
         ('host_get_info', (), {}),
         ('guests_get_nic_info', (), {'userid': 'HRX00000'}),
         ('guest_get_console_output', ('BIG',), {}),
         ('guest_get_user_direct', ('UTF8',), {}),
         ('guest_get_info', ('NOEXIST',), {}),
         ('guest_get_info', ('SMTERR',), {}),
         ('guest_get_info', ('BOOM',), {}),
         ('guest_get_info', (), {}),
         ('no_such_function', (), {}),
         ('guest_get_user_direct', ('UNSER',), {})]


class Watched(socket.socket):
    """A socket that keeps what it received."""
    received = b''

    def recv(self, *args):
        block = super().recv(*args)
        Watched.received += block
        return block


def client():
    from zvmconnector import connector
    return connector.ZVMConnector('127.0.0.1', opts.port, timeout=60,
                                  connection_type='socket').send_request


def tell(function, args, kwargs):
    Watched.received = b''
    reply = client()(function, *args, **kwargs)
    common.say(call='%s%s' % (function, json.dumps(args)),
               code=[reply['overallRC'], reply['modID'], reply['rc'], reply['rs']],
               errmsg=reply['errmsg'], body=Watched.received.decode('latin-1'))


def smoke():
    socket.socket = Watched
    for case in SMOKE:
        tell(*case)


def answers():
    with urllib.request.urlopen('http://127.0.0.1:%d/functions' % opts.stats_port) as reply:
        functions = json.load(reply)
    for name in filter(None, opts.also.split(',')):
        functions.setdefault(name, 0)
    socket.socket = Watched
    for function, arguments in sorted(functions.items()):
        tell(function, ('HRX00000',) * arguments, {})


sys.exit({'smoke': smoke, 'answers': answers,
          'storm': lambda: storm(opts.count, client)}[opts.mode]())
