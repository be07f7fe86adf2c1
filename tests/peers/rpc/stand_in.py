"""A server that answers as a real one of its kind does: stand_in.py xapi|openai|ethereum|mcp PORT [WORKERS]. Prints `ready` once it
listens. With a number of workers, calls of xapi that read or start wait for one of them, in the order of arrival, and GET tells what
each start met."""
import collections
import http.server
import json
import socket
import sys
import threading
import time
import uuid
import xmlrpc.client

SESSIONS = {}
# How long a worker takes for a call, if there are workers.
SECONDS = {'VM.start': 0.05, 'VM.get_all_records': 0.04, 'host.get_all_records': 0.04}


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
        return success('OpaqueRef:task')
    if method == 'task.get_record':
        return success({'status': 'success', 'progress': 1.0, 'result': ''})
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

    def do_GET(self):
        self.send('application/json', json.dumps(self.pool.report()).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
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
