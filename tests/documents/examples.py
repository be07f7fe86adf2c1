"""Checks examples/kubernetes and examples/compose, for `make manifests`.

Validators whose schemas come from a package accept each manifest, and refuse it with a mistake in it. Tidegate accepts each
config. Ports, paths, users and times of a manifest are those of its config and of the Dockerfile. Needs .venv-docs.

    .venv-docs/bin/python tests/documents/examples.py --tidegate target/debug/tidegate
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
KUBERNETES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
COMPOSE = ROOT / "examples/compose/compose.yaml"
# The oldest version that the manifests name, and the newest of the package.
VERSIONS = ["1.30", None]
TOKEN = "an-example-of-a-token-for-the-check"

mistakes = []


def must(is_so, what):
    if not is_so:
        mistakes.append(what)


def run(*command, **environment):
    """Whether a command succeeded, and what it printed."""
    said = subprocess.run([str(it) for it in command], capture_output=True, text=True, env={**os.environ, **environment})
    return said.returncode == 0, said.stdout + said.stderr


def kubernetes_takes(path, version):
    command = [Path(sys.executable).with_name("kubernetes-validate"), "--strict", "--quiet"]
    return run(*command, *(["-k", version] if version else []), path)


def compose_takes(path):
    return run(Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path)


def seconds(duration):
    """A duration of a config, or of Compose."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", duration).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def port(address):
    return int(address.rsplit(":", 1)[1])


def ports(config):
    """The ports that a config binds."""
    if "listen" in config:
        return {port(it["bind"]) for it in config["listen"]} | {port(config["admin"]["bind"])}
    return {port(config["bind"]), port(config["status_bind"])}


def defaults():
    """Options of which the examples rely on the default, as the reference has it."""
    page = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    text = page.split("### `server.drain_timeout`\n", 1)[1]
    return {"drain_timeout": re.search(r'default `"(\w+)"`', text).group(1)}


def is_taken(tidegate, text, is_lease_server, where):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(text, encoding="utf-8")
        command = ["lease-server", "--check"] if is_lease_server else ["check", "--quiet"]
        is_good, said = run(tidegate, *command, "--config", path, TIDEGATE_ADMIN__TOKEN=TOKEN)
    must(is_good, f"{where}: {said}")
    # The same config with an option that does not exist.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(f"no_such_option = 1\n{text}", encoding="utf-8")
        is_good, _ = run(tidegate, *command, "--config", path, TIDEGATE_ADMIN__TOKEN=TOKEN)
    must(not is_good, f"{where}: a config with a mistake was accepted")


def dockerfile():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    return {
        "user": re.search(r"^USER (\d+):(\d+)$", text, re.MULTILINE).groups(),
        "ports": {int(it) for it in re.search(r"^EXPOSE (.+)$", text, re.MULTILINE).group(1).split()},
        "health": re.search(r"^HEALTHCHECK .* CMD (\[.+\])$", text, re.MULTILINE).group(1),
        "program": re.search(r'^ENTRYPOINT \["(.+)"\]$', text, re.MULTILINE).group(1),
    }


def check_pod(name, pod, configs, image):
    containers = pod.get("initContainers", []) + pod["containers"]
    ours = next(it for it in containers if "/tidegate:" in it["image"])
    config_path = Path(ours["args"][ours["args"].index("--config") + 1])
    mount = next(it for it in ours["volumeMounts"] if it["mountPath"] == str(config_path.parent))
    volume = next(it for it in pod["volumes"] if it["name"] == mount["name"])
    text = configs[volume["configMap"]["name"]].get(config_path.name)
    must(text is not None, f"{name}: the ConfigMap has no {config_path.name}")
    config = tomllib.loads(text)
    named = {it["name"]: it["containerPort"] for it in ours["ports"]}
    must(set(named.values()) == ports(config), f"{name}: has the ports {named}, its config {ports(config)}")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in ours:
            get = ours[probe]["httpGet"]
            admin = port(config["admin"]["bind"] if "admin" in config else config["status_bind"])
            must(named.get(get["port"]) == admin, f"{name}: {probe} asks port {get['port']}")
            must(get["path"] == ("/livez" if probe == "livenessProbe" else "/readyz"), f"{name}: {probe} asks {get['path']}")
    context = ours["securityContext"]
    user = (str(context["runAsUser"]), str(context["runAsGroup"]))
    must(user == image["user"], f"{name}: runs as {user}, the image as {image['user']}")
    must(context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], f"{name}: is not confined")
    must(context["capabilities"] == {"drop": ["ALL"]}, f"{name}: has capabilities")
    must(pod["securityContext"]["runAsNonRoot"] is True, f"{name}: may run as root")
    must("memory" in ours["resources"]["limits"] and "cpu" in ours["resources"]["requests"], f"{name}: no resources")
    if "listen" not in config:
        return
    # A native sidecar, which stops after the service. So the service has to run on until all waiting calls are answered.
    must(ours in pod["initContainers"] and ours["restartPolicy"] == "Always", f"{name}: not a native sidecar")
    must(set(named.values()) == image["ports"], f"{name}: the image exposes {image['ports']}")
    sleep = max(it["lifecycle"]["preStop"]["sleep"]["seconds"] for it in pod["containers"])
    wait, drain = seconds(config["limits"]["max_wait"]), seconds(config["server"]["drain_timeout"])
    must(sleep > wait, f"{name}: preStop takes {sleep} s, a call may wait {wait} s")
    grace = pod["terminationGracePeriodSeconds"]
    must(grace > sleep + drain, f"{name}: {grace} s of grace are too few for {sleep} s and {drain} s")
    backend = port(config["backend"]["http"])
    must(backend in {it["containerPort"] for it in pod["containers"][0]["ports"]}, f"{name}: no container has port {backend}")


