/* SPDX-License-Identifier: MIT */
#include "base/host.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/config.h"
#include "base/lock.h"

struct identity {
	char boot[64];
	uint64_t netns, uid;
};

static struct identity own;
static bool is_known;

/* Without /proc: the host's name. */
static int read_boot(char *text, size_t bytes)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC), err = 0;
	ssize_t n = 0;

	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
		return -errno; /* the next call may know better, and its answer must be the same */
	if (fd >= 0) {
		n = read(fd, text, bytes - 1);
		close(fd);
	}
	if (n <= 0)
		err = gethostname(text, bytes - 1) ? -errno : 0;
	return err;
}

static int read_own(struct identity *id)
{
	struct stat st;
	int err = read_boot(id->boot, sizeof(id->boot));

	if (!err && !stat("/proc/self/ns/net", &st))
		id->netns = (uint64_t)st.st_ino;
	id->uid = geteuid();
	return err;
}

static int identity(struct identity *id)
{
	int err = 0;

	shunt_lock_acquire(SHUNT_LOCK_HOST);
	if (!is_known) {
		own = (struct identity){ 0 };
		err = read_own(&own);
		is_known = !err;
	}
	*id = own;
	shunt_lock_release(SHUNT_LOCK_HOST);
	return err;
}

const char *shunt_host_override(void)
{
	return shunt_config()->hostid;
}

int shunt_host_machine_id(uint8_t out[SHUNT_HOST_BYTES], const void *key, size_t key_bytes)
{
	uint8_t mac[SHUNT_MAC_BYTES];
	struct identity id;
	int err = identity(&id);

	shunt_mac(mac, shunt_bytes(key, key_bytes), "shunt machine", shunt_bytes(id.boot, strlen(id.boot)),
	    (struct shunt_bytes){ 0 });
	memcpy(out, mac, SHUNT_HOST_BYTES);
	return err;
}

int shunt_host_id(uint8_t out[SHUNT_HOST_BYTES], const void *key, size_t key_bytes)
{
	const char *name = shunt_host_override();
	uint8_t mac[SHUNT_MAC_BYTES];
	struct identity id;
	int err = identity(&id);
	uint64_t numbers[2] = { *name ? 0 : id.netns, id.uid };

	name = *name ? name : id.boot;
	shunt_mac(mac, shunt_bytes(key, key_bytes), "shunt host", shunt_bytes(name, strlen(name)),
	    shunt_bytes(numbers, sizeof(numbers)));
	memcpy(out, mac, SHUNT_HOST_BYTES);
	return err;
}

void shunt_host_name(char *text, size_t bytes)
{
	const char *name = shunt_host_override();
	char host[65] = "";

	if (!*name && (gethostname(host, sizeof(host) - 1) || !*host))
		snprintf(host, sizeof(host), "?");
	snprintf(text, bytes, "%s", *name ? name : host);
}
