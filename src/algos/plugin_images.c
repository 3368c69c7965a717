/* SPDX-License-Identifier: MIT */
/* Images of plug-ins: what can be told of them without CUDA. */
#include <elf.h>
#include <string.h>
#include "algos/plugins.h"

#define EM_GPU 190
#define FATBIN 0xba55ed50u
#define FATBIN_POINTER 0x466243b1u /* a struct that has the fatbin's address */

static const char none[] = "is no cubin, fatbin or PTX: build it with nvcc -fatbin";
static const char cut[] = "is a part of one only: its headers name bytes behind its end";

static bool is_inside(uint64_t at, uint64_t n, uint64_t bytes)
{
	return at <= bytes && n <= bytes - at;
}

/* What is in the file of a section of one of ELF's own types. */
static bool section_is_inside(const Elf64_Shdr *s, uint64_t bytes)
{
	bool has_bytes = s->sh_type == SHT_PROGBITS || s->sh_type == SHT_SYMTAB || s->sh_type == SHT_STRTAB ||
	    s->sh_type == SHT_RELA || s->sh_type == SHT_REL || s->sh_type == SHT_NOTE;

	return !has_bytes || is_inside(s->sh_offset, s->sh_size, bytes);
}

static const char *cubin_fault(const char *image, uint64_t bytes)
{
	Elf64_Ehdr h;
	Elf64_Shdr s;
	Elf64_Phdr p;

	if (bytes < sizeof(h))
		return cut;
	memcpy(&h, image, sizeof(h));
	if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_machine != EM_GPU)
		return none;
	if ((h.e_shnum && (h.e_shentsize != sizeof(s) || h.e_shstrndx >= h.e_shnum)) ||
	    (h.e_phnum && h.e_phentsize != sizeof(p)))
		return none;
	if (!is_inside(h.e_shoff, h.e_shnum * sizeof(s), bytes) || !is_inside(h.e_phoff, h.e_phnum * sizeof(p), bytes))
		return cut;
	for (unsigned i = 0; i < h.e_shnum; i++) {
		memcpy(&s, image + h.e_shoff + i * sizeof(s), sizeof(s));
		if (!section_is_inside(&s, bytes))
			return cut;
	}
	for (unsigned i = 0; i < h.e_phnum; i++) {
		memcpy(&p, image + h.e_phoff + i * sizeof(p), sizeof(p));
		if (!is_inside(p.p_offset, p.p_filesz, bytes))
			return cut;
	}
	return NULL;
}

static const char *fatbin_fault(const char *image, uint64_t bytes)
{
	struct {
		uint32_t magic;
		uint16_t version, head_bytes;
		uint64_t bytes; /* behind the head */
	} head;

	if (bytes < sizeof(head))
		return cut;
	memcpy(&head, image, sizeof(head));
	return is_inside(head.head_bytes, head.bytes, bytes) ? NULL : cut;
}

const char *shunt_plugin_image_fault(const void *image, uint64_t bytes)
{
	uint32_t magic = 0;

	memcpy(&magic, image, bytes < sizeof(magic) ? bytes : sizeof(magic));
	if (!memcmp(&magic, ELFMAG, SELFMAG))
		return cubin_fault(image, bytes);
	if (magic == FATBIN)
		return fatbin_fault(image, bytes);
	if (magic == FATBIN_POINTER)
		return bytes < 3 * sizeof(void *) ? cut : NULL;
	return memmem(image, bytes, ".version", 8) && memmem(image, bytes, ".target", 7) ? NULL : none;
}
