#!/bin/sh
# Gets what an image installs, each file checked against its hash in locks/.
#   wheels.sh tools TOOLS               make the virtual environment TOOLS with the pip and setuptools of the lock
#   wheels.sh wheels TOOLS IMAGE OUT    into OUT: the wheels of IMAGE; built/: those made here from source; tools/: pip
#   wheels.sh code TOOLS SOURCE OUT     into OUT: the project's wheel with compiled modules (setup.py), and native's
set -eu
locks=$(dirname "$0")/locks
# Files in the wheels made here all have this time: the same source gives the same wheel.
export SOURCE_DATE_EPOCH=315532800 PIP_DISABLE_PIP_VERSION_CHECK=1

wheels() {
  pip="$1/bin/python -m pip"
  $pip download --no-deps --only-binary :all: --require-hashes --dest "$3/tools" -r "$locks/build.txt"
  $pip download --no-deps --only-binary :all: --require-hashes --dest "$3" -r "$locks/$2.txt"
  if [ -e "$locks/$2.source.txt" ]; then
    $pip wheel --no-deps --no-binary :all: --no-build-isolation --require-hashes --wheel-dir "$3/built" \
      -r "$locks/$2.source.txt"
  fi
}

case "$1" in
  tools)
    python3 -m venv "$2"
    "$2/bin/python" -m pip install --require-hashes --only-binary :all: -r "$locks/build.txt"
    ;;
  wheels) wheels "$2" "$3" "$4" ;;
  code)
    # Crates are checked against native/Cargo.lock.
    STELE_COMPILE=1 PATH="$2/bin:$PATH" "$2/bin/python" -m pip wheel --no-deps --no-build-isolation --wheel-dir "$4" "$3" "$3/native"
    ;;
esac
