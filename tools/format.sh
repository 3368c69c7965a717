#!/bin/sh
# SPDX-License-Identifier: MIT
# Writes every C, C++ and CUDA source as .clang-format says, and the Python package and its tests as pyproject.toml says, with the
# tools that tools/lint.txt pins.
set -eu
cd "$(dirname "$0")/.."
. tools/setup.sh
need_lint_tools
# shellcheck disable=SC2046
clang-format -i $(git ls-files | grep -E '\.(c|h|cc|cu)$')
ruff format --quiet
