"""Tar archives with the same bytes for the same files: in the order of their paths, all of one time."""

import io
import tarfile
from typing import NamedTuple


class Entry(NamedTuple):
    """A file, or a folder if it has no data."""

    path: str
    mode: int
    data: bytes | None
    owner: int = 0


def archive(entries, time):
    """The bytes of an archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for entry in sorted(entries, key=lambda entry: entry.path):
            header = tarfile.TarInfo(entry.path)
            header.mode, header.mtime, header.uid, header.gid = entry.mode, time, entry.owner, entry.owner
            if entry.data is None:
                header.type = tarfile.DIRTYPE
            else:
                header.size = len(entry.data)
            tar.addfile(header, io.BytesIO(entry.data or b""))
    return buffer.getvalue()
