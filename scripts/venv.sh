#!/bin/sh
# Creates .venv and installs hashed requirements into it, with uv when it is on PATH and with venv + pip otherwise.
#
#   scripts/venv.sh create                       makes an empty .venv with Python 3.11 or newer
#   scripts/venv.sh install FILE...              installs the given requirements files, then this package (editable)
#
# Build isolation is off so that nothing unhashed is ever fetched: the build backend comes from requirements/build.txt,
# and is also what builds dependencies that are published as source only.
set -eu

VENV=.venv

fail() {
    echo "setup: $*" >&2
    exit 1
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

create() {
    rm -rf "$VENV"
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --python '>=3.11' "$VENV"
        return
    fi
    python=$(find_python) || fail "Python 3.11 or newer is needed and none was found on PATH; install it, or name it:" \
        "make setup PYTHON=/path/to/python3.12"
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || fail "$python has no venv module;" \
        "on Debian and Ubuntu install it with: apt install python3-venv"
    "$python" -m venv "$VENV"
}

pip_install() {
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --python "$VENV/bin/python" --no-build-isolation "$@"
    elif "$VENV/bin/python" -c 'import pip' >/dev/null 2>&1; then
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --use-pep517 "$@"
    else
        fail "$VENV has no pip because uv made it, and uv is no longer on PATH; run: make clean"
    fi
}

install() {
    pip_install --require-hashes -r requirements/build.txt
    for file in "$@"; do
        set -- "$@" -r "$file"
        shift
    done
    pip_install --require-hashes "$@"
    pip_install --no-deps -e .
}

action=${1:-}
[ $# -gt 0 ] && shift
case "$action" in
    create) create ;;
    install) install "$@" ;;
    *) fail "usage: scripts/venv.sh create | install FILE..." ;;
esac
