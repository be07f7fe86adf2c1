#!/usr/bin/env python3
"""Serves the real zvmsdk.sdkwsgi application over HTTP/1.1 on 127.0.0.1.

It asks the sdkserver at --sdk-port over the socket protocol, so Tidegate can stand in
front of it (HTTP) or behind it (--sdk-port is then Tidegate's port).
"""
import argparse
import os
import types

import common

ap = argparse.ArgumentParser(description=__doc__,
                             formatter_class=argparse.RawDescriptionHelpFormatter)
common.base_args(ap)
ap.add_argument('--sdk-port', type=int, required=True)
ap.add_argument('--files', required=True, help='where PUT /files goes')
ap.add_argument('--admin-token', help='switches auth=token on; the token stands in STATE/token')
opts = ap.parse_args()

token_path = os.path.join(opts.state, 'token')
common.prepare(opts.state, {
    'sdkserver': {'bind_addr': '127.0.0.1', 'bind_port': opts.sdk_port},
    'file': {'file_repository': opts.files},
    'wsgi': {'auth': 'token' if opts.admin_token else 'none', 'token_path': token_path}})
if opts.admin_token:
    with open(token_path, 'w') as out:
        out.write(opts.admin_token + '\n')

import waitress  # noqa: E402
from zvmsdk.sdkwsgi import deploy  # noqa: E402  (it reads the config when imported)
from zvmsdk.sdkwsgi.handlers import file  # noqa: E402

# Its answer names the file that it wrote. A constant name makes answers comparable.
file.uuid = types.SimpleNamespace(uuid1=lambda: 'imported')

# The default is 2 processes of 32 threads, under uwsgi.
server = waitress.create_server(deploy.loadapp(), host='127.0.0.1', port=opts.port, threads=64,
                                connection_limit=2000, backlog=1024)
common.end_with_stdin()
common.ready(port=int(server.effective_port), token_path=token_path)
server.run()
