/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * bytes_drive SECONDS: inputs for a fuzz.c that takes bytes, without libFuzzer. They are the same in every run; the
 * last one is in the way of a crash.
 */
#include <stddef.h>
#include <stdint.h>

/* Of the fuzzer: writes an input of at most that many bytes, and returns how many. */
size_t drive_make(uint8_t *data, size_t most);
/* The next random number, in [0, n). */
uint32_t drive_below(uint32_t n);
