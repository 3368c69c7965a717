/* SPDX-License-Identifier: MIT */
/* Inputs for fuzz.c without libFuzzer. */
#include "tests/fuzz/bytes_drive.h"

/* Turns of fuzz.c: mostly a whole head that is nearly right, and some of its payload. */
size_t drive_make(uint8_t *data, size_t most)
{
	size_t at = 0;

	for (uint32_t turns = 1 + drive_below(12); turns && at + 2 + 255 <= most; turns--) {
		uint32_t n = drive_below(4) ? 24 + drive_below(100) : drive_below(256);

		data[at] = (uint8_t)(drive_below(8) ? 2 + drive_below(2) : drive_below(4));
		data[at + 1] = (uint8_t)n;
		for (uint32_t i = 0; i < n; i++)
			data[at + 2 + i] = drive_below(3) ? 0 : (uint8_t)drive_below(256);
		at += 2 + n;
	}
	return at;
}
