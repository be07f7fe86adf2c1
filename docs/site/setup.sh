#!/bin/sh
# Makes the virtualenv that builds the site of the documents and checks the examples, .venv-docs at the root of the project.
# It writes nowhere else. A second run finds it complete and exits at once.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$here/../../.venv-docs
# A complete run writes this file last, so a run that was cut short starts again.
stamp=$venv/complete

# Sphinx with the theme Furo builds the site, and myst-parser reads Markdown for it, with the rules and the anchors of GitHub.
# (MkDocs reads lists and headings in another way, and is no longer maintained.) The schemas of Kubernetes are in
# kubernetes-validate, that of Compose is in check-jsonschema: neither asks a network.
packages='Sphinx==9.0.4 furo==2025.12.19 myst-parser==5.2.0 kubernetes-validate==1.37.0 check-jsonschema==0.39.0 PyYAML'

[ "$(cat "$stamp" 2>/dev/null)" = "$packages" ] && exit 0
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# shellcheck disable=SC2086  # a list of words
"$venv/bin/pip" install --quiet --disable-pip-version-check $packages
printf '%s\n' "$packages" >"$stamp"
