/* SPDX-License-Identifier: MIT */
/*
 * fuzz_drive SECONDS: the inputs of fuzz.c without libFuzzer. They are the same in every run; the last one is in the
 * way of a crash.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint64_t state = 42;

static uint32_t random_below(uint32_t n)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((state >> 33) % n);
}

static const char *const texts[] = { "30m", "400ms", "64k", "allreduce:0-64k:oneshot,chunk", "all,-broadcast",
	"^=eth0,lo:1,,", "[::1]:70000", "[fe80::1%lo]:1", "127.0.0.1:80", "%h%p%%%", "INFO", "^INIT,ALL",
	"0x7fffffffffffffff", "-1", "99999999999999999999h", "NCCL_ALGO = ring,tree,and,more\n#x\n", "trace" };

/* Fields at their edges make more of a difference than bytes at random. */
static size_t make(uint8_t *data, size_t most)
{
	static const uint32_t edges[] = { 0, 1, 3, 4, 1023, 1024, 1025, 0x7fffffff, 0x80000000, 0xffffffff };
	uint8_t entry = (uint8_t)random_below(6);
	size_t bytes = 2 + random_below(entry == 0 || entry == 4 ? 900 : 400);

	memset(data, 0, most);
	data[0] = entry;
	data[1] = (uint8_t)random_below(4);
	if (entry == 3) {
		const char *text = texts[random_below(sizeof(texts) / sizeof(texts[0]))];

		bytes = 1 + strlen(text);
		memcpy(data + 1, text, bytes - 1);
		for (uint32_t i = random_below(4); i; i--)
			data[1 + random_below((uint32_t)bytes - 1)] = (uint8_t)random_below(256);
		if (!random_below(6))
			for (; bytes < 2000; bytes++)
				data[bytes] = (uint8_t)(1 + random_below(255));
		return bytes;
	}
	for (uint32_t i = random_below(6); i; i--) {
		uint32_t edge = edges[random_below(sizeof(edges) / sizeof(edges[0]))];

		if (random_below(2))
			data[1 + random_below((uint32_t)bytes - 1)] ^= (uint8_t)random_below(256);
		else if (bytes > 32)
			memcpy(data + 2 + 4 * random_below(8), &edge, sizeof(edge)); /* the first fields */
	}
	return bytes;
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
