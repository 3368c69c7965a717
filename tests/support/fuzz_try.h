/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TESTS_SUPPORT_FUZZ_TRY_H
#define SHUNT_TESTS_SUPPORT_FUZZ_TRY_H
/* What libFuzzer and tests/fuzz/fuzz_drive.c put their texts into. */
#include <stddef.h>
#include <stdint.h>

/* 0: the text was taken; else it was refused. Ends the process if it did harm. */
int fuzz_try(const void *text, size_t bytes);
#endif
