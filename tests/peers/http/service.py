"""An HTTP service that uses each form of a reply. Prints its port."""
import http.server
import socketserver
import sys

LARGE = b'0123456789abcdef' * (5 << 16)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    timeout = 30

    def log_message(self, *_):
        pass

    def read_body(self):
        if self.headers.get('Transfer-Encoding', '').lower() != 'chunked':
            return self.rfile.read(int(self.headers.get('Content-Length', 0)))
        body = b''
        while True:
            size = int(self.rfile.readline().split(b';')[0], 16)
            body += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                return body

    def reply(self, body, status=200, **fields):
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name.replace('_', '-'), value)
        if status != 204:
            self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def do_GET(self):
        if self.path == '/large':
            self.reply(LARGE)
        elif self.path == '/chunks':
            self.send_response(200)
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            for at in range(0, len(LARGE), 40_000):
                part = LARGE[at:at + 40_000]
                self.wfile.write(b'%x\r\n%s\r\n' % (len(part), part))
            self.wfile.write(b'0\r\n\r\n')
        elif self.path == '/close':
            self.send_response(200)
            self.send_header('Connection', 'close')
            self.end_headers()
            self.wfile.write(LARGE)
            self.close_connection = True
        elif self.path == '/empty':
            self.reply(b'', 204)
        elif self.path == '/hints':
            self.wfile.write(b'HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n')
            self.reply(b'hello')
        else:
            self.reply(b'hello')

    do_HEAD = do_GET

    def do_POST(self):
        if self.path == '/refuse':
            # The rest of the body stays unread.
            self.rfile.read(1000)
            self.reply(b'too large', 413, Connection='close')
            self.close_connection = True
        else:
            self.reply(b'%d' % len(self.read_body()))


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 100


server = Server(('127.0.0.1', 0), Handler)
print(server.server_port, flush=True)
sys.stdin.close()
server.serve_forever()
