/* SPDX-License-Identifier: MIT */
#include "topology/trust.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/lock.h"
#include "topology/pci.h"

enum { KEY = 1024 };

struct found {
	struct found *next;
	enum shunt_trust trust;
	char why[SHUNT_TRUST_WHY];
	char key[KEY];
};
static struct found *list; /* grows by one store, so a forked child keeps it */

static void uuid_text(const struct shunt_gpu_info *gpu, char text[33])
{
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", gpu->uuid[i]);
}

/* All that a verdict depends on, as the first lines of its file. */
static void key_of(const struct shunt_gpu_info *a, const struct shunt_gpu_info *b, enum shunt_link link, char key[KEY])
{
	char boot[64] = "?", driver[64] = "?", from[33], to[33];
	bool swap = memcmp(a->uuid, b->uuid, sizeof(a->uuid)) > 0;

	shunt_files_line("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
	if (!a->sim)
		shunt_pci_read("module/nvidia/version", driver, sizeof(driver));
	uuid_text(swap ? b : a, from);
	uuid_text(swap ? a : b, to);
	snprintf(key, KEY, "shunt links 1\nboot %s\ndriver %s for CUDA %u\ndevices %s %s, %s %s\nlink %s%s%.500s\n",
	    boot, a->sim ? "of the sim" : driver, a->driver, from, (swap ? b : a)->pci, to, (swap ? a : b)->pci,
	    shunt_link_names[link], a->sim ? " " : "", a->sim ? shunt_config()->sim_links : "");
}

/* Devices of the sim leave nothing in a cache that the user did not name. */
static bool path_of(const struct shunt_gpu_info *a, const char *key, char path[PATH_MAX])
{
	const char *dir = shunt_config()->cache_dir;
	size_t n;

	if ((a->sim && !*dir) || shunt_files_cache(dir, "links", path, PATH_MAX) != SHUNT_FILES_CACHE)
		return false;
	n = strlen(path);
	return (size_t)snprintf(path + n, PATH_MAX - n, "/%016" PRIx64, shunt_fnv1a(0, key, strlen(key))) <
	    PATH_MAX - n;
}

/* A verdict is one whole line behind the key: "good", or "bad: WHY". */
static enum shunt_trust parse(const char *text, const char *key, char why[SHUNT_TRUST_WHY])
{
	size_t n = strlen(key), end;

	if (strncmp(text, key, n))
		return SHUNT_TRUST_UNKNOWN;
	text += n;
	end = strcspn(text, "\n");
	if (text[end] != '\n' || text[end + 1])
		return SHUNT_TRUST_UNKNOWN;
	if (!strcmp(text, "good\n"))
		return SHUNT_TRUST_GOOD;
	if (strncmp(text, "bad: ", 5))
		return SHUNT_TRUST_UNKNOWN;
	snprintf(why, SHUNT_TRUST_WHY, "%.*s", (int)end - 5, text + 5);
	return SHUNT_TRUST_BAD;
}

static void remember(const char *key, enum shunt_trust trust, const char *why)
{
	struct found *f = calloc(1, sizeof(*f));

	if (!f)
		return; /* then the pair is tested again */
	f->trust = trust;
	snprintf(f->why, sizeof(f->why), "%s", why);
	memcpy(f->key, key, strlen(key) + 1);
	shunt_lock_acquire(SHUNT_LOCK_TRUST);
	f->next = list;
	list = f;
	shunt_lock_release(SHUNT_LOCK_TRUST);
}

enum shunt_trust shunt_trust_find(
    const struct shunt_gpu_info *a, const struct shunt_gpu_info *b, enum shunt_link link, char why[SHUNT_TRUST_WHY])
{
	char key[KEY], path[PATH_MAX], text[KEY + SHUNT_TRUST_WHY + 16];
	enum shunt_trust trust = SHUNT_TRUST_UNKNOWN;
	const struct found *f;

	*why = '\0';
	key_of(a, b, link, key);
	shunt_lock_acquire(SHUNT_LOCK_TRUST);
	for (f = list; f && strcmp(f->key, key);)
		f = f->next;
	if (f) {
		trust = f->trust;
		memcpy(why, f->why, SHUNT_TRUST_WHY);
	}
	shunt_lock_release(SHUNT_LOCK_TRUST);
	if (f || !path_of(a, key, path) || !shunt_files_kept(path, text, sizeof(text)))
		return trust;
	trust = parse(text, key, why);
	if (trust)
		remember(key, trust, why);
	return trust;
}

void shunt_trust_keep(const struct shunt_gpu_info *a, const struct shunt_gpu_info *b, enum shunt_link link,
    enum shunt_trust trust, const char *why, bool in_cache)
{
	char key[KEY], path[PATH_MAX], text[KEY + SHUNT_TRUST_WHY + 16];

	key_of(a, b, link, key);
	remember(key, trust, why);
	if (!in_cache || !path_of(a, key, path))
		return;
	snprintf(text, sizeof(text), "%s%s%.*s\n", key,
	    trust == SHUNT_TRUST_GOOD ? "good" : "bad: ", SHUNT_TRUST_WHY - 1, trust == SHUNT_TRUST_GOOD ? "" : why);
	shunt_files_keep(path, text);
}

void shunt_trust_forget(void)
{
	struct found *old;

	shunt_lock_acquire(SHUNT_LOCK_TRUST);
	old = list;
	list = NULL;
	shunt_lock_release(SHUNT_LOCK_TRUST);
	for (struct found *next; old; old = next) {
		next = old->next;
		free(old);
	}
}
