/* SPDX-License-Identifier: MIT */
/*
 * Reads a tuning file's text into a table. The text may come from anyone: every value is checked before it is used or
 * printed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "algos/algos.h"
#include "algos/plugins.h"
#include "algos/select/tuning.h"
#include "base/json.h"
#include "base/renamed.h"

/* A table with its source. */
struct owned {
	struct shunt_tuning tuning;
	char source[];
};

static bool version_read(struct shunt_json_log *log, const json_t *root)
{
	const char *version;
	uint64_t format;

	if (!shunt_json_uint(shunt_json_at(log, root, ""), "shunt_tuning", 0, UINT32_MAX, &format))
		return false;
	if (format != SHUNT_TUNING_FORMAT) {
		shunt_json_fail(log, EXDEV,
		    "format %u, and this is Shunt %s, which reads format %u: run `shunt tune` again", (unsigned)format,
		    SHUNT_VERSION, SHUNT_TUNING_FORMAT);
		return false;
	}
	if (!shunt_json_string(shunt_json_at(log, root, ""), "shunt", &version))
		return false;
	if (strcmp(version, SHUNT_VERSION)) {
		shunt_json_fail(log, EXDEV, "made by Shunt %s, and this is %s: run `shunt tune` again",
		    shunt_json_quote(version).text, SHUNT_VERSION);
		return false;
	}
	return true;
}

static bool printable(const char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			return false;
	return true;
}

/* The hosts that the ranks were on, and what carried data between them. */
static bool hosts_read(
    struct shunt_json_log *log, const json_t *machine, uint64_t hosts, uint64_t ranks, struct shunt_machine *m)
{
	const char *net = "";

	m->nhosts = hosts > 1 ? (int)hosts : 0;
	if (hosts <= 1)
		return true;
	if (ranks % hosts || ranks / hosts > SHUNT_MAX_RANKS) {
		shunt_json_fail(log, EINVAL, "machine.ranks is %u, expected as many on each of %u hosts, at most %d",
		    (unsigned)ranks, (unsigned)hosts, SHUNT_MAX_RANKS);
		return false;
	}
	if (!shunt_json_string(shunt_json_at(log, machine, "machine"), "net", &net))
		return false;
	if (!*net || strlen(net) >= sizeof(m->net) || !printable(net)) {
		shunt_json_fail(log, EINVAL, "machine.net is %s, expected a name of at most %zu letters, such as tcp",
		    shunt_json_quote(net).text, sizeof(m->net) - 1);
		return false;
	}
	strcpy(m->net, net);
	return true;
}

/* What joins the ranks of one host, where that is not NVLink alone. */
static bool links_read(
    struct shunt_json_log *log, const json_t *machine, uint64_t hosts, uint64_t ranks, struct shunt_machine *m)
{
	static const char *const names[] = { "peer", "shared", NULL };
	struct shunt_json_at at = shunt_json_at(log, machine, "machine");
	uint64_t islands;
	unsigned link;

	if (!json_object_get(machine, "link") && !json_object_get(machine, "islands"))
		return true;
	if (!shunt_json_word(at, "link", names, &link) ||
	    !shunt_json_uint_or(at, "islands", 2, SHUNT_MAX_RANKS / 2, 0, &islands))
		return false;
	if (hosts > 1) {
		shunt_json_fail(log, EINVAL, "machine.link is %s, and such a table is for one host, not for %u",
		    names[link], (unsigned)hosts);
		return false;
	}
	if (islands && (ranks % islands || ranks / islands < 2)) {
		shunt_json_fail(log, EINVAL, "machine.ranks is %u, expected several and as many on each of %u islands",
		    (unsigned)ranks, (unsigned)islands);
		return false;
	}
	m->link = (uint8_t)(SHUNT_LINK_PEER + link);
	m->islands = (uint8_t)islands;
	return true;
}

static bool machine_read(struct shunt_json_log *log, const json_t *root, struct shunt_machine *m)
{
	uint64_t cc, driver, ranks, hosts;
	const json_t *object;
	const char *gpu;

	if (!shunt_json_object(shunt_json_at(log, root, ""), "machine", true, &object) ||
	    !shunt_json_string(shunt_json_at(log, object, "machine"), "gpu", &gpu) ||
	    !shunt_json_bool_or(shunt_json_at(log, object, "machine"), "sim", false, &m->sim) ||
	    !shunt_json_uint(shunt_json_at(log, object, "machine"), "cc", m->sim ? 0 : 10, m->sim ? 0 : 9999, &cc) ||
	    !shunt_json_uint(shunt_json_at(log, object, "machine"), "driver", 0, INT32_MAX, &driver) ||
	    !shunt_json_uint_or(shunt_json_at(log, object, "machine"), "hosts", 1, SHUNT_NET_MAX_RANKS, 1, &hosts) ||
	    !shunt_json_uint(shunt_json_at(log, object, "machine"), "ranks", 2,
	        hosts > 1 ? SHUNT_NET_MAX_RANKS : SHUNT_MAX_RANKS, &ranks))
		return false;
	if (!hosts_read(log, object, hosts, ranks, m) || !links_read(log, object, hosts, ranks, m))
		return false;
	if (strlen(gpu) >= sizeof(m->gpu) || !printable(gpu)) {
		shunt_json_fail(log, EINVAL, "machine.gpu is %s, expected a name of at most %zu letters",
		    shunt_json_quote(gpu).text, sizeof(m->gpu) - 1);
		return false;
	}
	strcpy(m->gpu, gpu);
	m->cc = (unsigned)cc;
	m->driver = (unsigned)driver;
	m->nranks = (int)ranks;
	return true;
}

