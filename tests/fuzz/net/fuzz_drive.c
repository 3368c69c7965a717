/* SPDX-License-Identifier: MIT */
/* fuzz_drive SECONDS: inputs for fuzz.c without libFuzzer, the same in every run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint64_t state = 42;

static uint32_t random_below(uint32_t n)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((state >> 33) % n);
}

/* Turns of fuzz.c: mostly a whole head that is nearly right, and some of its payload. */
static size_t make(uint8_t *data, size_t most)
{
	size_t at = 0;

	for (uint32_t turns = 1 + random_below(12); turns && at + 2 + 255 <= most; turns--) {
		uint32_t n = random_below(4) ? 24 + random_below(100) : random_below(256);

		data[at] = (uint8_t)(random_below(8) ? 2 + random_below(2) : random_below(4));
		data[at + 1] = (uint8_t)n;
		for (uint32_t i = 0; i < n; i++)
			data[at + 2 + i] = random_below(3) ? 0 : (uint8_t)random_below(256);
		at += 2 + n;
	}
	return at;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 5;
	static uint8_t data[4096];
	clock_t start = clock();
	long runs = 0;

	while ((double)(clock() - start) / CLOCKS_PER_SEC < seconds) {
		LLVMFuzzerTestOneInput(data, make(data, sizeof(data)));
		runs++;
	}
	printf("%ld inputs\n", runs);
	return runs < 1000;
}
