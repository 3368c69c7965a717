/* SPDX-License-Identifier: MIT */
/* Inputs for fuzz.c without libFuzzer. */
#include <string.h>
#include "tests/fuzz/bytes_drive.h"

static const char *const texts[] = { "30m", "400ms", "64k", "allreduce:0-64k:oneshot,chunk", "all,-broadcast",
	"^=eth0,lo:1,,", "[::1]:70000", "[fe80::1%lo]:1", "127.0.0.1:80", "%h%p%%%", "INFO", "^INIT,ALL",
	"0x7fffffffffffffff", "-1", "99999999999999999999h", "NCCL_ALGO = ring,tree,and,more\n#x\n", "trace" };

/* Fields at their edges make more of a difference than bytes at random. */
size_t drive_make(uint8_t *data, size_t most)
{
	static const uint32_t edges[] = { 0, 1, 3, 4, 1023, 1024, 1025, 0x7fffffff, 0x80000000, 0xffffffff };
	uint8_t entry = (uint8_t)drive_below(6);
	size_t bytes = 2 + drive_below(entry == 0 || entry == 4 ? 900 : 400);

	memset(data, 0, most);
	data[0] = entry;
	data[1] = (uint8_t)drive_below(4);
	if (entry == 3) {
		const char *text = texts[drive_below(sizeof(texts) / sizeof(texts[0]))];

		bytes = 1 + strlen(text);
		memcpy(data + 1, text, bytes - 1);
		for (uint32_t i = drive_below(4); i; i--)
			data[1 + drive_below((uint32_t)bytes - 1)] = (uint8_t)drive_below(256);
		if (!drive_below(6))
			for (; bytes < 2000; bytes++)
				data[bytes] = (uint8_t)(1 + drive_below(255));
		return bytes;
	}
	for (uint32_t i = drive_below(6); i; i--) {
		uint32_t edge = edges[drive_below(sizeof(edges) / sizeof(edges[0]))];

		if (drive_below(2))
			data[1 + drive_below((uint32_t)bytes - 1)] ^= (uint8_t)drive_below(256);
		else if (bytes > 32)
			memcpy(data + 2 + 4 * drive_below(8), &edge, sizeof(edge)); /* the first fields */
	}
	return bytes;
}