/* "2.28.9" as 22809; 0: it is no version. */
static int version_number(const char *text)
{
	unsigned v[3];
	char end;

	if (sscanf(text, "%u.%u.%u%c", &v[0], &v[1], &v[2], &end) != 3 || v[0] > 99 || v[1] > 99 || v[2] > 99)
		return 0;
	return (int)(v[0] * 10000 + v[1] * 100 + v[2]);
}

/* The real NCCL that was measured, and whether it used multicast. Files from before that was written do not say. */
static bool nccl_read(struct shunt_json_log *log, const json_t *root, struct shunt_tuning *t)
{
	const json_t *machine = json_object_get(root, "machine");
	const char *nccl = "";
	bool nvls = false;

	if (json_object_get(root, "nccl") && !shunt_json_string(shunt_json_at(log, root, ""), "nccl", &nccl))
		return false;
	if (!shunt_json_bool_or(shunt_json_at(log, machine, "machine"), "nvls", false, &nvls))
		return false;
	t->vs_nccl = *nccl;
	t->machine.nvls = !json_object_get(machine, "nvls") ? -1 : nvls;
	t->machine.nccl = version_number(nccl);
	return true;
}

/* Sizes from which NCCL is the faster one in windows, by collective. */
static bool windows_read(struct shunt_json_log *log, const json_t *root, struct shunt_tuning *t)
{
	const json_t *object;

	if (!json_object_get(root, "windows"))
		return true;
	if (!shunt_json_object(shunt_json_at(log, root, ""), "windows", true, &object))
		return false;
	for (int k = 0; k < SHUNT_NKINDS; k++) {
		const char *name = shunt_kind_name((enum shunt_kind)k);

		if (!json_object_get(object, name))
			continue;
		if (json_is_null(json_object_get(object, name)))
			t->windows_from[k] = UINT64_MAX;
		else if (!shunt_json_uint(
		             shunt_json_at(log, object, "windows"), name, 0, UINT64_MAX, &t->windows_from[k]))
			return false;
		t->windows |= 1u << k;
	}
	return true;
}

/* True: the machine's ranks can run it, whatever the buffers. */
static bool is_for(const struct shunt_machine *m, const struct shunt_algo *algo)
{
	return algo->fuse != SHUNT_FUSE_SYMMEM && algo->over_islands == (m->nhosts != 0) &&
	    (!algo->by_parts || m->islands) && algo->links >> (m->link ? m->link : SHUNT_LINK_NVLINK) & 1;
}

/* Reads row i. */
static bool row_read(struct shunt_json_log *log, const json_t *object, uint32_t i, const struct shunt_machine *m,
    struct shunt_tuning_row *row)
{
	const char *kinds[SHUNT_NKINDS + 1] = { 0 }, *algo;
	uint64_t blocks, threads, channels;
	bool plugin;
	char where[32];
	unsigned kind;

