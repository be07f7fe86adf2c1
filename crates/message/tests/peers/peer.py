"""Reads bodies as a server in Python does.

Each line of stdin is {"kind": "json" | "xml", "place": …, "hex": …}. Each line of stdout is the value at the
place: a string or a number, null if there is none, false if the parser refuses the body.
"""

import json
import sys
import xmlrpc.client


def read_json(body, place):
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    for step in place.split("/")[1:]:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    is_plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return value if is_plain else None


def read_xml(body, place):
    try:
        params, method = xmlrpc.client.loads(body, use_builtin_types=True)
    except Exception:
        return False
    if place == "methodName":
        return method
    number = int(place.split("/")[2])
    value = params[number] if number < len(params) else None
    return value if isinstance(value, str) else str(value) if type(value) is int else None


for line in sys.stdin:
    question = json.loads(line)
    body = bytes.fromhex(question["hex"])
    read = {"json": read_json, "xml": read_xml}[question["kind"]]
    value = read(body, question["place"])
    if isinstance(value, str):
        # Half a surrogate pair cannot be written.
        value = value.encode(errors="backslashreplace").decode()
    print(json.dumps(value), flush=True)
