/* SPDX-License-Identifier: MIT */
/* Texts of codes, and what else needs no device: forks and files of sysfs. */
#include "tools/common/libc.h"
#include "fake.h"

#define TEXT(table, i) ((size_t)(i) < sizeof(table) / sizeof((table)[0]) && (table)[i] ? (table)[i] : "unknown")

const char *ibv_node_type_str(enum ibv_node_type type)
{
	static const char *const texts[] = { NULL, "InfiniBand channel adapter", "InfiniBand switch",
		"InfiniBand router" };

	return TEXT(texts, type);
}

const char *ibv_port_state_str(enum ibv_port_state state)
{
	static const char *const texts[] = { "PORT_NOP", "PORT_DOWN", "PORT_INIT", "PORT_ARMED", "PORT_ACTIVE",
		"PORT_ACTIVE_DEFER" };

	return TEXT(texts, state);
}

const char *ibv_event_type_str(enum ibv_event_type event)
{
	static const char *const texts[] = { "CQ error", "local work queue catastrophic error",
		"invalid request local work queue error", "local access violation work queue error",
		"communication established", "send queue drained", "path migrated", "path migration request error",
		"local catastrophic error", "port active", "port error", "LID change", "P_Key change", "SM change",
		"SRQ catastrophic error", "SRQ limit reached", "last WQE reached", "client reregistration",
		"GID table change", "WQ fatal" };

	return TEXT(texts, event);
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	static const char *const texts[] = { "success", "local length error", "local QP operation error",
		"local EE context operation error", "local protection error", "Work Request Flushed Error",
		"memory bind error", "bad response error", "local access error", "remote invalid request error",
		"remote access error", "remote operation error", "transport retry counter exceeded",
		"RNR retry counter exceeded", "local RDD violation error", "remote invalid RD request", "aborted error",
		"invalid EE context number", "invalid EE context state", "fatal error", "response timeout error",
		"general error", "TM error", "TM software rendezvous" };

	return TEXT(texts, status);
}

static _Atomic int forks;

int ibv_fork_init(void)
{
	atomic_store(&forks, 1);
	return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return atomic_load(&forks) ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}

const char *ibv_get_sysfs_path(void)
{
	return *fake_config()->sysfs ? fake_config()->sysfs : "/sys";
}

FAKE_EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[1024];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, buf, size - 1);
	close(fd);
	if (n <= 0)
		return -1;
	n -= buf[n - 1] == '\n';
	buf[n] = '\0';
	return (int)n;
}

/* For ibv_devinfo: 0 InfiniBand and RoCE v1, 1 RoCE v2, as in the kernel. */
FAKE_EXPORT int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, unsigned *type_p);
int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, unsigned *type_p)
{
	struct ibv_gid_entry e;
	int err = _ibv_query_gid_ex(c, port, index, &e, 0, sizeof(e));

	if (err && err != ENODATA) {
		errno = err;
		return -1;
	}
	*type_p = !err && e.gid_type == IBV_GID_TYPE_ROCE_V2;
	return 0;
}
