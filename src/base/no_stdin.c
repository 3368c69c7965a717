/* SPDX-License-Identifier: MIT */
/*
 * Distributions build libjansson.a for programs. Its json_loadf(), which Shunt does not call, refers to stdin in a way
 * that only a symbol of the same file resolves: this one, which is hidden. Shared libraries link it, programs do not.
 */
void *stdin;