	for (int k = 0; k < SHUNT_NKINDS; k++)
		kinds[k] = shunt_kind_name((enum shunt_kind)k);
	snprintf(where, sizeof(where), "rows[%u]", i);
	if (!shunt_json_word(shunt_json_at(log, object, where), "kind", kinds, &kind) ||
	    !shunt_json_uint_or(shunt_json_at(log, object, where), "upto", 0, UINT64_MAX, UINT64_MAX, &row->upto) ||
	    !shunt_json_string(shunt_json_at(log, object, where), "algorithm", &algo) ||
	    !shunt_json_uint_or(shunt_json_at(log, object, where), "blocks", 0, SHUNT_MAX_BLOCKS, 0, &blocks) ||
	    !shunt_json_uint_or(shunt_json_at(log, object, where), "threads", 0, SHUNT_MAX_THREADS, 0, &threads) ||
	    !shunt_json_uint_or(shunt_json_at(log, object, where), "channels", 0, SHUNT_P2P_CHANNELS, 0, &channels) ||
	    !shunt_json_bool_or(shunt_json_at(log, object, where), "plugin", false, &plugin) ||
	    !shunt_json_bool_or(shunt_json_at(log, object, where), "nccl", false, &row->forward))
		return false;
	row->kind = (enum shunt_kind)kind;
	/* A plug-in that is not there leaves its sizes to the built-in rows. */
	row->algo = plugin ? shunt_plugin_row_of_any(row->kind, algo) : shunt_algo_find(row->kind, algo);
	if (!row->algo || !is_for(m, row->algo)) {
		const char *now = shunt_renamed(SHUNT_RENAMED_ALGORITHM, algo);

		shunt_json_fail(log, EINVAL, "%s.algorithm is %s, which is none of %s%s%s (%s)", where,
		    shunt_json_quote(algo).text, kinds[kind], m->link ? " by machine.link " : "",
		    m->link ? shunt_link_names[m->link] : "", now ? now : "`shunt info -a` lists them");
		return false;
	}
	if (threads % 32) {
		shunt_json_fail(log, EINVAL, "%s.threads is %u, expected a multiple of 32", where, (unsigned)threads);
		return false;
	}
	row->geometry = (struct shunt_geometry){ (uint16_t)blocks, (uint16_t)threads, (uint16_t)channels };
	return true;
}

static bool rows_read(struct shunt_json_log *log, const json_t *root, struct shunt_tuning *t)
{
	const json_t *array, *object;
	uint32_t n;

	if (!shunt_json_array(shunt_json_at(log, root, ""), "rows", true, &array, &n))
		return false;
	if (n > SHUNT_TUNING_MAX_ROWS) {
		shunt_json_fail(log, EFBIG, "%u rows, expected at most %u", n, SHUNT_TUNING_MAX_ROWS);
		return false;
	}
	t->rows = calloc(n ? n : 1, sizeof(*t->rows));
	if (!t->rows) {
		shunt_json_fail(log, ENOMEM, "no memory");
		return false;
	}
	t->nrows = n;
	for (uint32_t i = 0; i < n; i++)
		if (!shunt_json_object_at(shunt_json_at(log, array, "rows"), i, &object) ||
		    !row_read(log, object, i, &t->machine, &t->rows[i]))
			return false;
	return true;
}

int shunt_tuning_parse(
    const char *source, const char *text, size_t bytes, struct shunt_tuning **t_p, char *reason, size_t reason_bytes)
{
	struct shunt_json_log log = { .source = source, .reason = reason, .bytes = reason ? reason_bytes : 0 };
	struct owned *o = calloc(1, sizeof(*o) + strlen(source) + 1);
	json_t *root;
	int err;

	if (log.bytes)
		*reason = '\0';
	if (!o)
		return shunt_json_fail(&log, ENOMEM, "no memory");
	strcpy(o->source, source);
	o->tuning.source = o->source;
	if (bytes > SHUNT_TUNING_MAX_BYTES) {
		shunt_json_fail(&log, EFBIG, "%zu bytes, expected at most %u", bytes, SHUNT_TUNING_MAX_BYTES);
		goto err_free;
	}
	root = shunt_json_parse(&log, text, bytes);
	if (!root)
		goto err_free;
	if (json_is_object(root) && version_read(&log, root) && machine_read(&log, root, &o->tuning.machine) &&
	    nccl_read(&log, root, &o->tuning) && windows_read(&log, root, &o->tuning) &&
	    rows_read(&log, root, &o->tuning)) {
		err = log.err ? 0 : shunt_tuning_finalize(&o->tuning);
		if (err == -EINVAL)
			shunt_json_fail(&log, EINVAL, "two rows of one kind have the same upto");
		else if (err)
			shunt_json_fail(&log, ENOMEM, "no memory");
	} else if (!json_is_object(root)) {
		shunt_json_fail(&log, EINVAL, "not an object");
	}
	json_decref(root);
	if (log.err)
		goto err_free;
	*t_p = &o->tuning;
	return 0;
err_free:
	shunt_tuning_free(&o->tuning);
	return -log.err;
}

int shunt_tuning_read(const char *path, struct shunt_tuning **t_p, char *reason, size_t reason_bytes)
{
	struct shunt_json_log log = { .source = path, .reason = reason, .bytes = reason ? reason_bytes : 0 };
	size_t n;
	char *text;
	int err = shunt_json_file(&log, path, SHUNT_TUNING_MAX_BYTES, &text, &n);

	if (err)
		return err;
	err = shunt_tuning_parse(path, text, n, t_p, reason, reason_bytes);
	free(text);
	return err;
}

void shunt_tuning_free(struct shunt_tuning *t)
{
	if (!t)
		return;
	free(t->rows);
	free(t); /* first member of struct owned */
}
