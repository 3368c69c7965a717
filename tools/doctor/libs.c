/* SPDX-License-Identifier: MIT */
/* Finds the NCCL that a program would get, its origin, and whether Shunt comes before it. */
#include <glob.h>
#include <libgen.h>
#include "tools/common/libc.h"
#include "shim/real/find.h"
#include "shim/nccl/abi.h"
#include "tools/doctor/doctor.h"

/* Versions that the tests cover; see src/shim/nccl/symbols.def. */
#define OLDEST 21800
#define NEWEST 23299
#define MAX_COPIES 64

static const char topic[] = "libraries";

struct copies {
	struct {
		char path[PATH_MAX], version[64], later[64]; /* later: as has_later of struct doctor_elf */
	} at[MAX_COPIES];
	size_t n;
};

static bool copy_add(const char *path, const char *from, void *arg)
{
	struct copies *c = arg;
	struct doctor_elf elf;
	char *real = realpath(path, NULL);
	bool known = !real || c->n == MAX_COPIES;

	for (size_t i = 0; !known && i < c->n; i++)
		known = !strcmp(c->at[i].path, real);
	if (!known && !doctor_elf_read(real, &elf) && elf.exports && !elf.is_shunt) {
		snprintf(c->at[c->n].path, PATH_MAX, "%s", real);
		snprintf(c->at[c->n].version, sizeof(c->at[c->n].version), "%s",
		    *elf.version ? elf.version : "unknown version");
		snprintf(c->at[c->n].later, sizeof(c->at[c->n].later), "%s", elf.has_later);
		c->n++;
	}
	free(real);
	return false; /* go on: all copies count */
}

/* "2.28.9+cuda13.0" and "2.28.9" are the same. */
static bool same_version(const char *a, const char *b)
{
	size_t n = strcspn(a, "+");

	return n == strcspn(b, "+") && !strncmp(a, b, n);
}

static void glob_each(const char *pattern, void (*fn)(const char *path, void *arg), void *arg)
{
	glob_t g = { 0 };

	if (!glob(pattern, GLOB_NOSORT, NULL, &g))
		for (size_t i = 0; i < g.gl_pathc; i++)
			fn(g.gl_pathv[i], arg);
	globfree(&g);
}

struct python {
	struct findings *f;
	struct copies *copies;
};

static void torch_report(struct findings *f, const char *path)
{
	struct doctor_elf elf;
	int err = doctor_elf_read(path, &elf);

	if (err)
		finding_add(f, FINDING_WARN, topic, "", "%s cannot be read: %s", path, strerror(-err));
	else if (elf.needs_nccl)
		finding_add(f, FINDING_OK, topic, "",
		    "%s is linked with libnccl.so.2: a preloaded Shunt is in front of it", path);
	else if (elf.contains || elf.exports)
		finding_add(f, FINDING_WARN, topic, "use a PyTorch that is linked with libnccl.so.2, as the wheels are",
		    "%s has its own NCCL %s inside%s", path, elf.version,
		    elf.exports ? ", which a preloaded Shunt does replace" :
		                  ", hidden: no library can get in front of it");
}

/*
 * From 2.0 on, DeepEP looks on import for one mapped libnccl that is the same as the one it was built with. With Shunt
 * in front the real NCCL is mapped by the first call that a program makes, which may be later.
 */
static void deep_ep_report(struct findings *f, const char *path)
{
	const char *suppressed = getenv("EP_SUPPRESS_NCCL_CHECK");

	if (suppressed && atoi(suppressed))
		finding_add(f, FINDING_OK, topic, "", "EP_SUPPRESS_NCCL_CHECK=%s: DeepEP looks for no libnccl (%s)",
		    suppressed, path);
	else
		finding_add(f, FINDING_INFO, topic,
		    "set EP_SUPPRESS_NCCL_CHECK=1 for such programs, or let them call NCCL before they import deep_ep",
		    "DeepEP is in %s: its search for a loaded libnccl fails where it is imported before the first call "
		    "of NCCL, as Shunt opens the real one with that call",
		    path);
}

static void packages_scan(const char *dir, void *arg)
{
	struct python *p = arg;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/nvidia/nccl/lib/libnccl.so.2", dir);
	copy_add(path, "Python packages", p->copies);
	snprintf(path, sizeof(path), "%s/torch/lib/libtorch_cuda.so", dir);
	if (!access(path, R_OK))
		torch_report(p->f, path);
	snprintf(path, sizeof(path), "%s/deep_ep/__init__.py", dir);
	if (!access(path, R_OK))
		deep_ep_report(p->f, path);
}

