"""A client from another stack: python client.py ADDRESS prints what it saw as JSON.

It begins at ADDRESS, follows redirects, asks, renews, asks as a server, and gives back.
"""

import json
import sys
import time

import grpc

from stubs import pb, rpc


def connect(address):
    return rpc.CapacityStub(grpc.insecure_channel(address))


def ask(stub, who, wants, has=None):
    request = pb.GetCapacityRequest(client_id=who)
    one = request.resource.add(resource_id="disk", priority=0, wants=wants)
    if has is not None:
        one.has.CopyFrom(has)
    answer, call = stub.GetCapacity.with_call(request, timeout=10)
    metadata = dict(call.initial_metadata())
    return answer, int(metadata["tidegate-now-ms"])


address = sys.argv[1]
seen = {"redirects": 0}
while True:
    stub = connect(address)
    found = stub.Discovery(pb.DiscoveryRequest(), timeout=10)
    answer, now_ms = ask(stub, "first", 80.0)
    if not answer.HasField("mastership"):
        break
    # Both calls return the same.
    assert not found.is_master and found.mastership == answer.mastership
    assert not answer.response
    seen["redirects"] += 1
    address = answer.mastership.master_address

assert found.is_master
lease = answer.response[0].gets
seen["first"] = lease.capacity
seen["seconds"] = (lease.expiry_time * 1000 - now_ms) / 1000
seen["clock_apart"] = abs(now_ms / 1000 - time.time())
seen["safe"] = answer.response[0].safe_capacity

answer, _ = ask(stub, "second", 80.0)
seen["second"] = answer.response[0].gets.capacity
answer, _ = ask(stub, "first", 80.0, has=lease)
seen["first_again"] = answer.response[0].gets.capacity

request = pb.GetServerCapacityRequest(server_id="below")
one = request.resource.add(resource_id="files")
one.wants.add(priority=0, num_clients=2, wants=30.0)
answer = stub.GetServerCapacity(request, timeout=10)
seen["server"] = answer.response[0].gets.capacity
seen["kind"] = pb.Algorithm.Kind.Name(answer.response[0].algorithm.kind)

released = pb.ReleaseCapacityRequest(client_id="first", resource_id=["", "disk"])
assert not stub.ReleaseCapacity(released, timeout=10).HasField("mastership")
answer, _ = ask(stub, "third", 40.0)
seen["third"] = answer.response[0].gets.capacity

# A message without a required field is refused, with its name. protobuf itself would not send it.
channel = grpc.insecure_channel(address)
raw = channel.unary_unary("/doorman.Capacity/GetCapacity")
for name, sent in [("missing", b""), ("garbage", b"\xff\xff")]:
    try:
        raw(sent, timeout=10)
        seen[name] = "taken"
    except grpc.RpcError as error:
        seen[name] = error.code().name

print(json.dumps(seen))
