// Reads bodies of JSON as a server in Node does. See peer.py for the lines of stdin and stdout.

"use strict";

function read(body, place) {
  let value;
  try {
    value = JSON.parse(body.toString("utf8"));
  } catch {
    return false;
  }
  for (const step of place.split("/").slice(1)) {
    if (value === null || typeof value !== "object" || !Object.hasOwn(value, step)) return null;
    value = value[step];
  }
  // Half a surrogate pair cannot be written.
  if (typeof value === "string") return value.toWellFormed();
  return typeof value === "number" ? value : null;
}

const lines = require("fs").readFileSync(0, "utf8").split("\n").filter(Boolean);
for (const line of lines) {
  const { kind, place, hex } = JSON.parse(line);
  const value = kind === "json" ? read(Buffer.from(hex, "hex"), place) : null;
  console.log(JSON.stringify(value));
}
