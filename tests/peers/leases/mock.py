"""A server from another stack: python mock.py prints its port, then a line for each request.

It leases half of what is wanted, for 60 s, and knows of no metadata of ours. With a word as
its argument it is not the master, and that word is the master's address.
"""

import concurrent.futures
import json
import sys
import time

import grpc
from google.protobuf import json_format

from stubs import pb, rpc

MASTER = sys.argv[1] if len(sys.argv) > 1 else None


def tell(name, request):
    print(json.dumps({"call": name, "request": json_format.MessageToDict(
        request, preserving_proto_field_name=True)}), flush=True)


def lease(capacity):
    return pb.Lease(expiry_time=int(time.time()) + 60, refresh_interval=5, capacity=capacity)


class Mock(rpc.CapacityServicer):
    def Discovery(self, request, context):
        mastership = pb.Mastership(master_address=MASTER or "here")
        return pb.DiscoveryResponse(mastership=mastership, is_master=MASTER is None)

    def GetCapacity(self, request, context):
        tell("GetCapacity", request)
        answer = pb.GetCapacityResponse()
        if MASTER:
            answer.mastership.master_address = MASTER
            return answer
        for one in request.resource:
            answer.response.add(resource_id=one.resource_id, gets=lease(one.wants / 2))
        return answer

    def GetServerCapacity(self, request, context):
        tell("GetServerCapacity", request)
        answer = pb.GetServerCapacityResponse()
        if MASTER:
            answer.mastership.master_address = MASTER
            return answer
        for one in request.resource:
            wants = sum(band.wants for band in one.wants)
            algorithm = pb.Algorithm(
                kind=pb.Algorithm.FAIR_SHARE, lease_length=60, refresh_interval=5,
                learning_mode_duration=0)
            answer.response.add(
                resource_id=one.resource_id, gets=lease(wants / 2), algorithm=algorithm)
        return answer

    def ReleaseCapacity(self, request, context):
        tell("ReleaseCapacity", request)
        return pb.ReleaseCapacityResponse()


server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=4))
rpc.add_CapacityServicer_to_server(Mock(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
# Exits with the process that started it.
sys.stdin.read()
server.stop(0)
