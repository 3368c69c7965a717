/* SPDX-License-Identifier: MIT */
/* Inputs for fuzz.c without libFuzzer: a cubin, a fatbin or PTX, of which some bytes are others, and a part is left. */
#include <elf.h>
#include <string.h>
#include "tests/fuzz/bytes_drive.h"

enum { NSECTIONS = 4, TEXT = 256 };

static size_t cubin(uint8_t *data)
{
	const size_t table = sizeof(Elf64_Ehdr) + TEXT;
	Elf64_Shdr s = { .sh_type = SHT_PROGBITS };
	const Elf64_Ehdr h = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB },
		.e_machine = 190,
		.e_shoff = table,
		.e_shentsize = sizeof(s),
		.e_shnum = NSECTIONS,
		.e_phoff = drive_below(2) ? table : 0,
		.e_phentsize = sizeof(Elf64_Phdr),
		.e_phnum = (uint16_t)(drive_below(8) == 0) };

	memcpy(data, &h, sizeof(h));
	for (unsigned i = 0; i < NSECTIONS; i++) {
		s.sh_offset = sizeof(h) + drive_below(TEXT);
		s.sh_size = drive_below(TEXT + NSECTIONS * sizeof(s));
		memcpy(data + table + i * sizeof(s), &s, sizeof(s));
	}
	return table + NSECTIONS * sizeof(s);
}

static size_t fatbin(uint8_t *data)
{
	const uint32_t head[] = { 0xba55ed50u, 0x100001, drive_below(300), 0 };

	memcpy(data, head, sizeof(head));
	return 256;
}

static size_t ptx(uint8_t *data)
{
	static const char text[] = ".version 9.0\n.target sm_90\n.visible .entry k(.param .u64 a) { ret; }\n";

	memcpy(data, text, sizeof(text));
	return sizeof(text);
}

size_t drive_make(uint8_t *data, size_t most)
{
	static size_t (*const seeds[])(uint8_t *) = { cubin, fatbin, ptx };
	static const uint8_t bytes[] = { 0, 1, 0x7f, 0x80, 0xff };
	size_t n;

	memset(data, 0, most);
	n = seeds[drive_below(3)](data);
	for (uint32_t changes = drive_below(4); changes; changes--) {
		uint32_t near = drive_below(2) ? 64 : (uint32_t)n;

		data[drive_below(near)] =
		    drive_below(2) ? bytes[drive_below(sizeof(bytes))] : (uint8_t)drive_below(256);
	}
	return drive_below(3) ? n : drive_below((uint32_t)n + 1);
}
