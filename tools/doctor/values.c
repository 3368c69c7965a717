/* SPDX-License-Identifier: MIT */
/* Values of variables with text: checked as the library's parsers would do it. */
#include "tools/common/libc.h"
#include "algos/select/forced.h"
#include "algos/select/tuning.h"
#include "base/config.h"
#include "base/files.h"
#include "base/inet/netif.h"
#include "tools/doctor/doctor.h"

static const char topic[] = "variables";

static bool forced_is_wrong(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s)
{
	if (!*s->forced_bad)
		return false;
	finding_add(f, FINDING_ERROR, topic,
	    "it takes all, allreduce, reduce, broadcast, allgather, reducescatter, alltoall, gather, scatter, send and "
	    "recv",
	    "%s: there is no collective \"%s\", which is left out", row->source, s->forced_bad);
	return true;
}

static bool algo_is_wrong(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s)
{
	char reason[300];

	if (shunt_forced_check(s->config.algo, reason, sizeof(reason)))
		return false;
	finding_add(f, FINDING_ERROR, topic,
	    "kind:from-to:name, e.g. allreduce:0-64k:oneshot; `shunt info -a` lists the names",
	    "%s: a rule cannot be used and is left out: %s", row->source, reason);
	return true;
}

struct tuning_files {
	struct findings *f;
	const char *source;
	unsigned n, bad;
};

static void try_tuning(void *ctx, const char *path)
{
	struct tuning_files *files = ctx;
	struct shunt_tuning *t;
	char reason[512];

	files->n++;
	if (!shunt_tuning_read(path, &t, reason, sizeof(reason))) {
		shunt_tuning_free(t);
		return;
	}
	files->bad++;
	finding_add(files->f, FINDING_ERROR, topic, "correct it, or make one with `shunt tune`; it is not used",
	    "%s: tuning file refused: %s", files->source, reason);
}

static void try_tuning_path(const struct shunt_files *files, const char *path)
{
	struct tuning_files *t = files->ctx;
	unsigned before = t->n;

	if (access(path, R_OK)) {
		finding_add(t->f, FINDING_ERROR, topic, "correct it, or unset it", "%s: %s: %s", t->source, path,
		    strerror(errno));
		t->bad++;
		return;
	}
	shunt_files_path(files, path, true);
	if (t->n != before)
		return;
	finding_add(t->f, FINDING_WARN, topic, "it takes files named *.json", "%s: there are no tuning files in %s",
	    t->source, path);
	t->bad++;
}

static bool tuning_is_wrong(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s)
{
	struct tuning_files t = { f, row->source, 0, 0 };
	const struct shunt_files files = { .what = "tuning", .one = "tuning file", .add = try_tuning, .ctx = &t };
	const char *list = s->config.tuning_file;
	char path[PATH_MAX];

	if (!strcmp(list, "none"))
		return false;
	while (*list) {
		size_t n = strcspn(list, ":");

		snprintf(path, sizeof(path), "%.*s", (int)n, list);
		if (n)
			try_tuning_path(&files, path);
		list += n + (list[n] != 0);
	}
	return t.bad;
}

/* The directory may be missing: a writer creates it. */
static bool cache_is_wrong(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s)
{
	struct stat st;
	int err = 0;

	if (stat(s->config.cache_dir, &st))
		err = errno == ENOENT ? 0 : errno;
	else
		err = !S_ISDIR(st.st_mode) ? ENOTDIR : access(s->config.cache_dir, R_OK | X_OK) ? errno : 0;
	if (err)
		finding_add(f, FINDING_ERROR, topic, "it takes a directory", "%s=%s: %s", row->source,
		    s->config.cache_dir, strerror(err));
	return err;
}

static bool comm_id_is_wrong(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s)
{
	struct shunt_netaddr addr;

	if (!shunt_netif_parse(s->nccl.comm_id, s->nccl.socket_family, &addr))
		return false;
	finding_add(f, FINDING_ERROR, topic, "host:port, [IPv6 address]:port or interface:port",
	    "%s=%s is no address, or its host is not known here: no communicator can be made", row->source,
	    s->nccl.comm_id);
	return true;
}

static bool ifname_is_wrong(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s)
{
	struct shunt_netif_rules rules = { s->nccl.socket_ifname, s->nccl.socket_family, NULL };
	struct shunt_netaddr addr;

	if (!shunt_netif_select(&rules, &addr))
		return false;
	finding_add(f, FINDING_ERROR, topic,
	    "`ip address` lists those that there are; prefixes, or names after =, and ^ excludes",
	    "%s=%s: no interface that it allows is up, with a carrier and an address%s%s", row->source,
	    s->nccl.socket_ifname, *s->nccl.socket_family ? " of " : "", s->nccl.socket_family);
	return true;
}

static bool family_is_wrong(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s)
{
	if (!strcmp(s->nccl.socket_family, "AF_INET") || !strcmp(s->nccl.socket_family, "AF_INET6"))
		return false;
	finding_add(f, FINDING_ERROR, topic, "", "%s=%s cannot be read, and any is used: it takes AF_INET or AF_INET6",
	    row->source, s->nccl.socket_family);
	return true;
}

bool doctor_value(struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s)
{
	static const struct {
		const char *name;
		bool (*is_wrong)(
		    struct findings *f, const struct shunt_config_row *row, const struct shunt_settings *s);
	} texts[] = { { "SHUNT_FORCE_NCCL", forced_is_wrong }, { "SHUNT_ALGO", algo_is_wrong },
		{ "SHUNT_TUNING_FILE", tuning_is_wrong }, { "SHUNT_CACHE_DIR", cache_is_wrong },
		{ "NCCL_COMM_ID", comm_id_is_wrong }, { "NCCL_SOCKET_IFNAME", ifname_is_wrong },
		{ "NCCL_SOCKET_FAMILY", family_is_wrong } };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (!strcmp(row->name, texts[i].name))
			return texts[i].is_wrong(f, row, s);
	return false;
}
