#!/bin/sh
# House rules (docs/architecture.md): sizes, directions of includes, no hidden state, nothing of one machine.
# Variables of objects are looked for in $BUILD (default build).
# Arguments: paths (src/text, tests/text/t_x.c) whose violations are shown; none: all.
cd "$(dirname "$0")/.." || exit 2
command -v python3 >/dev/null 2>&1 || { echo "rules: python3 is missing (tools/setup.sh installs it)"; exit 1; }
[ $# -eq 0 ] && exec python3 tests/rules.py
pattern=$(printf '|%s' "$@")
rows=$(python3 tests/rules.py | grep -E "^(src/|tests/)?(${pattern#|})[/:]") && { printf '%s\n' "$rows"; exit 1; }
echo "rules: nothing found in $*"
