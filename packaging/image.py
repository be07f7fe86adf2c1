"""An image for each architecture, in one archive of the OCI's layout: the programs in an empty file system, as the Dockerfile
builds it. The tag `slim` has only the sidecar. No engine is needed, neither here nor to read it: an archive of JSON and tar.

The layout is that of https://github.com/opencontainers/image-spec, version 1.1.
"""

import datetime
import gzip
import hashlib
import json
import re
import subprocess
from pathlib import Path

from archive import Entry, archive
from build import PROGRAMS

USER = 65532
# For s390x, which has no static program: glibc of the cross compiler of Debian, as its user would copy it from a system.
GLIBC = {"s390x": Path("/usr/s390x-linux-gnu/lib")}
FORMAT = "application/vnd.oci.image"


class Layout:
    """The blobs of an image layout, by their digest."""

    def __init__(self):
        self.blobs = {}

    def add(self, data, kind, **more):
        """Adds bytes or JSON; returns the descriptor by which another blob names it."""
        if not isinstance(data, bytes):
            data = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data), **more}

    def entries(self, index):
        yield Entry("oci-layout", 0o644, b'{"imageLayoutVersion":"1.0.0"}')
        yield Entry("index.json", 0o644, json.dumps(index, sort_keys=True).encode())
        for digest, data in self.blobs.items():
            yield Entry(f"blobs/sha256/{digest}", 0o644, data)


# What is appended to the version in the name of an image, and its programs.
TAGS = {"": tuple(PROGRAMS), "-slim": ("tidegate",)}


def pack(jobs, commit):
    """Writes the archive; returns its path."""
    layout = Layout()
    kind = f"{FORMAT}.index.v1+json"
    named = [index(layout, jobs, commit, tag, kind) for tag in TAGS]
    outer = {"schemaVersion": 2, "mediaType": kind, "manifests": named}
    path = jobs[0].out / f"tidegate-{jobs[0].version}-image.tar"
    path.write_bytes(archive(layout.entries(outer), jobs[0].time))
    return path


def index(layout, jobs, commit, tag, kind):
    """Adds the images of one tag; returns their descriptor."""
    version, time = jobs[0].version, jobs[0].time
    created = datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.description": jobs[0].summary,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.revision": commit,
        "org.opencontainers.image.title": "tidegate",
        "org.opencontainers.image.version": version,
    }
    manifests = []
    for job in jobs:
        layer = archive(file_system(job, TAGS[tag]), time)
        platform = {"architecture": job.architecture.image, "os": "linux"}
        config = {
            **platform,
            "created": created,
            "config": {
                "User": f"{USER}:{USER}",
                "ExposedPorts": {"8081/tcp": {}, "9180/tcp": {}},
                "Entrypoint": ["/tidegate"],
                "Cmd": ["serve"],
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            "history": [{"created": created, "created_by": "packaging/image.py"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{FORMAT}.manifest.v1+json",
            "config": layout.add(config, f"{FORMAT}.config.v1+json"),
            "layers": [layout.add(gzip.compress(layer, mtime=0), f"{FORMAT}.layer.v1.tar+gzip")],
            "annotations": labels,
        }
        manifests.append(layout.add(manifest, manifest["mediaType"], platform=platform))
    images = {"schemaVersion": 2, "mediaType": kind, "manifests": manifests, "annotations": labels}
    return layout.add(images, kind, annotations={"org.opencontainers.image.ref.name": version + tag})


def file_system(job, names):
    """The files of an image with these programs."""
    programs = [job.programs / name for name in names]
    for program in programs:
        yield Entry(program.name, 0o755, program.read_bytes())
    # `serve` writes its admin address here, for `healthcheck`.
    yield Entry("run/tidegate", 0o755, None, owner=USER)
    if job.architecture.is_static:
        return
    libraries = GLIBC[job.architecture.name]
    command = ["readelf", "--wide", "--dynamic", "--program-headers", *programs]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Libraries, and the loader that finds them, which may be among them.
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]|program interpreter: /lib/(.+)\]", read)
    for name in sorted({library or loader for library, loader in needed}):
        yield Entry(f"lib/{name}", 0o755, (libraries / name).read_bytes())
