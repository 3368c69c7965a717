/* SPDX-License-Identifier: MIT */
/* Plug-ins in files: shared libraries that export a table of them. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include "algos/plugins.h"
#include "base/config.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/lock.h"
#include "base/log.h"

#define TABLE "shunt_plugins_1"
#define MAX_FILE ((size_t)1 << 30)

static int refuse(char *why, size_t bytes, int err, const char *path, const char *text)
{
	if (why && bytes)
		snprintf(why, bytes, "%s: %s", path, text);
	return err;
}

/* What host functions do is a matter of the whole file. */
static int hash_file(const char *path, uint64_t *hash_p, char *why, size_t bytes)
{
	struct shunt_json_log log = { .source = path, .reason = why, .bytes = why ? bytes : 0 };
	uint8_t mac[SHUNT_MAC_BYTES];
	char *text;
	size_t n;
	int err = shunt_json_file(&log, path, MAX_FILE, &text, &n);

	if (err)
		return err;
	shunt_mac(mac, shunt_bytes("shunt plug-in 1", 16), "file", shunt_bytes(text, n), shunt_bytes("", 0));
	memcpy(hash_p, mac, sizeof(*hash_p));
	free(text);
	return 0;
}

int shunt_plugin_load_file(const char *path, char *why, size_t bytes)
{
	const struct shunt_plugin *const *table;
	uint64_t hash = 0;
	void *file;
	int err;

	if (getauxval(AT_SECURE))
		return refuse(
		    why, bytes, -EPERM, path, "this process runs with another user's rights: it loads no plug-ins");
	err = hash_file(path, &hash, why, bytes);
	if (err)
		return err;
	file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!file)
		return refuse(why, bytes, -ENOEXEC, path, dlerror());
	table = dlsym(file, TABLE);
	if (!table || !*table) {
		dlclose(file);
		return refuse(why, bytes, -ENOEXEC, path,
		    "it exports no plug-ins, as `const struct shunt_plugin *const " TABLE "[]`");
	}
	/* The file stays: communicators may have its functions when its plug-ins are unregistered. */
	for (; *table && !err; table++)
		err = shunt_plugin_add(*table, hash, why, bytes);
	return err;
}

static void add_file(void *ctx, const char *path)
{
	char why[512];
	int err = shunt_plugin_load_file(path, why, sizeof(why));

	(void)ctx;
	if (err)
		shunt_warn("SHUNT_PLUGINS: plug-ins left out: %s", why);
	else
		shunt_info(SHUNT_LOG_INIT, "plug-ins of %s are there", path);
}

void shunt_plugin_files_load(void)
{
	static const struct shunt_files files = { .what = "plug-ins", .one = "plug-in", .add = add_file };
	static atomic_bool loaded;

	if (atomic_load_explicit(&loaded, memory_order_acquire))
		return;
	shunt_log_hold();
	shunt_lock_acquire(SHUNT_LOCK_PLUGIN_FILES);
	if (!atomic_load(&loaded)) {
		shunt_files_list(&files, shunt_config()->plugins);
		atomic_store_explicit(&loaded, true, memory_order_release);
	}
	shunt_lock_release(SHUNT_LOCK_PLUGIN_FILES);
	shunt_log_flush();
}
