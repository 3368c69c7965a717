/* SPDX-License-Identifier: MIT */
#pragma once
/* What libFuzzer and the drivers of tests/fuzz put bytes and texts into; the end of a process that breaks a promise. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* 0: the text was taken; else it was refused. Ends the process if it did harm. */
int fuzz_try(const void *text, size_t bytes);

static inline void require(bool cond, const char *what)
{
	if (cond)
		return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}
