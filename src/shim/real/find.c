/* SPDX-License-Identifier: MIT */
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/place.h"
#include "shim/real/find.h"

#define WHEEL_DIR "nvidia/nccl/lib"
#define FILE_NAME "libnccl.so.2"

struct nccl_search {
	shunt_find_fn *take;
	void *arg;
	bool found;
};

/*
 * Mapped libraries. Their paths are copied first: offering a path may load libraries, which must not happen under the
 * loader's lock.
 */
struct mapped {
	char **paths;
	size_t n, cap;
	bool failed;
};

static bool try_path(struct nccl_search *s, const char *from, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool try_path(struct nccl_search *s, const char *from, const char *format, ...)
{
	char path[PATH_MAX];
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(
	    path, sizeof(path), format, ap); /* NOLINT(clang-analyzer-valist.Uninitialized): it is, one line up */
	va_end(ap);
	if (n > 0 && (size_t)n < sizeof(path) && path[0] == '/')
		s->found = s->take(path, from, s->arg);
	return s->found;
}

static int add_mapped(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct mapped *m = arg;

	if (!strchr(info->dlpi_name, '/')) /* the program itself and the vdso */
		return 0;
	if (m->n == m->cap) {
		size_t cap = m->cap ? 2 * m->cap : 64;
		char **paths = realloc(m->paths, cap * sizeof(*paths));
		if (!paths) {
			m->failed = true;
			return 1;
		}
		m->paths = paths;
		m->cap = cap;
	}
	m->paths[m->n] = realpath(info->dlpi_name, NULL);
	if (m->paths[m->n])
		m->n++;
	return 0;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Takes libnccl.so and libnccl.so.2.28.9, but not libnccl-net.so. */
static bool search_mapped(struct nccl_search *s, const struct mapped *m)
{
	for (size_t i = 0; i < m->n; i++)
		if (!strncmp(base_name(m->paths[i]), "libnccl.so", 10) &&
		    try_path(s, "already loaded", "%s", m->paths[i]))
			return true;
	return false;
}

static bool search_beside_torch(struct nccl_search *s, const struct mapped *m)
{
	for (size_t i = 0; i < m->n; i++) {
		const char *base = base_name(m->paths[i]);
		if (!strcmp(base, "libtorch_cuda.so") &&
		    try_path(s, "beside libtorch_cuda", "%.*s../../" WHEEL_DIR "/" FILE_NAME, (int)(base - m->paths[i]),
		        m->paths[i]))
			return true;
	}
	return false;
}

/* Tries every directory that the pattern matches, as one of Python packages. */
static bool search_site_packages(struct nccl_search *s, const char *pattern)
{
	glob_t g = { 0 };

	if (!glob(pattern, GLOB_NOSORT, NULL, &g))
		for (size_t i = 0; i < g.gl_pathc && !s->found; i++)
			try_path(s, "Python packages", "%s/" WHEEL_DIR "/" FILE_NAME, g.gl_pathv[i]);
	globfree(&g);
	return s->found;
}

static bool search_python(struct nccl_search *s, const struct mapped *m)
{
	static const char *const dirs[] = { "/site-packages/", "/dist-packages/" };
	const char *venv = secure_getenv("VIRTUAL_ENV");
	char exe[PATH_MAX], pattern[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	for (size_t i = 0; i < m->n; i++)
		for (size_t d = 0; d < 2; d++) {
			const char *at = strstr(m->paths[i], dirs[d]);
			if (at &&
			    try_path(s, "Python packages", "%.*s" WHEEL_DIR "/" FILE_NAME,
			        (int)(at - m->paths[i] + strlen(dirs[d])), m->paths[i]))
				return true;
		}
	if (n <= 0)
		return false;
	exe[n] = 0;
	if (strncmp(base_name(exe), "python", 6)) /* only Python uses Python packages */
		return false;
	if (venv) {
		snprintf(pattern, sizeof(pattern), "%s/lib/python3*/site-packages", venv);
		if (search_site_packages(s, pattern))
			return true;
	}
	for (int up = 0; up < 2; up++) { /* <prefix>/bin/python3 */
		char *slash = strrchr(exe, '/');
		if (slash)
			*slash = 0;
	}
	snprintf(pattern, sizeof(pattern), "%s/lib/python3*/[sd]i[ts][et]-packages", exe);
	if (search_site_packages(s, pattern))
		return true;
	snprintf(pattern, sizeof(pattern), "%s/local/lib/python3*/dist-packages", exe);
	if (search_site_packages(s, pattern))
		return true;
	snprintf(pattern, sizeof(pattern), "%s/conda-meta", exe);
	return !access(pattern, F_OK) && try_path(s, "conda environment", "%s/lib/" FILE_NAME, exe);
}

/* Tries a list of directories, separated by colons. suffix comes before the file name. */
static bool search_dir_list(struct nccl_search *s, const char *list, const char *suffix, const char *from)
{
	while (list && *list && !s->found) {
		size_t n = strcspn(list, ":;");
		try_path(s, from, "%.*s%s/" FILE_NAME, (int)n, list, suffix);
		list += n + (list[n] != 0);
	}
	return s->found;
}

static bool search_ld_so_conf(struct nccl_search *s)
{
	glob_t g = { 0 };

	if (!glob("/etc/ld.so.conf.d/*.conf", 0, NULL, &g))
		for (size_t i = 0; i < g.gl_pathc && !s->found; i++) {
			FILE *f = fopen(g.gl_pathv[i], "re");
			char line[PATH_MAX];
			while (f && !s->found && fgets(line, sizeof(line), f)) {
				line[strcspn(line, " \t\r\n#")] = 0;
				try_path(s, "ld.so.conf", "%s/" FILE_NAME, line);
			}
			if (f)
				fclose(f);
		}
	globfree(&g);
	return s->found;
}

bool shunt_find_nccl(shunt_find_fn *take, void *arg)
{
	static const char usual[] = "/usr/local/cuda/lib64:/usr/local/cuda/lib:/usr/local/lib:/usr/lib64:/lib64:"
#if defined(__aarch64__)
	                            "/usr/lib/aarch64-linux-gnu:"
#else
	                            "/usr/lib/x86_64-linux-gnu:"
#endif
	                            "/usr/lib:/lib:/opt/cuda/lib64:/opt/conda/lib";
	struct nccl_search s = { .take = take, .arg = arg };
	struct mapped m = { 0 };

	dl_iterate_phdr(add_mapped, &m);
	if (!search_mapped(&s, &m) && !search_beside_torch(&s, &m) && !search_python(&s, &m) &&
	    !search_dir_list(&s, secure_getenv("PYTHONPATH"), "/" WHEEL_DIR, "PYTHONPATH") &&
	    !search_dir_list(&s, secure_getenv("LD_LIBRARY_PATH"), "", "LD_LIBRARY_PATH") && !search_ld_so_conf(&s))
		search_dir_list(&s, usual, "", "usual directory");
	for (size_t i = 0; i < m.n; i++)
		free(m.paths[i]);
	free(m.paths);
	return s.found;
}

bool shunt_find_is_self(const char *path)
{
	char own[PATH_MAX];
	struct stat a, b;

	return !stat(path, &b) && shunt_place_own(own) && !stat(own, &a) && a.st_dev == b.st_dev &&
	    a.st_ino == b.st_ino;
}