void doctor_packages_each(void (*fn)(const char *dir, void *arg), void *arg)
{
	const char *venv = getenv("VIRTUAL_ENV"), *list = getenv("PYTHONPATH");
	char path[PATH_MAX], pattern[PATH_MAX + 64];

	for (; list && *list; list += strcspn(list, ":"), list += *list == ':') {
		snprintf(path, sizeof(path), "%.*s", (int)strcspn(list, ":"), list);
		if (*path)
			fn(path, arg);
	}
	if (venv) {
		snprintf(pattern, sizeof(pattern), "%s/lib/python3*/site-packages", venv);
		glob_each(pattern, fn, arg);
	}
	list = getenv("PATH");
	for (bool done = false; list && *list && !done;) {
		size_t n = strcspn(list, ":");
		char *real;

		snprintf(path, sizeof(path), "%.*s/python3", (int)n, list);
		real = realpath(path, NULL);
		done = real;
		if (real) {
			const char *prefix = dirname(dirname(real));

			if (!strcmp(prefix, "/usr")) /* where pip puts them for Debian's Python */
				glob_each("/usr/local/lib/python3*/dist-packages", fn, arg);
			snprintf(pattern, sizeof(pattern), "%s/lib/python3*/[sd]i[ts][et]-packages", prefix);
			glob_each(pattern, fn, arg);
			free(real);
		}
		list += n + (list[n] != 0);
	}
}

static void check_copies(struct findings *f, const struct copies *c, const char *used)
{
	bool differ = false;

	for (size_t i = 0; i < c->n; i++) {
		bool is_used = used && !strcmp(c->at[i].path, used);

		finding_add(f, FINDING_INFO, topic, "", "NCCL %s: %s%s", c->at[i].version, c->at[i].path,
		    is_used ? " (used)" : "");
		if (is_used && *c->at[i].later)
			finding_add(f, FINDING_WARN, topic,
			    "a program that is linked with such a function does not start with Shunt in front of it",
			    "%s has %s, which Shunt does not know", used, c->at[i].later);
		differ |= !same_version(c->at[i].version, c->at[0].version);
	}
	if (differ)
		finding_add(f, FINDING_WARN, topic,
		    "set SHUNT_NCCL_LIB to the one that is meant; two versions in one process do not understand each "
		    "other's communicators",
		    "%zu copies of NCCL can be found, of different versions", c->n);
}

static void check_version(struct findings *f, int version, const char *path)
{
	if (version < OLDEST || version > NEWEST)
		finding_add(f, FINDING_WARN, topic,
		    "what it has beyond is forwarded; run `shunt conform` before you rely on it",
		    "NCCL %d.%d.%d (%s) is outside of what Shunt is tested with, 2.18 to 2.32", version / 10000,
		    version / 100 % 100, version % 100, path);
}

/* Checks the libraries that are loaded before all others. */
static void check_preload(struct findings *f, const char *lib)
{
	const char *list = getenv("LD_PRELOAD");
	bool ours = false;

	while (list && *list) {
		size_t n = strcspn(list, ": ");
		struct doctor_elf elf = { 0 };
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%.*s", (int)n, list);
		list += n + (list[n] != 0);
		if (!*path || !strchr(path, '/'))
			continue;
		if (doctor_elf_read(path, &elf)) {
			finding_add(f, FINDING_ERROR, topic,
			    "correct LD_PRELOAD: the loader leaves it out with one line, and the program runs without",
			    "LD_PRELOAD has %s, which cannot be loaded", path);
			continue;
		}
		if (elf.is_shunt) {
			char *real = realpath(path, NULL);

			ours = true;
			if (real && strcmp(real, lib))
				finding_add(f, FINDING_WARN, topic, "use one installation",
				    "LD_PRELOAD has %s, and this command belongs to %s", path, lib);
			free(real);
		} else if (elf.exports) {
			finding_add(f, FINDING_WARN, topic, "put libshunt.so first",
			    "LD_PRELOAD has %s, which answers NCCL's calls, too%s", path,
			    ours ? "; Shunt comes first" : ", and comes first");
		}
	}
	if (ours)
		finding_add(
		    f, FINDING_OK, topic, "", "LD_PRELOAD puts Shunt in front of programs that are started here");
	else
		finding_add(f, FINDING_INFO, topic, "start it with: shunt run -- PROGRAM",
		    "LD_PRELOAD is without Shunt: a program that is started here as it is does not use it");
}

/* ---- one program */

/*
 * Reports whether Shunt can get in front of the NCCL of a torchcomms module,
 * _comms_NAME.cpython-312-x86_64-linux-gnu.so. False: the file is no such module.
 */
