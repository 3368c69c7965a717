#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs on this machine's GPUs all that a release needs to know of them, and writes docs/results/*.json; `tools/measure.sh --help`.
# A run ends after 9 minutes. The next run continues from there.
exec python3 "$(dirname "$0")/measure/measure.py" "$@"
