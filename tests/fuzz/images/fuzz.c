/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as the image of a plug-in. Where they are taken, all is there that CUDA, which is not told their number,
 * reads by their headers; where not, one line says why. The byte behind the last is nobody's to read.
 */
#include <elf.h>
#include "tools/common/libc.h"
#include "algos/plugins.h"
#include "tests/support/fuzz_try.h"
#include "tests/support/plugin_table.h"

#define ROOM ((size_t)1 << 16)

/* As a loader reads; a wrong byte ends the process. */
static unsigned read_all(const uint8_t *at, uint64_t n)
{
	unsigned sum = 0;

	while (n--)
		sum += *(const volatile uint8_t *)at++;
	return sum;
}

static unsigned load(const uint8_t *image)
{
	unsigned sum = 0;
	Elf64_Ehdr h;
	Elf64_Shdr s;
	uint64_t n;

	if (memcmp(image, ELFMAG, SELFMAG)) {
		memcpy(&n, image + 8, sizeof(n));
		return memcmp(image, "\x50\xed\x55\xba", 4) ? 0 : read_all(image, image[6] + image[7] * 256ull + n);
	}
	memcpy(&h, image, sizeof(h));
	for (unsigned i = 0; i < h.e_shnum; i++) {
		memcpy(&s, image + h.e_shoff + i * sizeof(s), sizeof(s));
		if (s.sh_type == SHT_PROGBITS || s.sh_type == SHT_STRTAB)
			sum += read_all(image + s.sh_offset, s.sh_size);
	}
	return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static uint8_t *end;
	struct shunt_plugin p = plugin_table("fuzz");
	char why[256] = "";
	int err;

	if (!end) {
		/* cppcheck-suppress invalidFunctionArg; memory of no file has the descriptor -1 */
		end = mmap(NULL, 2 * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		require(end != MAP_FAILED && !mprotect(end + ROOM, ROOM, PROT_NONE), "memory");
		end += ROOM;
	}
	if (!bytes || bytes > ROOM)
		return 0;
	p.image = memcpy(end - bytes, data, bytes);
	p.image_bytes = bytes;
	err = shunt_plugin_add(&p, 0, why, sizeof(why));
	require(err == -ENOEXEC ? *why && !strchr(why, '\n') : !err, "the answer");
	if (!err) {
		load(p.image);
		require(!shunt_plugin_remove("fuzz"), "removal");
	}
	return 0;
}
