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

static uint32_t draw(uint32_t n)
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
	uint8_t entry = (uint8_t)draw(4);
	size_t bytes = 2 + draw(entry == 0 ? 800 : 300);

	memset(data, 0, most);
	data[0] = entry;
	data[1] = (uint8_t)draw(2);
	if (entry == 3) {
		const char *text = texts[draw(sizeof(texts) / sizeof(texts[0]))];

		bytes = 1 + strlen(text);
		memcpy(data + 1, text, bytes - 1);
		for (uint32_t i = draw(4); i; i--)
			data[1 + draw((uint32_t)bytes - 1)] = (uint8_t)draw(256);
		if (!draw(6))
			for (; bytes < 2000; bytes++)
				data[bytes] = (uint8_t)(1 + draw(255));
		return bytes;
	}
	for (uint32_t i = draw(6); i; i--) {
		uint32_t edge = edges[draw(sizeof(edges) / sizeof(edges[0]))];

		if (draw(2))
			data[1 + draw((uint32_t)bytes - 1)] ^= (uint8_t)draw(256);
		else if (bytes > 32)
			memcpy(data + 2 + 4 * draw(6), &edge, sizeof(edge)); /* the first fields */
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
