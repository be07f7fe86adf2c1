"""A backend on TLS, by Python's ssl (OpenSSL), for tests: answers both dialects.

    tls_server.py CERT KEY [CLIENT_CA|-] [TLSv1_2|TLSv1_3|-] [ragged]

Prints its port. Answers each HTTP request and each array, and prints "call" for each.
"ragged" closes connections without the end of TLS.
"""

import socket
import ssl
import sys
import threading

OK = b'{"overallRC": 0, "modID": null, "rc": 0, "rs": 0, "errmsg": "", "output": ""}'


def serve(plain, context, ragged):
    try:
        connection = context.wrap_socket(plain, server_side=True)
    except (ssl.SSLError, OSError):
        plain.close()
        return
    held = b""
    try:
        while True:
            some = connection.recv(65536)
            if not some:
                break
            held += some
            if held.startswith(b"["):
                print("call", flush=True)
                connection.sendall(OK)
                break
            while b"\r\n\r\n" in held:
                head, _, rest = held.partition(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                while len(rest) < length:
                    rest += connection.recv(65536)
                held = rest[length:]
                print("call", flush=True)
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(OK)
                connection.sendall(head + OK)
        if not ragged:
            connection = connection.unwrap()
    except (ssl.SSLError, OSError):
        pass
    connection.close()


def main():
    cert, key, client_ca, version = (sys.argv[1:] + ["-"] * 4)[:4]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["http/1.1"])
    if client_ca != "-":
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    if version != "-":
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    while True:
        plain, _ = listener.accept()
        arguments = (plain, context, "ragged" in sys.argv)
        threading.Thread(target=serve, args=arguments, daemon=True).start()


main()
