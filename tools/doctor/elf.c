/* SPDX-License-Identifier: MIT */
/* Finds NCCL in an ELF file. Every offset is checked: the file is untrusted. */
#include <elf.h>
#include "tools/common/libc.h"
#include "tools/doctor/doctor.h"

/* Of this program, from the linker. */
extern const Elf64_Ehdr own_header __asm__("__ehdr_start") __attribute__((visibility("hidden")));

struct image {
	const char *at;
	size_t bytes;
};

static const void *image_at(const struct image *m, uint64_t offset, uint64_t bytes)
{
	return offset <= m->bytes && bytes <= m->bytes - offset ? m->at + offset : NULL;
}

/* A string that ends within its table, or "". */
static const char *table_string(const char *table, uint64_t bytes, uint64_t offset)
{
	return table && offset < bytes && memchr(table + offset, 0, bytes - offset) ? table + offset : "";
}

static const Elf64_Shdr *section_at(const struct image *m, const Elf64_Ehdr *h, unsigned i)
{
	if (h->e_shentsize != sizeof(Elf64_Shdr) || i >= h->e_shnum || h->e_shoff % 8)
		return NULL;
	return image_at(m, h->e_shoff + (uint64_t)i * sizeof(Elf64_Shdr), sizeof(Elf64_Shdr));
}

static bool is_known(const char *name)
{
#define NAME(name) "nccl" #name,
#define TYPED(name, params, args) NAME(name)
#define TEXT(name, params, args) NAME(name)
#define VOID(name, params, args) NAME(name)
#define FWD(name) NAME(name)
#define FWD1(name) NAME(name)
	static const char *const names[] = {
#include "shim/nccl/symbols.def"
	};
#undef NAME

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}

/*
 * A function that a compiler made. What only jumps on to a library that is opened at its first call comes from an
 * assembler, and has no size; or it is a pointer.
 */
static bool is_code(const Elf64_Sym *symbol)
{
	unsigned type = ELF64_ST_TYPE(symbol->st_info);

	return (type == STT_FUNC || type == STT_GNU_IFUNC) && symbol->st_size;
}

/* Functions are ncclX and pncclX. Symbols of NCCL's plugins are objects. */
static void later_symbol_read(const Elf64_Sym *symbol, const char *name, struct doctor_elf *elf)
{
	char *later = symbol->st_shndx == SHN_UNDEF ? elf->needs_later : elf->has_later;
	const char *plain = name + (*name == 'p');

	if (!*later && !strncmp(plain, "nccl", 4) && isupper((unsigned char)plain[4]) &&
	    ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT && !is_known(plain))
		snprintf(later, sizeof(elf->needs_later), "%s", name);
}

/* objcopy gives an NCCL that is linked in other names: as torchcomms' ncclx has it. */
static void renamed_symbol_read(const Elf64_Sym *symbol, const char *name, struct doctor_elf *elf)
{
	static const char suffix[] = "ncclAllReduce";
	size_t n = strlen(name);

	if (n < sizeof(suffix) || strcmp(name + n - (sizeof(suffix) - 1), suffix) || !strcmp(name, "pncclAllReduce"))
		return;
	if (!strncmp(name, "_Z", 2) || !is_code(symbol)) /* a function in C++ of this name */
		return;
	if (!*elf->renamed)
		snprintf(elf->renamed, sizeof(elf->renamed), "%s", name);
}

static void symbols_read(
    const struct image *m, const Elf64_Shdr *s, const char *names, uint64_t names_bytes, struct doctor_elf *elf)
{
	uint64_t n = s->sh_size / sizeof(Elf64_Sym);
	const Elf64_Sym *symbols = s->sh_offset % 8 ? NULL : image_at(m, s->sh_offset, n * sizeof(*symbols));

	for (uint64_t i = 0; symbols && i < n; i++) {
		const char *name = table_string(names, names_bytes, symbols[i].st_name);

		if (!strcmp(name, "shunt_version") && symbols[i].st_shndx != SHN_UNDEF)
			elf->has_api = true;
		if (s->sh_type == SHT_DYNSYM && symbols[i].st_shndx == SHN_UNDEF && !strncmp(name, "shunt_", 6))
			elf->imports_api = true;
		if (s->sh_type == SHT_DYNSYM) {
			later_symbol_read(&symbols[i], name, elf);
			elf->imports |= symbols[i].st_shndx == SHN_UNDEF && !strncmp(name, "nccl", 4) && is_known(name);
		}
		if (symbols[i].st_shndx != SHN_UNDEF) {
			renamed_symbol_read(&symbols[i], name, elf);
			elf->is_python_module |= !strncmp(name, "PyInit_", 7);
		}
		if (strcmp(name, "ncclAllReduce") || symbols[i].st_shndx == SHN_UNDEF)
			continue;
		if (s->sh_type == SHT_DYNSYM)
			elf->exports = true;
		else if (is_code(&symbols[i]))
			elf->contains = true;
		else
			elf->stubs = true;
	}
}

/* True if a name of a library that is needed, which may be a path, begins so. */
static bool needed_is(const char *needed, const char *begin)
{
	const char *slash = strrchr(needed, '/');

	return !strncmp(slash ? slash + 1 : needed, begin, strlen(begin));
}

static void needed_read(
    const struct image *m, const Elf64_Shdr *s, const char *names, uint64_t names_bytes, struct doctor_elf *elf)
{
	uint64_t n = s->sh_size / sizeof(Elf64_Dyn);
	const Elf64_Dyn *dynamic = s->sh_offset % 8 ? NULL : image_at(m, s->sh_offset, n * sizeof(*dynamic));

	for (uint64_t i = 0; dynamic && i < n && dynamic[i].d_tag != DT_NULL; i++) {
		const char *needed = table_string(names, names_bytes, dynamic[i].d_un.d_val);

		if (dynamic[i].d_tag != DT_NEEDED)
			continue;
		elf->needs_nccl |= needed_is(needed, "libnccl.so");
		elf->needs_api |= needed_is(needed, "libshunt_api.so");
	}
}

