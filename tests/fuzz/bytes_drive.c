/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/bytes_drive.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

uint32_t drive_below(uint32_t n)
{
	static uint64_t state = 42;

	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((state >> 33) % n);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 5;
	static uint8_t data[4096];
	clock_t start = clock();
	long runs = 0;

	while ((double)(clock() - start) / CLOCKS_PER_SEC < seconds) {
		LLVMFuzzerTestOneInput(data, drive_make(data, sizeof(data)));
		runs++;
	}
	printf("%ld inputs\n", runs);
	return runs < 1000;
}
