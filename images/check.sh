#!/bin/sh
# check.sh TARGET: fail, with its name, when there is something that builds or installs software in this image, whose
# virtual environment is TARGET.
set -eu
for module in pip setuptools; do
  if "$1/bin/python" -c "import $module" 2> /dev/null; then
    echo "the image has the Python module $module" >&2
    exit 1
  fi
done
for program in pip pip3 cc gcc c++ rustc cargo make javac; do
  if command -v "$program" >&2; then
    echo "the image has the program $program" >&2
    exit 1
  fi
done