static const char *find_text(const struct image *m, const char *text)
{
	return memmem(m->at, m->bytes, text, strlen(text));
}

/* NCCL prints "NCCL version 2.28.9+cuda13.0"; the library contains this text. */
static void nccl_version_read(const struct image *m, struct doctor_elf *elf)
{
	static const char marks[] = "NCCL version ";
	struct image rest = *m;
	const char *at;

	while (!*elf->version && (at = find_text(&rest, marks))) {
		size_t n = 0;

		at += sizeof(marks) - 1;
		while (at + n < m->at + m->bytes && n + 1 < sizeof(elf->version) && at[n] > ' ' && at[n] < 0x7f)
			n++;
		if (n && at[0] >= '1' && at[0] <= '9') /* not "%d.%d" */
			memcpy(elf->version, at, n);
		rest = (struct image){ at, (size_t)(m->at + m->bytes - at) };
	}
}

/* The library contains a text such as "nvcc 13.0 for sm_80, sm_90" (src/kernels/embed.sh). */
static void kernels_read(const struct image *m, struct doctor_elf *elf)
{
	const char *at = find_text(m, "nvcc 1");
	size_t n = 0;

	while (at && at + n < m->at + m->bytes && n + 1 < sizeof(elf->kernels) && at[n] >= ' ' && at[n] < 0x7f)
		n++;
	if (n)
		memcpy(elf->kernels, at, n);
}

static int image_read(const struct image *m, struct doctor_elf *elf)
{
	const Elf64_Ehdr *h = image_at(m, 0, sizeof(*h));
	const Elf64_Shdr *s;
	bool is_nccl, has_texts;

	if (!h || memcmp(h->e_ident, ELFMAG, SELFMAG) || h->e_ident[EI_CLASS] != ELFCLASS64 ||
	    h->e_ident[EI_DATA] != ELFDATA2LSB || (h->e_type != ET_EXEC && h->e_type != ET_DYN) ||
	    h->e_machine != own_header.e_machine)
		return -ENOEXEC;
	if (!h->e_shnum || !section_at(m, h, h->e_shnum - 1u))
		return -ENODATA;
	for (unsigned i = 0; (s = section_at(m, h, i)); i++) {
		const Elf64_Shdr *linked = section_at(m, h, s->sh_link);
		const char *names = linked ? image_at(m, linked->sh_offset, linked->sh_size) : NULL;

		if (!names)
			continue;
		if (s->sh_type == SHT_SYMTAB || s->sh_type == SHT_DYNSYM)
			symbols_read(m, s, names, linked->sh_size, elf);
		else if (s->sh_type == SHT_DYNAMIC)
			needed_read(m, s, names, linked->sh_size, elf);
	}
	for (unsigned i = 0; i < h->e_phnum && h->e_phentsize == sizeof(Elf64_Phdr) && !(h->e_phoff % 8); i++) {
		const Elf64_Phdr *p = image_at(m, h->e_phoff + (uint64_t)i * sizeof(*p), sizeof(*p));
		const char *path = p && p->p_type == PT_INTERP ? image_at(m, p->p_offset, p->p_filesz) : NULL;

		if (path)
			snprintf(elf->interpreter, sizeof(elf->interpreter), "%.*s",
			    (int)(p->p_filesz < PATH_MAX ? p->p_filesz : PATH_MAX), path);
	}
	elf->is_python_module &= !*elf->interpreter;  /* the interpreter has modules of its own */
	elf->is_shunt = elf->has_api && elf->exports; /* libshunt_api.so.0 exports none of NCCL's names */
	if (elf->is_shunt)
		kernels_read(m, elf);
	elf->mentions_nccl = find_text(m, "libnccl.so") != NULL;
	nccl_version_read(m, elf);
	/*
	 * NCCL has the texts of its version and of its variables; of a stripped one they are all that shows. Functions
	 * of NCCL's names in a file that has neither, or not both and names libnccl.so, are no NCCL: they open it.
	 */
	has_texts = find_text(m, "NCCL_DEBUG_SUBSYS");
	is_nccl = *elf->version && !elf->is_shunt && has_texts;
	if (elf->contains && !is_nccl && (elf->mentions_nccl || !(*elf->version || has_texts))) {
		elf->stubs = true;
		elf->contains = false;
	}
	if (elf->mentions_nccl && !is_nccl) {
		elf->stubs |= *elf->renamed != 0;
		*elf->renamed = 0;
	}
	elf->contains |= !elf->exports && is_nccl && !elf->needs_nccl;
	elf->stubs &= !elf->contains;
	return 0;
}

int doctor_elf_read(const char *path, struct doctor_elf *elf)
{
	struct image m = { 0 };
	struct stat st;
	void *at;
	int fd = open(path, O_RDONLY | O_CLOEXEC), err;

	memset(elf, 0, sizeof(*elf));
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st)) {
		err = -errno;
		goto out_close;
	}
	err = -ENOEXEC;
	if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(Elf64_Ehdr))
		goto out_close;
	at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (at == MAP_FAILED) {
		err = -errno;
		goto out_close;
	}
	m = (struct image){ at, (size_t)st.st_size };
	err = image_read(&m, elf);
	munmap(at, m.bytes);
out_close:
	close(fd);
	return err;
}
