"""Writes into evasions.json what each parser reads.

    record.py evasions.json NAME=COMMAND …

Each command is a peer as peer.py describes, such as `python="python3 peer.py"`. Results of parsers that are not
named stay as they are.
"""

import json
import shlex
import subprocess
import sys

path, *peers = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    rows = json.load(file)


def body_of(row):
    return bytes.fromhex(row["hex"]) if "hex" in row else row["body"].encode()


for peer in peers:
    name, command = peer.split("=", 1)
    kinds = {"node": ["json"], "go_stream": ["json"], "gson": ["json"]}.get(name, ["json", "xml"])
    asked = [row for row in rows if row["kind"] in kinds]
    lines = "".join(
        json.dumps({"kind": row["kind"], "place": row["place"], "hex": body_of(row).hex()}) + "\n" for row in asked
    )
    answer = subprocess.run(shlex.split(command), input=lines, capture_output=True, check=True, text=True)
    for row, line in zip(asked, answer.stdout.removesuffix("\n").split("\n"), strict=True):
        row[name] = json.loads(line)

with open(path, "w", encoding="utf-8") as file:
    file.write("[\n" + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]\n")
