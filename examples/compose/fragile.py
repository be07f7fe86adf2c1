"""A service that fails when too many calls arrive at once.

It answers within 50 ms. Above 12 calls at once it answers every call with 500 for a second.
"""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MOST = 12
lock = threading.Lock()
running, broken_until = 0, 0.0


class Call(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        global running, broken_until
        with lock:
            running += 1
            if running > MOST:
                broken_until = time.monotonic() + 1
            is_broken = time.monotonic() < broken_until
        time.sleep(0.05)
        with lock:
            running -= 1
        body = b"too many calls at once\n" if is_broken else b"hello\n"
        self.send_response(500 if is_broken else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Tidegate has an access log."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


if __name__ == "__main__":
    Server(("", 8080), Call).serve_forever()