def check_kubernetes(tidegate, image):
    for path in KUBERNETES:
        where = path.relative_to(ROOT)
        for version in VERSIONS:
            is_good, said = kubernetes_takes(path, version)
            must(is_good, f"{where}: {said}")
        text = path.read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
        configs = {it["metadata"]["name"]: it["data"] for it in documents if it["kind"] == "ConfigMap"}
        for data in configs.values():
            for name, config in data.items():
                is_taken(tidegate, config, name == "lease-server.toml", f"{where}: {name}")
        for document in documents:
            if document["kind"] == "Deployment":
                check_pod(f"{where}: {document['metadata']['name']}", document["spec"]["template"]["spec"], configs, image)
        # What the validator must refuse: a wrong type, and a name that does not exist.
        for right, wrong in (("containerPort: ", "containerPort: x"), ("livenessProbe:", "livelinessProbe:")):
            must(right in text, f"{where}: no {right}")
            with tempfile.TemporaryDirectory() as folder:
                broken = Path(folder) / "broken.yaml"
                broken.write_text(text.replace(right, wrong, 1), encoding="utf-8")
                is_good, _ = kubernetes_takes(broken, None)
            must(not is_good, f"{where}: accepted with {wrong!r}")
    must(len(KUBERNETES) == 2, f"{len(KUBERNETES)} manifests were found")


def check_compose(tidegate, image):
    where = COMPOSE.relative_to(ROOT)
    is_good, said = compose_takes(COMPOSE)
    must(is_good, f"{where}: {said}")
    text = COMPOSE.read_text(encoding="utf-8")
    for right, wrong in (("healthcheck:", "heathcheck:"), ("cap_drop: [ALL]", "cap_drop: ALL")):
        must(right in text, f"{where}: no {right}")
        with tempfile.TemporaryDirectory() as folder:
            broken = Path(folder) / "compose.yaml"
            broken.write_text(text.replace(right, wrong, 1), encoding="utf-8")
            is_good, _ = compose_takes(broken)
        must(not is_good, f"{where}: accepted with {wrong!r}")

    whole = yaml.safe_load(text)
    services, named = whole["services"], whole.get("volumes", {})
    ours = services["tidegate"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            must(source in named or (COMPOSE.parent / source).exists(), f"{where}: no {source}")
    config_text = (COMPOSE.parent / "config.toml").read_text(encoding="utf-8")
    is_taken(tidegate, config_text, False, "examples/compose/config.toml")
    config = tomllib.loads(config_text)
    inside = {int(it.rsplit(":", 1)[1]) for it in ours["ports"]}
    must(inside == ports(config) == image["ports"], f"{where}: ports {inside}, config {ports(config)}, image {image['ports']}")
    must(ours["user"] == ":".join(image["user"]), f"{where}: runs as {ours['user']}")
    test = yaml.safe_load(image["health"])
    must(ours["healthcheck"]["test"] == ["CMD", *test], f"{where}: {ours['healthcheck']['test']} is not the image's {test}")
    must(ours["restart"] and ours["read_only"], f"{where}: is not confined")
    must(any(it.endswith(":/run/tidegate") for it in ours["volumes"]), f"{where}: the next container has no ledger")
    drain = config.get("server", {}).get("drain_timeout", defaults()["drain_timeout"])
    must(seconds(ours["stop_grace_period"]) > seconds(drain), f"{where}: is killed while it drains")
    backend = config["backend"]["http"].split("//")[1].split(":")[0]
    must(backend in services and backend in ours["depends_on"], f"{where}: {backend} is no service that stops later")
    must("ports" not in services[backend], f"{where}: {backend} can be reached around Tidegate")
    scraped = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    host, _, scraped_port = scraped["static_configs"][0]["targets"][0].partition(":")
    must(host in services and host in config["admin"]["allowed_hosts"], f"{where}: the scrape of {host} is refused")
    must(int(scraped_port) == port(config["admin"]["bind"]), f"{where}: Prometheus asks port {scraped_port}")


def check_prometheus():
    configs = sorted(ROOT.glob("examples/*/prometheus.yml"))
    must(len(configs) == 2, f"{len(configs)} configs of Prometheus were found")
    for path in configs:
        is_good, said = run("promtool", "check", "config", "--syntax-only", path)
        must(is_good, f"{path.relative_to(ROOT)}: {said}")


def main():
    parser = argparse.ArgumentParser(description="Checks the manifests in examples.")
    parser.add_argument("--tidegate", type=Path, default=ROOT / "target/debug/tidegate")
    tidegate = parser.parse_args().tidegate
    image = dockerfile()
    check_kubernetes(tidegate, image)
    check_compose(tidegate, image)
    check_prometheus()
    for mistake in mistakes:
        print(mistake)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
