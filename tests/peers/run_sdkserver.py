#!/usr/bin/env python3
"""Runs the real zvmsdk.sdkserver.SDKServer on 127.0.0.1 without a mainframe.

Every public method of its SDKAPI is replaced by a stub that checks the call against the
real signature, takes its time, records, and answers. Answers depend on nothing but the
call, so that two ways to the same server can be compared byte for byte.

Userids with a meaning: NOEXIST (404), SMTERR (an SMT error), BOOM (ValueError), BIG (1 MB
of answer), UTF8 (an answer beyond ASCII), UNSER (an answer that is no JSON: the server
closes without a byte), SLOW<n> (takes n tenths of a second).

Like SMAPI the backend falls over when too much arrives (--breaks-above-...): from then on
it answers errors, until --recover seconds have passed without too much.

On the stats port: GET /stats?window=S, /calls, /functions; POST /reset.
"""
import argparse
import collections
import functools
import http.server
import inspect
import json
import os
import threading
import time
import urllib.parse

import common

ap = argparse.ArgumentParser(description=__doc__,
                             formatter_class=argparse.RawDescriptionHelpFormatter)
common.base_args(ap)
ap.add_argument('--journal', help='append the userid of every call that starts to this file')
ap.add_argument('--latency', type=float, default=0.05, help='seconds per call')
ap.add_argument('--slow', type=float, default=0.1, help='seconds for deploy, capture, ...')
ap.add_argument('--breaks-above-at-once', type=int, default=0, help='0: never')
ap.add_argument('--breaks-above-per-second', type=int, default=0, help='0: never')
ap.add_argument('--recover', type=float, default=5.0)
ap.add_argument('--together', type=int, default=0,
                help='the first calls last until so many are at once, 30 s at most')
opts = ap.parse_args()

# SDKServer.run() starts a worker while threading.active_count() is no higher than
# max_worker_count. Two threads here are ours, the statistics and the watch of stdin,
# so 66 gives its default of 64 workers.
common.prepare(opts.state, {'sdkserver': {
    'bind_addr': '127.0.0.1', 'bind_port': opts.port,
    'request_queue_size': 128, 'max_worker_count': 66}})

from zvmsdk import exception, sdkserver  # noqa: E402  (they read the config when imported)

GUESTS = ['HRX%05d' % n for n in range(500)]
SLOW = {'guest_deploy', 'guest_capture', 'guest_live_migrate', 'image_import', 'image_export',
        'volume_attach', 'volume_detach', 'volume_refresh_bootmap', 'guest_create',
        'guest_delete'}
