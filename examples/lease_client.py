#!/usr/bin/env python3
"""A capacity-lease client in Python, to start from: keeps the lease of one resource.

    pip install grpcio grpcio-tools
    python3 examples/lease_client.py --server 127.0.0.1:6666 --resource backend --wants 10

It prints the usable capacity each time it changes, and releases it at the end (ctrl-c).
If you want to wait for a turn instead of counting, use `tidegate lease-agent`.

Keep four rules when you copy it:

- A lease counts from the moment its request was *sent*, by the length that the server's own
  clock gives: neither a slow answer nor a wrong clock makes it longer.
- After its end, use the safe capacity: 0 is nothing, -1 is no limit.
- Every request has a deadline. A server that is not the master names the master.
- Ask for no resource twice within five seconds: the server would leave it out.
"""

import argparse
import math
import os
import pathlib
import random
import signal
import sys
import threading
import time
import uuid

import grpc

# The messages are made from the .proto at run time. A larger program would do it once.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "crates/leases/proto"))
messages, services = grpc.protos_and_services("doorman.proto")

DEADLINE = 5.0  # seconds, of each request
HOPS = 5  # how often one request is redirected
BACK_OFF, BACK_OFF_MAX = 1.3, 60.0  # seconds


class Lease:
    """The usable capacity of one resource, and its end."""

    def __init__(self, servers, resource, wants, safe=0.0, interval=5.0):
        self.servers, self.resource, self.wants = servers, resource, wants
        self.safe, self.interval = safe, interval
        self.client = f"{os.uname().nodename}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.has, self.ends = None, 0.0
        self.master, self.failures = None, 0

    def capacity(self):
        """The capacity that is usable now; math.inf is no limit."""
        if self.has is not None and time.monotonic() < self.ends:
            return self.has.capacity
        return math.inf if self.safe == -1 else self.safe

    def refresh(self):
        """Asks once; returns how many seconds to wait before the next time."""
        request = messages.GetCapacityRequest(client_id=self.client)
        asked = request.resource.add(resource_id=self.resource, priority=0, wants=self.wants)
        if self.has is not None and time.monotonic() < self.ends:
            asked.has.CopyFrom(self.has)
        try:
            sent, answer, call = self.ask("GetCapacity", request)
        except (grpc.RpcError, LookupError):
            self.failures += 1
            pause = min(BACK_OFF**self.failures, BACK_OFF_MAX) * random.uniform(0.5, 1)
            return max(pause, self.interval)
        self.failures = 0
        now_ms = dict(call.initial_metadata()).get("tidegate-now-ms", time.time() * 1000)
        for got in answer.response:
            if got.resource_id == self.resource:
                self.take(got, sent, float(now_ms) / 1000)
        wait = self.has.refresh_interval if self.has else 0
        wait = min(wait, (self.ends - sent) / 2)
        return max(wait, self.interval)

    def take(self, got, sent, server_now):
        """Keeps the lease in an answer, if it is valid."""
        if got.HasField("safe_capacity") and (got.safe_capacity == -1 or is_capacity(got.safe_capacity)):
            self.safe = got.safe_capacity
        ends = sent + got.gets.expiry_time - server_now
        if is_capacity(got.gets.capacity) and ends > time.monotonic():
            self.has, self.ends = got.gets, ends

    def release(self):
        """Releases the lease. If no server gets the message, the lease expires by itself."""
        request = messages.ReleaseCapacityRequest(client_id=self.client)
        request.resource_id.append(self.resource)
        try:
            self.ask("ReleaseCapacity", request)
        except (grpc.RpcError, LookupError):
            pass

    def ask(self, method, request):
        """Finds the master; returns when the request was sent to it, and its answer."""
        tried = 0
        for _ in range(HOPS + len(self.servers)):
            server = self.master or self.servers[tried % len(self.servers)]
            with grpc.insecure_channel(server) as channel:
                sent = time.monotonic()
                call = getattr(services.CapacityStub(channel), method)
                try:
                    answer, call = call.with_call(request, timeout=DEADLINE)
                except grpc.RpcError:
                    # Back to the addresses that were given; each is tried once.
                    tried += self.master is None
                    self.master = None
                    if tried >= len(self.servers):
                        raise
                    continue
            if not answer.HasField("mastership"):
                return sent, answer, call
            self.master = answer.mastership.master_address or None
            if self.master is None:
                break
        self.master = None
        raise LookupError("no server knows the master")


def is_capacity(number):
    return math.isfinite(number) and number >= 0


def main():
    arguments = argparse.ArgumentParser(description="Keeps the lease of one resource.")
    arguments.add_argument("--server", action="append", required=True, metavar="HOST:PORT")
    arguments.add_argument("--resource", required=True)
    arguments.add_argument("--wants", type=float, required=True)
    arguments.add_argument("--interval", type=float, default=5.0, help="seconds between requests")
    given = arguments.parse_args()

    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    lease = Lease(given.server, given.resource, given.wants, interval=given.interval)
    shown, due = None, 0.0
    while not end.is_set():
        if time.monotonic() >= due:
            due = time.monotonic() + lease.refresh()
        if lease.capacity() != shown:
            shown = lease.capacity()
            print(f"{lease.resource}: {shown}", flush=True)
        # Until the next request, or until the lease ends before it.
        wake = min(due, lease.ends) if lease.ends > time.monotonic() else due
        end.wait(max(wake - time.monotonic(), 0.001))
    lease.release()
    print(f"{lease.resource}: released", flush=True)


if __name__ == "__main__":
    main()
