"""The protocol's Python code, made from crates/leases/proto/doorman.proto on demand."""

import pathlib
import sys
import tempfile

from grpc_tools import protoc

_proto = pathlib.Path(__file__).resolve().parents[3] / "crates/leases/proto"
_made = tempfile.TemporaryDirectory()
_failed = protoc.main([
    "protoc", f"-I{_proto}", f"--python_out={_made.name}", f"--grpc_python_out={_made.name}",
    str(_proto / "doorman.proto"),
])
if _failed:
    sys.exit("protoc refuses proto/doorman.proto")
sys.path.insert(0, _made.name)

import doorman_pb2 as pb  # noqa: E402
import doorman_pb2_grpc as rpc  # noqa: E402