static bool torchcomms_report(struct findings *f, const char *path, const struct doctor_elf *elf)
{
	const char *name = strrchr(path, '/');

	name = name ? name + 1 : path;
	if (!elf->is_python_module || strncmp(name, "_comms", 6))
		return false;
	if (*elf->needs_later)
		finding_add(f, FINDING_ERROR, topic, "take a Shunt that knows this NCCL",
		    "%s, of torchcomms, needs %s, which Shunt does not know: with Shunt in front it cannot be imported",
		    path, elf->needs_later);
	else if (*elf->renamed || elf->contains)
		finding_add(f, FINDING_WARN, topic,
		    "take torchcomms' backend nccl, or shunt (docs/python.md); or build torchcomms with "
		    "USE_SYSTEM_LIBS=1",
		    "%s, of torchcomms, has NCCL linked in%s%s: Shunt cannot get in front of it", path,
		    *elf->renamed ? " under names such as " : ", hidden", elf->renamed);
	else if (elf->needs_nccl || elf->imports)
		finding_add(f, FINDING_OK, topic, "",
		    "%s, of torchcomms, calls the NCCL %s: with `shunt run`, or libshunt.enable() before `import "
		    "torch`, "
		    "Shunt is in front of it",
		    path, elf->needs_nccl ? "that it is linked with" : "that PyTorch has loaded");
	else if (elf->stubs)
		return false;
	else if (elf->exports)
		finding_add(f, FINDING_INFO, topic, "",
		    "%s, of torchcomms, has NCCL %s linked in, for all to use: a preloaded Shunt is in front of it",
		    path, elf->version);
	else
		finding_add(f, FINDING_INFO, topic, "", "%s, of torchcomms, does not call NCCL", path);
	return true;
}

static void binary_report(struct findings *f, const char *path, const struct doctor_elf *elf, bool is_program)
{
	if (torchcomms_report(f, path, elf))
		return;
	if (elf->imports_api && elf->needs_nccl && !elf->needs_api)
		finding_add(f, FINDING_WARN, topic,
		    "link it with `pkg-config --libs shunt`, which names libshunt_api.so.0; `shunt run` starts it as "
		    "it is",
		    "%s calls functions of shunt.h and is linked with libshunt.so, whose SONAME is libnccl.so.2: with "
		    "another NCCL under this name it does not start",
		    path);
	if (elf->is_shunt)
		finding_add(f, FINDING_OK, topic, "", "%s is Shunt", path);
	else if (*elf->needs_later)
		finding_add(f, FINDING_ERROR, topic,
		    "it does not start with Shunt in front of it: take a Shunt that knows this NCCL",
		    "%s needs %s, which Shunt does not know", path, elf->needs_later);
	else if (*elf->renamed && !elf->needs_nccl && !elf->imports)
		finding_add(f, FINDING_WARN, topic, "link it with libnccl.so instead of an NCCL with other names",
		    "%s has an NCCL linked in under names such as %s: Shunt cannot get in front of it", path,
		    elf->renamed);
	else if (elf->contains && !elf->exports)
		finding_add(f, FINDING_WARN, topic, "link it with libnccl.so instead of libnccl_static.a",
		    "%s has NCCL%s%s linked in, and hidden: Shunt cannot get in front of it", path,
		    *elf->version ? " " : "", elf->version);
	else if (elf->exports && strstr(path, "/libnccl.so"))
		finding_add(f, FINDING_INFO, topic, "", "it gets NCCL %s from %s where no Shunt is in front",
		    elf->version, path);
	else if (elf->exports && !elf->needs_nccl)
		finding_add(f, FINDING_INFO, topic, "",
		    "%s has NCCL %s linked in, for all to use: a preloaded Shunt is in front of it", path,
		    elf->version);
	else if (elf->needs_nccl || elf->imports)
		finding_add(
		    f, FINDING_OK, topic, "", "%s is linked with NCCL: a preloaded Shunt is in front of it", path);
	else if ((elf->mentions_nccl || elf->stubs) && !elf->exports)
		finding_add(f, FINDING_INFO, topic, "an absolute path in its settings would go past Shunt",
		    "%s may open libnccl.so by itself: Shunt answers that name, too", path);
	else if (is_program)
		finding_add(f, FINDING_INFO, topic, "",
		    "%s itself has nothing to do with NCCL; what it opens while it runs does not show here", path);
}

/*
 * The loader's own list of libraries: "\tname => path (0x...)", "\tname => not found". That of glibc ends at the first
 * library that is not found if --list asks for it; the variable is what ldd sets. That of musl has no such variable.
 */
