#!/bin/sh
# SPDX-License-Identifier: MIT
# commit.sh DIRECTORY: the commit that its files are of, "12ef02d, 2026-11-26", with a + where they differ from the commit.
# A source package has it in a file. "unknown": neither git nor that file says so.
cd "$1" || exit 1
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]; then
	changed=
	git diff --quiet HEAD 2>/dev/null || changed=+
	git log -1 --date=short --format="%h$changed, %cd" 2>/dev/null && exit 0
fi
cat .commit 2>/dev/null || echo unknown
