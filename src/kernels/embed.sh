#!/bin/sh
# SPDX-License-Identifier: MIT
# embed.sh OUT.S MADE FATBIN...: writes an assembler file that puts each fatbin (x.fatbin as shunt_fatbin_x) into read-only data, and the text MADE.
set -eu
out=$1 made=$2
shift 2
{
	for f in "$@"; do
		name=shunt_fatbin_$(basename "$f" .fatbin)
		case $f in /*) ;; *) f=$PWD/$f ;; esac
		printf '\t.section .rodata.%s,"a",%%progbits\n\t.balign 64\n\t.globl %s\n\t.hidden %s\n\t.type %s, %%object\n%s:\n' \
			"$name" "$name" "$name" "$name" "$name"
		printf '\t.incbin "%s"\n\t.size %s, . - %s\n' "$f" "$name" "$name"
	done
	printf '\t.section .rodata.shunt_fatbins_made,"a",%%progbits\n\t.globl shunt_fatbins_made\n\t.hidden shunt_fatbins_made\n'
	printf '\t.type shunt_fatbins_made, %%object\nshunt_fatbins_made:\n\t.asciz "%s"\n\t.size shunt_fatbins_made, . - shunt_fatbins_made\n' "$made"
	printf '\t.section .note.GNU-stack,"",%%progbits\n'
} > "$out"
