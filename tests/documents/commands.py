"""Checks that the commands and the data in the documents are right, as far as that can be seen without running them.

Each command of Tidegate has subcommands and flags that exist; each `make` a target; each `curl` of the admin address a path
and a method of docs/reference/openapi.json; each script is a file. YAML and JSON are valid, and what is for Prometheus,
Kubernetes or Compose is accepted by its validator. Configs in TOML are the matter of tests/it/documents.rs. First, mistakes
of each kind must be found in a page that is made of them. Needs .venv-docs and promtool.

    .venv-docs/bin/python tests/documents/commands.py --tidegate target/debug/tidegate --lab target/debug/tidegate-lab
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
# The changelog has names of earlier versions.
PAGES = [it for it in sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")) if it.name != "CHANGELOG.md"]
FENCED = re.compile(r"^( *)```([\w-]*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
SHELL = {"", "sh", "bash", "console"}
LAB = {"demo", "backend", "bench"}
FOLDERS = ("tests/", "examples/", "benches/", "packaging/", "docs/", "link/", "crates/", "src/", "fuzz/")
TOOLS = ("tidegate", "tidegate-lab", "make", "curl", "cargo", "promtool", "sh", "python3", "kubectl", "docker", "install", "sed")
# A part of a command that stands for something else.
STANDS_FOR = re.compile(r"[…<>\[\]]|^\.\.\.$")


@cache
def help_of(program, *words):
    said = subprocess.run([program, *words, "--help"], capture_output=True, text=True)
    return said.stdout if said.returncode == 0 else None


@cache
def flags_of(program, *words):
    return set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", help_of(program, *words)))


@cache
def commands_of(program, *words):
    # The first page of tidegate has its commands in groups, above the options.
    shown = help_of(program, *words)
    before, _, listed = shown.partition("\nCommands:\n")
    listed = listed.split("\n\n")[0] or before.split("\nOptions:\n")[0].split("\nUsage:")[-1]
    return set(re.findall(r"^  ([a-z][\w-]*)  +\w", listed, re.MULTILINE))


@cache
def makefile():
    return (ROOT / "Makefile").read_text(encoding="utf-8")


@cache
def api():
    """The paths of the admin address with their methods; a path is a pattern."""
    found = next(it for it in (ROOT / "docs/reference/openapi.json", ROOT / "docs/reference/openapi.json") if it.is_file())
    paths = json.loads(found.read_text(encoding="utf-8"))["paths"]
    return [(re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), set(methods)) for path, methods in paths.items()]


class Checker:
    def __init__(self, tidegate, lab):
        self.programs = {"tidegate": str(tidegate), "tidegate-lab": str(lab)}
        self.counts = {}

    def counted(self, kind):
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def tidegate(self, words):
        program, words = self.programs[words[0]], words[1:]
        path, at = [], 0
        while at < len(words) and commands_of(program, *path):
            word = words[at]
            if word.startswith("-") or STANDS_FOR.search(word) or word in ("COMMAND", "X"):
                break
            if word not in commands_of(program, *path):
                # `simulate` takes files as well as commands.
                if path and not re.fullmatch(r"[a-z-]+", word):
                    break
                yield f"no command {word!r}"
                return
            if program == self.programs["tidegate"] and not path and word in LAB:
                program = self.programs["tidegate-lab"]
            path.append(word)
            at += 1
        self.counted("tidegate")
        for word in words[at:]:
            flag = word.split("=")[0]
            if re.fullmatch(r"--?[A-Za-z][\w-]*", flag) and flag not in flags_of(program, *path):
                yield f"`{' '.join(path)}` has no {flag}"

    def make(self, words):
        for word in words[1:]:
            name, is_variable, _ = word.partition("=")
            if STANDS_FOR.search(word) or word.startswith("-"):
                continue
            if is_variable:
                # The tests read this one from the environment.
                if f"$({name})" not in makefile() and name != "TIDEGATE_SEED":
                    yield f"the Makefile has no {name}"
            elif not re.search(rf"^{re.escape(name)}:", makefile(), re.MULTILINE):
                yield f"the Makefile has no target {name!r}"
            self.counted("make")

    def curl(self, words):
        method = "get"
        has_body = any(it in ("-d", "--data", "--data-binary", "--json") for it in words)
        for flag in ("-X", "--request"):
            if flag in words:
                method = words[words.index(flag) + 1].lower()
        if method == "get" and has_body:
            method = "post"
        for word in words[1:]:
            match = re.fullmatch(r"(?:http://)?(?:[\w.$-]+)(:\d+)?(/[^?#]*)(?:[?#].*)?", word)
            is_ours = match and (match.group(1) == ":9180" or match.group(2).startswith("/v1/"))
            # The lease server and the agent have addresses of their own, and a model server has paths of its own.
            is_others = match and (match.group(1) in (":9191", ":9192") or match.group(2).startswith("/v1/chat/"))
            if not is_ours or is_others or STANDS_FOR.search(word):
                continue
            self.counted("curl")
            methods = [methods for path, methods in api() if path.fullmatch(match.group(2))]
            if not methods:
                yield f"the API has no {match.group(2)}"
            elif not any(method in it for it in methods):
                yield f"the API has no {method.upper()} {match.group(2)}"

    def cargo(self, words):
        for flag, following in zip(words, words[1:]):
            if flag in ("-p", "--package") and not STANDS_FOR.search(following):
                folder = "." if following == "tidegate" else f"crates/{following.removeprefix('tidegate-')}"
                if not (ROOT / folder / "Cargo.toml").is_file():
                    yield f"no crate {following}"
        self.counted("cargo")
        if words[1:3] == ["run", "--"]:
            yield from self.tidegate(["tidegate", *words[3:]])

    def promtool(self, words):
        self.counted("promtool")
        if not re.match(r"(check (config|rules|metrics)|test rules)$", " ".join(words[1:3])):
            yield f"promtool has no {' '.join(words[1:3])!r}"

    def command(self, line):
        """The mistakes of one command line."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] in ("sudo", "time", "timeout")):
            words = words[1:]
        if not words:
            return
        name = words[0].rsplit("/", 1)[-1]
        if name in ("tidegate", "tidegate-lab"):
            yield from self.tidegate([name, *words[1:]])
        elif name in ("make", "curl", "cargo", "promtool"):
            yield from getattr(self, name)(words)
        # Scripts, and the files that a command gets.
        if name in TOOLS or words[0].startswith(FOLDERS):
            for word in words:
                word = word.removeprefix("./")
                if word.startswith(FOLDERS) and not STANDS_FOR.search(word) and not re.search(r"[*$]|yours", word):
                    self.counted("file")
                    if not (ROOT / word.rstrip("/")).exists():
                        yield f"no file {word}"

    def shell(self, text, has_prompt):
        """The mistakes of a block of commands. With prompts, what has none is output."""
        text = re.sub(r"\\\n\s*", " ", text)
        for line in text.splitlines():
            line = line.strip()
            if has_prompt:
                if not line.startswith("$ "):
                    continue
                line = line[2:]
            for part in re.split(r"\s(?:\||&&|\|\||;)\s|\$\(|\s&$", line):
                if re.match(rf"(?:[A-Z_]+=\S* )*(?:sudo )?(?:\S*/)?({'|'.join(TOOLS)})( |$)|{'|'.join(FOLDERS)}", part.strip()):
                    for mistake in self.command(part.strip().rstrip(")")):
                        yield f"{part.strip()}: {mistake}"

    def yaml(self, text):
        try:
            documents = [it for it in yaml.safe_load_all(text) if it]
        except yaml.YAMLError as error:
            yield f"not YAML: {error}"
            return
        self.counted("yaml")
        here = Path(sys.executable).parent
        validators = []
        for document in documents:
            if not isinstance(document, dict):
                continue
            if "scrape_configs" in document or "rule_files" in document:
                validators.append(["promtool", "check", "config", "--syntax-only"])
            elif "groups" in document:
                validators.append(["promtool", "check", "rules"])
            elif "apiVersion" in document:
                validators.append([str(here / "kubernetes-validate"), "--strict", "--quiet"])
            elif "services" in document:
                validators.append([str(here / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec"])
        for validator in validators[:1]:
            self.counted("validated")
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "block.yaml"
                path.write_text(text, encoding="utf-8")
                said = subprocess.run([*validator, str(path)], capture_output=True, text=True)
            if said.returncode:
                yield f"{Path(validator[0]).name} refuses it: {said.stdout}{said.stderr}"

    def json(self, text):
        # An excerpt that is cut short.
        if "…" in text:
            return
        self.counted("json")
        try:
            json.loads(text)
        except ValueError:
            try:
                for line in filter(str.strip, text.splitlines()):
                    json.loads(line)
            except ValueError as error:
                yield f"not JSON: {error}: {text[:60]!r}"

    def page(self, text):
        """Every mistake of a page."""
        for indent, language, block in FENCED.findall(text):
            block = "".join(line.removeprefix(indent) for line in block.splitlines(keepends=True))
            if language in SHELL:
                has_prompt = any(line.startswith("$ ") for line in block.splitlines())
                yield from self.shell(block, has_prompt)
            elif language in ("yaml", "yml"):
                yield from self.yaml(block)
            elif language == "json":
                yield from self.json(block)
        for code in INLINE.findall(FENCED.sub("", text)):
            code = " ".join(code.split())
            if re.match(r"(tidegate(-lab)?|make|curl|cargo run --) ", code):
                for mistake in self.command(code):
                    yield f"`{code}`: {mistake}"
            elif re.fullmatch(r"[\w./-]+", code) and code.startswith(FOLDERS):
                self.counted("file")
                if not (ROOT / code).exists():
                    yield f"no file {code}"


# A page of mistakes, each in a block of its own, with what must be found in it.
WRONG = [
    ("```sh\ntidegate serv\n```", "no command 'serv'"),
    ("```\n$ tidegate check --quite --config x\noutput\n```", "`check` has no --quite"),
    ("`tidegate simulate leeses`", "no command 'leeses'"),
    ("`tidegate bench --strom 300`", "`bench` has no --strom"),
    ("```sh\nFOO=1 make tset\n```", "no target 'tset'"),
    ("`make soak MINUTE=1`", "the Makefile has no MINUTE"),
    ("```sh\ncurl -s \\\n  127.0.0.1:9180/v1/limit | grep x\n```", "the API has no /v1/limit"),
    ("```console\n$ curl -X DELETE http://127.0.0.1:9180/v1/limits\n```", "the API has no DELETE /v1/limits"),
    ("```sh\nsh tests/no_such_script.sh\n```", "no file tests/no_such_script.sh"),
    ("`tests/it/no_such_module.rs`", "no file tests/it/no_such_module.rs"),
    ("```sh\ncargo test -p tidegate-nothing\n```", "no crate tidegate-nothing"),
    ("```sh\npromtool check nothing\n```", "promtool has no 'check nothing'"),
    ("```yaml\na: [\n```", "not YAML"),
    ("```yaml\nscrape_configs:\n  - job_nam: x\n```", "promtool refuses it"),
    ("```yaml\ngroups:\n  - name: x\n    rules:\n      - alert: X\n        expr: 'sum('\n```", "promtool refuses it"),
    ("```yaml\napiVersion: v1\nkind: Pod\nmetadata: { name: x }\nspec: { container: [] }\n```", "kubernetes-validate refuses it"),
    ("```yaml\nservices: { x: { imag: y } }\n```", "check-jsonschema refuses it"),
    ("```json\n{\"a\": }\n```", "not JSON"),
]
RIGHT = """
```sh
tidegate check --config x.toml && make test   # as it should be
curl -H "Authorization: Bearer $TOKEN" http://10.1.2.3:9180/v1/limits
```
`tidegate …`, `tidegate lower NAME VALUE --for TIME`, and `make bench ONLY=http`.
"""

# How many there are at least, of each kind.
LEAST = {"file": 60, "tidegate": 150, "make": 60, "curl": 30, "json": 8, "yaml": 4, "validated": 3}


def main():
    parser = argparse.ArgumentParser(description="Checks commands and data in the documents.")
    parser.add_argument("--tidegate", type=Path, default=ROOT / "target/debug/tidegate")
    parser.add_argument("--lab", type=Path, default=ROOT / "target/debug/tidegate-lab")
    arguments = parser.parse_args()
    control = Checker(arguments.tidegate, arguments.lab)
    missed = [wanted for text, wanted in WRONG if not any(wanted in it for it in control.page(text))]
    missed += [f"a mistake in what is right: {it}" for it in control.page(RIGHT)]
    for wanted in missed:
        print(f"control: {wanted}: not as it must be")

    checker = Checker(arguments.tidegate, arguments.lab)
    mistakes = [f"{page.relative_to(ROOT)}: {it}" for page in PAGES for it in checker.page(page.read_text(encoding="utf-8"))]
    for mistake in mistakes:
        print(mistake)
    few = [kind for kind, least in LEAST.items() if checker.counts.get(kind, 0) < least]
    for kind in few:
        print(f"only {checker.counts.get(kind, 0)} of {kind} were found: does the search still work?")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(checker.counts.items())))
    return 1 if mistakes or missed or few else 0


if __name__ == "__main__":
    sys.exit(main())