static FILE *libraries_list(const char *loader, const char *file, pid_t *pid_p)
{
	const char *const glibc[] = { "env", "LD_TRACE_LOADED_OBJECTS=1", loader, file, NULL };
	const char *const musl[] = { loader, "--list", file, NULL };

	return tool_output_of(strstr(loader, "/ld-musl") ? musl : glibc, pid_p);
}

static void check_program(struct findings *f, const char *path)
{
	struct doctor_elf elf = { 0 }, self = { 0 };
	bool is_python_module;
	char line[PATH_MAX + 256];
	char *full = realpath(path, NULL);
	FILE *list;
	pid_t pid;
	int err = full ? doctor_elf_read(full, &elf) : -errno;

	if (err == -ENOEXEC) {
		finding_add(f, FINDING_INFO, topic,
		    "give the interpreter, or the library that calls NCCL (such as torch/lib/libtorch_cuda.so)",
		    "%s is no program of this machine; a script?", path);
		goto out;
	}
	if (err == -ENODATA) {
		finding_add(f, FINDING_WARN, topic, "take a whole file",
		    "%s is cut short, or has lost its table of sections: what it has of NCCL cannot be told", path);
		goto out;
	}
	if (err) {
		finding_add(f, FINDING_ERROR, topic, "", "%s: %s", path, strerror(-err));
		goto out;
	}
	is_python_module = elf.is_python_module;
	binary_report(f, path, &elf, true);
	if (doctor_elf_read("/proc/self/exe", &self) || !*self.interpreter)
		goto out; /* statically linked: no loader */
	list = libraries_list(*elf.interpreter ? elf.interpreter : self.interpreter, full, &pid);
	if (!list)
		goto out;
	while (fgets(line, sizeof(line), list)) {
		char *arrow = strstr(line, " => "), *end;

		line[strcspn(line, "\n")] = 0;
		if (arrow && !strncmp(arrow + 4, "not found", 9)) {
			if (is_python_module) /* Python has loaded it before: libtorch.so */
				continue;
			finding_add(f, FINDING_ERROR, topic,
			    "the program does not start like this: look at LD_LIBRARY_PATH",
			    "%s needs %.*s, which is not found", path, (int)strcspn(line + strspn(line, "\t"), " "),
			    line + strspn(line, "\t"));
			continue;
		}
		if (!arrow || arrow[4] != '/' || !(end = strstr(arrow, " (0x")))
			continue;
		*end = 0;
		if (!doctor_elf_read(arrow + 4, &elf))
			binary_report(f, arrow + 4, &elf, false);
	}
	fclose(list);
	waitpid(pid, NULL, 0);
out:
	free(full);
}

bool doctor_libraries(struct findings *f, const char *program)
{
	struct copies *copies = calloc(1, sizeof(*copies));
	struct tool_lib lib;
	__typeof__(ncclGetVersion) *get_version;
	const char *used = NULL;
	int version = 0;

	if (!copies) {
		f->failed = true;
		return false;
	}
	if (tool_lib_open(&lib)) {
		finding_add(
		    f, FINDING_ERROR, topic, "reinstall, or set SHUNT_LIB to its path", "libshunt.so cannot be used");
		goto out;
	}
	get_version = (__typeof__(ncclGetVersion) *)dlsym(lib.handle, "ncclGetVersion");
	if (!get_version || get_version(&version))
		finding_add(f, FINDING_ERROR, topic, "", "%s does not answer ncclGetVersion", lib.path);
	used = lib.real_nccl_path();
	if (strcmp(lib.version(), SHUNT_VERSION))
		finding_add(f, FINDING_ERROR, topic, "reinstall both together", "%s is Shunt %s, this command is of %s",
		    lib.path, lib.version(), SHUNT_VERSION);
	else
		finding_add(f, FINDING_OK, topic, "", "Shunt %s: %s", lib.version(), lib.path);
	doctor_packages_each(packages_scan, &(struct python){ f, copies });
	shunt_find_nccl(copy_add, copies);
	if (used) {
		finding_add(f, FINDING_OK, topic, "", "the real NCCL of a program that brings none: %d.%d.%d, %s",
		    version / 10000, version / 100 % 100, version % 100, used);
		copy_add(used, "", copies);
		check_version(f, version, used);
	} else {
		finding_add(f, FINDING_INFO, topic, "if there should be one: SHUNT_NCCL_LIB=/path/of/libnccl.so.2",
		    "no real NCCL would be found: Shunt runs standalone, on one host");
	}
	check_copies(f, copies, used);
	check_preload(f, lib.path);
out:
	if (program)
		check_program(f, program);
	free(copies);
	return used;
}
