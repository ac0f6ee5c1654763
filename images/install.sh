#!/bin/sh
# Installs into the virtual environment TARGET what wheels.sh has put into WHEELS. pip runs from its own wheel: neither
# it nor setuptools is in an image.
#   install.sh wheels WHEELS TARGET IMAGE    make TARGET; a wheel whose hash is not in the lock of IMAGE is refused
#   install.sh code WHEELS TARGET CODE       add the project's own wheels, from the folder CODE
set -eu
locks=$(dirname "$0")/locks what=$1 wheels=$2 target=$3
install() {
  PYTHONPATH=$(echo "$wheels"/tools/pip-*.whl) "$target/bin/python" -m pip install --quiet --no-index --no-deps \
    --no-cache-dir "$@"
}

case "$what" in
  wheels)
    python3 -m venv --without-pip "$target"
    install --find-links "$wheels" --only-binary :all: --require-hashes -r "$locks/$4.txt"
    # Made by wheels.sh from sources that it had checked against the lock.
    if [ -e "$locks/$4.source.txt" ]; then install "$wheels"/built/*.whl; fi
    ;;
  code) install "$4"/*.whl ;;
esac
