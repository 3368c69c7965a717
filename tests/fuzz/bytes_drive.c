/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/bytes_drive.h"
#include "tests/support/fuzz_try.h"

static uint64_t state = 42;

uint32_t drive_below(uint32_t n)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((state >> 33) % n);
}

/* As many inputs as the argument says: the same ones every time, and others with another FUZZ_SEED. */
int main(int argc, char **argv)
{
	const char *seed = getenv("FUZZ_SEED");
	long runs = argc > 1 ? atol(argv[1]) : 10000;
	static uint8_t data[4096];

	if (seed)
		state += strtoull(seed, NULL, 0);
	for (long i = 0; i < runs; i++)
		LLVMFuzzerTestOneInput(data, drive_make(data, sizeof(data)));
	printf("%ld inputs\n", runs);
	return runs < 1000;
}