JOURNAL = opts.journal and os.open(opts.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Recorder:
    """What the backend saw: every call with its start and end, and the peaks."""

    def __init__(self):
        self.lock = threading.Lock()
        self.now = 0
        self.together = threading.Event()
        self.reset()

    def reset(self):
        with self.lock:
            self.calls = []
            self.peak, self.connections = self.now, 0
            self.breaks, self.down_until = 0, 0.0
            self.recent = collections.deque()

    def start(self, function, userid):
        """Records a start. Returns the number of the call, and whether the backend is down."""
        if JOURNAL and userid:
            # One write, which survives a SIGKILL.
            os.write(JOURNAL, (userid + '\n').encode())
        with self.lock:
            started = time.monotonic()
            self.now += 1
            self.peak = max(self.peak, self.now)
            if self.now >= opts.together:
                self.together.set()
            self.recent.append(started)
            while self.recent[0] <= started - 1.0:
                self.recent.popleft()
            if (0 < opts.breaks_above_at_once < self.now
                    or 0 < opts.breaks_above_per_second < len(self.recent)):
                self.breaks += started >= self.down_until
                self.down_until = started + opts.recover
            call = {'function': function, 'userid': userid, 'start': started, 'end': None}
            self.calls.append(call)
            return call, started < self.down_until

    def end(self, call):
        with self.lock:
            self.now -= 1
            call['end'] = time.monotonic()

    def report(self, window):
        with self.lock:
            starts = sorted(call['start'] for call in self.calls)
            return {'total': len(starts), 'in_flight': self.now, 'in_flight_peak': self.peak,
                    'connections': self.connections, 'breaks': self.breaks,
                    'densest_window': densest(starts, window)}


def densest(starts, window):
    """The most starts in any half-open span of this length."""
    most = low = 0
    for high, start in enumerate(starts):
        while starts[low] <= start - window:
            low += 1
        most = max(most, high - low + 1)
    return most


SEEN = Recorder()


def answer(function, args):
    userid = args[0] if args and isinstance(args[0], str) else None
    if function in ('guest_list', 'host_get_guest_list'):
        return GUESTS
    if function.startswith('guest_get_power_state'):
        return 'on'
    if function == 'guest_get_info':
        return {'power_state': 'on', 'max_mem_kb': 8388608, 'mem_kb': 1048576, 'num_cpu': 2,
                'cpu_time_us': 796323456, 'online_cpu_num': 2, 'os_distro': 'rhel8.6',
                'kernel_info': 'Linux 4.18.0 s390x', 'userid': userid}
    if function == 'host_get_info':
        return {'zcc_userid': 'ZCC1', 'zvm_host': 'ZVMHOST1', 'hypervisor_hostname': 'ZVMHOST1',
                'hypervisor_type': 'zvm',
                'hypervisor_version': 640, 'vcpus': 84, 'vcpus_used': 38,
                'memory_mb': 3483648, 'memory_mb_used': 30219,
                'cpu_info': {'architecture': 's390x', 'cec_model': '2097'},
                'ipl_time': 'IPL at 11/16/25 05:41:36 EST', 'disk_total': 406105,
                'disk_used': 367262, 'disk_available': 38843}
    if function == 'guests_get_nic_info':
        return [{'userid': guest, 'interface': '1000', 'switch': 'VSW1', 'port': None}
                for guest in GUESTS[:50]]
    if function in ('guest_inspect_stats', 'guest_inspect_vnics'):
        guests = args[0] if isinstance(args[0], list) else [args[0]]
        return {guest.upper(): {'guest_cpus': 2, 'used_cpu_time_us': 1} for guest in guests}
    if function == 'guest_create':
        return [{'vdev': '0100', 'size': '20G', 'is_boot_disk': True}]
    if function == 'guest_get_adapters_info':
        return {'adapters': [{
            'adapter_address': '1000', 'adapter_status': '02', 'lan_owner': 'SYSTEM',
            'lan_name': 'DEVNET', 'mac_address': '02:00:00:12:34:56', 'mac_ip_version': '4',
            'mac_ip_address': '192.0.2.7'}]}
    if function == 'image_query':
        return [{'imagename': 'sles15', 'imageosdistro': 'sles15.5', 'type': 'rootonly'}]
    if function == 'image_export':
        return {'image_name': 'sles15', 'image_path': '/img', 'os_version': 'sles15.5',
                'md5sum': '0' * 32, 'comments': None}
    if function == 'guest_get_console_output':
        return 'x' * (1 << 20) if userid == 'BIG' else 'booting\n' * 50
    return 'Grüße, 世界' if userid == 'UTF8' else object() if userid == 'UNSER' else None


def seconds(function, userid):
    if userid and userid.startswith('SLOW') and userid[4:].isdigit():
        return int(userid[4:]) / 10
    return opts.slow if function in SLOW else opts.latency


def stub(function, real):
    signature = inspect.signature(real)

    @functools.wraps(real)
    def call(self, *args, **kwargs):
        signature.bind(self, *args, **kwargs)      # TypeError, as the real method raises
        userid = args[0].upper() if args and isinstance(args[0], str) else None
        recorded, down = SEEN.start(function, userid)
        try:
            SEEN.together.wait(30)
            time.sleep(seconds(function, userid))
            if down:
                raise exception.SDKInternalError('SMAPI is down', modID='smt', results={
                    'overallRC': 25, 'rc': -110, 'rs': 0, 'errno': 111, 'strError': '',
                    'response': []})
            if userid == 'BOOM':
                raise ValueError('boom')
            if userid == 'SMTERR':
                raise exception.SDKSMTRequestFailed(
                    {'overallRC': 8, 'rc': 400, 'rs': 12}, 'SMT failed')
            if userid == 'NOEXIST':
                raise exception.SDKObjectNotExistError(
                    obj_desc="Guest '%s'" % userid, modID='guest')
            return answer(function, [userid or arg for arg in args[:1]] + list(args[1:]))
        finally:
            SEEN.end(recorded)
    return call


class Counted(sdkserver.SDKServer):
    """The real server; counts the connections it serves."""

    def serve_API(self, client, addr):
        with SEEN.lock:
            SEEN.connections += 1
        # Its internal errors quote the client's port, which is new for every call.
        super().serve_API(client, (addr[0], 0))


class Stats(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        window = float(dict(urllib.parse.parse_qsl(url.query)).get('window', 1))
        if url.path == '/calls':
            with SEEN.lock:
                self.reply([dict(call) for call in SEEN.calls])
        elif url.path == '/functions':
            self.reply(ARGUMENTS)
        else:
            self.reply(SEEN.report(window))

    def do_POST(self):
        SEEN.reset()
        self.reply({'reset': True})

    def reply(self, what):
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = Counted()
api = type(server.sdkapi)
# How many arguments each function needs.
ARGUMENTS = {}
for name in [name for name in dir(api) if not name.startswith('_')]:
    real = getattr(api, name)
    ARGUMENTS[name] = sum(
        parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        for parameter in list(inspect.signature(real).parameters.values())[1:])
    setattr(api, name, stub(name, real))
stats_server = http.server.HTTPServer(('127.0.0.1', 0), Stats)
threading.Thread(target=stats_server.serve_forever, daemon=True).start()
common.end_with_stdin()
server.setup()
common.ready(port=server.server_socket.getsockname()[1], stats=stats_server.server_port)
server.run()
