"""A service manager for one sidecar, as far as sockets matter: sd_listen_fds(3), and FDSTORE= of sd_notify(3).

  exchange.py socket|store DIR ADDRESS... -- PROGRAM ARGUMENTS...

With `socket` it listens on the addresses itself (a port of 127.0.0.1, or the path of a socket file), as a socket unit does.
With `store` it keeps what the sidecar gives it. Each line on stdin is the name of a signal: it ends the sidecar by that, and starts
the next one at once; HUP is a reload. The end of stdin ends both. It prints `ready` when a sidecar is ready, also after a reload.
"""
import ctypes
import os
import signal
import socket
import sys

FIRST = 3
PR_SET_PDEATHSIG = 1


def listening(address):
    if address.startswith('/'):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
    else:
        listener = socket.socket(socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(('127.0.0.1', int(address)))
    listener.listen(4096)
    return listener


def start(command, notify, kept, stores):
    """Passes the sockets as 3, 4, ..., with the pid of the process that is to take them."""
    environment = dict(os.environ, NOTIFY_SOCKET=notify)
    if stores:
        environment['FDSTORE'] = '64'
    pid = os.fork()
    if pid:
        return pid
    # It ends with this process, however that ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Above all places, so that none is overwritten before it is copied.
    high = [os.dup2(each.fileno(), 100 + place) for place, each in enumerate(kept)]
    for place, each in enumerate(high):
        os.dup2(each, FIRST + place, inheritable=True)
        os.close(each)
    if kept:
        environment.update(LISTEN_FDS=str(len(kept)), LISTEN_PID=str(os.getpid()))
    os.execve(command[0], command, environment)


def same(one, other):
    return one.getsockname() == other.getsockname()


def main():
    kind, folder = sys.argv[1:3]
    split = sys.argv.index('--')
    addresses, command = sys.argv[3:split], sys.argv[split + 1:]
    kept = [listening(address) for address in addresses] if kind == 'socket' else []
    notify = os.path.join(folder, 'notify.sock')
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(notify)

    def until_ready():
        while True:
            said, passed, _, _ = socket.recv_fds(manager, 4096, 16)
            for each in passed:
                each = socket.socket(fileno=each)
                if not any(same(each, it) for it in kept):
                    kept.append(each)
            if b'FDSTOREREMOVE=1' in said:
                name = said.split(b'FDNAME=')[1].split(b'\n')[0].decode()
                kept[:] = [it for it in kept if '%s-%d' % it.getsockname() != name]
            if b'READY=1' in said:
                print('ready', len(kept), flush=True)
                return

    pid = start(command, notify, kept, kind == 'store')
    until_ready()
    for line in sys.stdin:
        os.kill(pid, getattr(signal, 'SIG' + line.strip()))
        if line.strip() != 'HUP':
            os.waitpid(pid, 0)
            pid = start(command, notify, kept, kind == 'store')
        until_ready()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


main()
