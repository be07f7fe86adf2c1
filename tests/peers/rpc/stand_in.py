"""A server that answers as a real one of its kind does: stand_in.py xapi|openai|ethereum|mcp|proxmox PORT [WORKERS]. Prints `ready` once it
listens. With a number of workers, calls of xapi that read or start wait for one of them, in the order of arrival, and GET tells what
each start met."""
import collections
import http.server
import json
import socket
import sys
import threading
import time
import urllib.parse
import uuid
import xmlrpc.client

SESSIONS = {}
# How long a worker takes for a call, if there are workers.
SECONDS = {'VM.start': 0.05, 'VM.get_all_records': 0.04, 'host.get_all_records': 0.04}


# How long the task of a start takes.
START_SECONDS = 0.15
# How long a clone of Proxmox holds its lock, and how long another one waits for that: a twentieth of the real times.
CLONE_SECONDS, LOCK_SECONDS = 0.25, 0.5


class Tasks:
    """The tasks of xapi, and how many ran at once at most."""

    def __init__(self):
        self.lock = threading.Lock()
        self.ends = {}
        self.most = 0

    def begin(self, seconds):
        with self.lock:
            now = time.monotonic()
            task = 'OpaqueRef:' + str(uuid.uuid4())
            self.ends[task] = now + seconds
            self.most = max(self.most, sum(end > now for end in self.ends.values()))
            return task

    def status(self, task):
        with self.lock:
            return 'pending' if self.ends[task] > time.monotonic() else 'success'


TASKS = Tasks()


class Clones:
    """The tasks of Proxmox. A clone needs the lock of its storage, for which it waits only so long."""

    def __init__(self):
        self.storage = threading.Lock()
        self.states = {}

    def begin(self, vmid):
        number = len(self.states) + 1
        upid = f'UPID:pve1:{number:08X}:00000001:60000000:qmclone:{vmid}:root@pam:'
        self.states[upid] = {'status': 'running', 'upid': upid}
        threading.Thread(target=self.run, args=(upid,), daemon=True).start()
        return upid

    def run(self, upid):
        ended = {'status': 'stopped', 'upid': upid, 'exitstatus': 'OK'}
        if self.storage.acquire(timeout=LOCK_SECONDS):
            time.sleep(CLONE_SECONDS)
            self.storage.release()
        else:
            ended['exitstatus'] = "can't lock file '/var/lock/pve-manager/pve-storage-local' - got timeout"
        self.states[upid] = ended


def success(value):
    return {'Status': 'Success', 'Value': value}


def failure(*description):
    return {'Status': 'Failure', 'ErrorDescription': list(description)}


class Pool:
    """Workers that take calls in the order of arrival."""

    def __init__(self, workers):
        self.lock = threading.Lock()
        self.free = workers
        self.waiting = collections.deque()
        self.reads = 0
        self.ahead = []

    def run(self, method):
        turn = threading.Event()
        with self.lock:
            # Those that wait, and one that must end.
            ahead = 0 if self.free else len(self.waiting) + 1
            if method == 'VM.start':
                self.ahead.append(ahead)
            else:
                self.reads += 1
            if self.free:
                self.free -= 1
                turn.set()
            else:
                self.waiting.append(turn)
        turn.wait()
        time.sleep(SECONDS[method])
        with self.lock:
            if self.waiting:
                self.waiting.popleft().set()
            else:
                self.free += 1

    def report(self):
        with self.lock:
            report = {'ahead': self.ahead, 'reads': self.reads}
            self.ahead, self.reads = [], 0
            return report


def xapi(method, params, pool=None):
    """The part of xapi that clients of these tests use: sessions, calls with a session, tasks, events."""
    if method == 'session.login_with_password':
        if params[1] != 'right':
            return failure('SESSION_AUTHENTICATION_FAILED', params[0], 'the password is wrong')
        session = 'OpaqueRef:' + str(uuid.uuid4())
        SESSIONS[session] = params[0]
        return success(session)
    if not params or params[0] not in SESSIONS:
        return failure('SESSION_INVALID', params[0] if params else '')
    if method == 'session.logout':
        del SESSIONS[params[0]]
        return success('')
    if pool and method in SECONDS:
        pool.run(method)
    elif method == 'VM.start':
        time.sleep(0.05)
    if method == 'VM.start':
        return success('')
    if method.startswith('Async.'):
        return success(TASKS.begin(START_SECONDS if method == 'Async.VM.start' else 0))
    if method in ('task.get_record', 'task.get_status'):
        status = TASKS.status(params[1])
        return success(status if method == 'task.get_status' else {'status': status, 'progress': 1.0, 'result': ''})
    if method == 'tests.most_tasks':
        return success(str(TASKS.most))
    if method == 'event.from':
        time.sleep(0.5)
        return success({'events': [], 'token': '1', 'valid_ref_counts': {}})
    if method in ('VM.get_all_records', 'host.get_all_records'):
        return success({})
    return failure('MESSAGE_METHOD_UNKNOWN', method)


def ethereum(method, _params):
    """A node that knows four methods."""
    if method == 'eth_getLogs':
        time.sleep(0.05)
    known = {'eth_chainId': '0x1', 'eth_blockNumber': '0x10', 'eth_getLogs': [], 'net_version': '1'}
    return known[method]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    # A reply is two writes, of which the second would wait for the client's acknowledgement.
    disable_nagle_algorithm = True
    kind = None
    pool = None
    clones = Clones()

    def do_GET(self):
        if self.kind == 'proxmox':
            upid = urllib.parse.unquote(self.path.split('/')[-2])
            return self.send('application/json', json.dumps({'data': self.clones.states[upid]}).encode())
        self.send('application/json', json.dumps(self.pool.report()).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        if self.kind == 'proxmox':
            upid = self.clones.begin(self.path.split('/')[-2])
            return self.send('application/json', json.dumps({'data': upid}).encode())
        if self.kind == 'openai':
            return self.complete(json.loads(body))
        if self.kind == 'xapi' and self.path != '/jsonrpc':
            params, method = xmlrpc.client.loads(body)
            answer = xmlrpc.client.dumps((xapi(method, params, self.pool),), methodresponse=True)
            return self.send('text/xml', answer.encode())
        calls = json.loads(body)
        answers = [self.json_rpc(call) for call in (calls if isinstance(calls, list) else [calls])]
        answer = answers if isinstance(calls, list) else answers[0]
        self.send('application/json', json.dumps(answer).encode())

    def json_rpc(self, call):
        answer = {'jsonrpc': '2.0', 'id': call.get('id')}
        params = call.get('params', [])
        if self.kind == 'ethereum':
            return dict(answer, result=ethereum(call['method'], params))
        done = xapi(call['method'], params, self.pool)
        if done['Status'] == 'Success':
            return dict(answer, result=done['Value'])
        code, *rest = done['ErrorDescription']
        return dict(answer, error={'code': 1, 'message': code, 'data': rest})

    def complete(self, asked):
        """Ten tokens, in a stream if that is asked for."""
        model, usage = asked['model'], {'prompt_tokens': 3, 'completion_tokens': 10, 'total_tokens': 13}
        base = {'id': 'chatcmpl-1', 'created': 1, 'model': model}
        if not asked.get('stream'):
            message = {'role': 'assistant', 'content': 'token ' * 10}
            choice = {'index': 0, 'message': message, 'finish_reason': 'stop'}
            answer = dict(base, object='chat.completion', choices=[choice], usage=usage)
            return self.send('application/json', json.dumps(answer).encode())
        self.send_response(200)
        self.send_header('Content-Type', 'text/event-stream')
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        chunk = dict(base, object='chat.completion.chunk')
        for _ in range(10):
            choice = {'index': 0, 'delta': {'content': 'token '}, 'finish_reason': None}
            self.event(json.dumps(dict(chunk, choices=[choice])))
            time.sleep(0.01)
        self.event(json.dumps(dict(chunk, choices=[], usage=usage)))
        self.event('[DONE]')
        self.wfile.write(b'0\r\n\r\n')

    def event(self, data):
        event = f'data: {data}\n\n'.encode()
        self.wfile.write(b'%x\r\n%s\r\n' % (len(event), event))

    def send(self, kind, body):
        self.send_response(200)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, address):
        # A client may leave.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, address)


def mcp(port):
    """A server made with the real library."""
    import anyio
    from mcp.server.mcpserver import MCPServer

    server = MCPServer('stand-in', log_level='ERROR')

    @server.tool()
    def slow() -> str:
        return 'slow'

    @server.tool()
    def fast() -> str:
        return 'fast'

    def report():
        while True:
            try:
                socket.create_connection(('127.0.0.1', port)).close()
            except OSError:
                time.sleep(0.02)
                continue
            return print('ready', flush=True)

    threading.Thread(target=report, daemon=True).start()
    anyio.run(lambda: server.run_streamable_http_async(port=port))


def main():
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == 'mcp':
        return mcp(port)
    Handler.kind = kind
    if len(sys.argv) > 3:
        Handler.pool = Pool(int(sys.argv[3]))
    server = Server(('127.0.0.1', port), Handler)
    print('ready', flush=True)
    server.serve_forever()


main()
