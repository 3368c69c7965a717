/* SPDX-License-Identifier: MIT */
/* The files of shunt tune: the partial file, with a line for each point, and the tuning file. */
#include <math.h>
#include <sys/file.h>
#include "tools/common/libc.h"
#include "algos/algos.h"
#include "algos/plugins.h"
#include "base/files.h"
#include "base/json.h"
#include "tools/common/where.h"
#include "tools/tune/tune.h"

struct tune_partial {
	FILE *f;
	char path[PATH_MAX];
};

static int directories_make(const char *path)
{
	char copy[PATH_MAX];

	snprintf(copy, sizeof(copy), "%s", path);
	for (char *p = copy + 1; (p = strchr(p, '/')); p++) {
		*p = 0;
		if (mkdir(copy, 0777) && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	return 0;
}

int tune_path(const struct tune_opts *o, const char *cache_dir, const struct shunt_machine *m, char path[PATH_MAX])
{
	char dir[PATH_MAX], gpu[sizeof(m->gpu)], ranks[48];
	size_t n = 0;
	int err;

	if (o->out) {
		snprintf(path, PATH_MAX, "%s", o->out);
		return 0;
	}
	switch (shunt_files_cache(cache_dir, "tuning", dir, sizeof(dir))) {
	case SHUNT_FILES_CACHE:
		break;
	case SHUNT_FILES_NO_CACHE:
		tool_error("there is no cache directory: set SHUNT_CACHE_DIR or HOME, or name the file with --output");
		return -ENOENT;
	case SHUNT_FILES_FOREIGN_CACHE:
		tool_error(
		    "%s is in the home of another user: set SHUNT_CACHE_DIR or HOME, or name the file with --output",
		    dir);
		return -EACCES;
	}
	for (const char *p = m->gpu; *p; p++)
		gpu[n++] = isalnum((unsigned char)*p) ? (char)tolower((unsigned char)*p) : '-';
	gpu[n] = 0;
	if (m->nhosts)
		snprintf(ranks, sizeof(ranks), "%dx%d-%s", m->nhosts, m->nranks / m->nhosts, m->net);
	else
		snprintf(ranks, sizeof(ranks), "%d%s%s", m->nranks, m->link ? "-" : "",
		    m->link ? shunt_link_names[m->link] : "");
	if (m->islands)
		snprintf(ranks + strlen(ranks), sizeof(ranks) - strlen(ranks), "-%d-islands", m->islands);
	if (snprintf(path, PATH_MAX, "%s/%s-%s.json", dir, gpu, ranks) >= PATH_MAX) {
		tool_error("the name of the cache directory is too long: %s", dir);
		return -ENAMETOOLONG;
	}
	err = directories_make(path);
	if (err)
		tool_error("cannot make %s: %s", dir, strerror(-err));
	return err;
}

/* ---- one point ---- */

static json_t *point_json(const struct tune_point *p)
{
	return json_pack("{s:s, s:I, s:I, s:s, s:i, s:i, s:i, s:b, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:b}",
	    "collective", bench_colls[p->coll].name, "bytes", (json_int_t)p->bytes, "part", (json_int_t)p->part,
	    "algorithm", p->algo->name, "blocks", p->geometry.blocks, "threads", p->geometry.threads, "channels",
	    p->geometry.channels, "nccl", p->forward, "before", p->before, "us", p->us, "nccl_us", p->nccl_us,
	    "before_us", p->before_us, "eager_us", p->eager_us, "nccl_eager_us", p->nccl_eager_us, "nccl_windows_us",
	    p->windows_us, "windows", p->windows_forward, "plugin", p->algo->plugin);
}

/* Copies text of a file, safe to print. */
static void printable_copy(char *to, size_t bytes, const char *from)
{
	snprintf(to, bytes, "%s", from);
	for (; *to; to++)
		if (*to < ' ' || *to > '~')
			*to = '?';
}

/* True: less than eleven days, so that it can be printed and compared. */
static bool time_valid(double us)
{
	return us >= 0 && us < 1e12;
}

static bool point_read(json_t *json, struct tune_point *p)
{
	const char *coll, *algo, *before;
	json_int_t bytes, part;
	int blocks, threads, channels, forward, windows = 0, plugin = 0;
	const struct bench_coll *c;

	*p = (struct tune_point){ 0 };
	if (json_unpack(json, "{s:s, s:I, s:I, s:s, s:i, s:i, s:i, s:b, s:s, s:F, s:F, s:F, s:F, s:F, s?F, s?b, s?b}",
	        "collective", &coll, "bytes", &bytes, "part", &part, "algorithm", &algo, "blocks", &blocks, "threads",
	        &threads, "channels", &channels, "nccl", &forward, "before", &before, "us", &p->us, "nccl_us",
	        &p->nccl_us, "before_us", &p->before_us, "eager_us", &p->eager_us, "nccl_eager_us", &p->nccl_eager_us,
	        "nccl_windows_us", &p->windows_us, "windows", &windows, "plugin", &plugin))
		return false;
	c = bench_coll_find(coll);
	if (!c || bytes < 1 || part < 0 || blocks < 0 || blocks > (int)SHUNT_MAX_BLOCKS || threads < 0 ||
	    threads > (int)SHUNT_MAX_THREADS || threads % 32 || channels < 0 || channels > (int)SHUNT_P2P_CHANNELS)
		return false;
	if (!time_valid(p->us) || !p->us || !time_valid(p->nccl_us) || !time_valid(p->before_us) ||
	    !time_valid(p->eager_us) || !time_valid(p->nccl_eager_us) || !time_valid(p->windows_us))
		return false;
	p->coll = (enum bench_coll_id)(c - bench_colls);
	p->bytes = (uint64_t)bytes;
	p->part = (uint64_t)part;
	p->algo =
	    plugin ? shunt_plugin_row_of_any(tune_kind(p->coll), algo) : shunt_algo_find(tune_kind(p->coll), algo);
	p->geometry = (struct shunt_geometry){ (uint16_t)blocks, (uint16_t)threads, (uint16_t)channels };
	p->forward = forward;
	p->windows_forward = windows;
	printable_copy(p->before, sizeof(p->before), before);
	return p->algo != NULL;
}

/* ---- the partial file ---- */

/*
 * Header of the partial file. Two runs share points only if it is the same. It contains the options, too: at its end, a
 * run looks for its own sizes only, and would take another run's few points of a collective for all of them.
 */
static char *partial_header(const struct tune_opts *o, const struct tune_results *r)
{
	char blocks[64] = "", threads[64] = "", colls[256] = "", hash[24] = "";
	struct shunt_plugin_set *plugins = shunt_plugin_set_get();
	json_t *json;
	char *text;

	if (plugins)
		snprintf(hash, sizeof(hash), "%016" PRIx64, plugins->hash);
	shunt_plugin_set_free(plugins);

	for (int i = 0; bench_colls[i].name; i++)
		if (o->colls >> i & 1)
			snprintf(colls + strlen(colls), sizeof(colls) - strlen(colls), "%s,", bench_colls[i].name);
	for (int i = 0; i < o->blocks.n; i++)
		snprintf(blocks + strlen(blocks), sizeof(blocks) - strlen(blocks), "%u,", o->blocks.at[i]);
	for (int i = 0; i < o->threads.n; i++)
		snprintf(threads + strlen(threads), sizeof(threads) - strlen(threads), "%u,", o->threads.at[i]);
	json = json_pack(
	    "{s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:b, s:b, s:s, s:s, s:s, s:I, s:I, s:i, s:s, s:s, s:i, "
	    "s:f, s:s}",
	    "shunt_tune_partial", SHUNT_TUNING_FORMAT, "shunt", SHUNT_VERSION, "gpu", r->machine.gpu, "cc",
	    (int)r->machine.cc, "driver", (int)r->machine.driver, "ranks", r->machine.nranks, "hosts",
	    r->machine.nhosts, "net", r->machine.net, "link", r->machine.link, "islands", r->machine.islands, "sim",
	    r->machine.sim, "nvls", r->machine.nvls == 1, "nccl", r->nccl, "dtype", r->dtype, "collectives", colls,
	    "first", (json_int_t)o->base.first, "last", (json_int_t)o->base.last, "factor", (int)o->base.factor,
	    "blocks", blocks, "threads", threads, "rounds", o->base.rounds, "margin", o->margin, "plugins", hash);
	text = json ? shunt_json_line(json) : NULL;
	json_decref(json);
	return text;
}

/*
 * True: this run could have measured the point. Rows of other sizes, or for a missing NCCL, would route calls without a
 * measurement.
 */
static bool point_belongs(const struct tune_opts *o, const struct tune_results *r, const struct tune_point *p)
{
	struct tune_task t;

	return o->colls >> p->coll & 1 && p->bytes <= o->base.last &&
	    tune_task_make(o, p->coll, p->bytes, r->machine.nranks, &t) && t.bytes == p->bytes && t.part == p->part &&
	    (!p->forward || *r->nccl);
}

/*
 * Reads the lines after the header, up to the first one that is cut off or invalid; that point and all later ones are
 * measured again. Returns the end of the valid lines.
 */
static long points_read(const struct tune_opts *o, FILE *f, struct tune_results *r)
{
	char line[1024];
	long end = ftell(f);

	while (r->n < TUNE_MAX_POINTS && fgets(line, sizeof(line), f)) {
		size_t len = strlen(line);
		json_t *json;
		bool ok;

		if (!len || line[len - 1] != '\n')
			break;
		json = shunt_json_parse(&(struct shunt_json_log){ .source = "" }, line, len);
		ok = json && point_read(json, &r->points[r->n]) && point_belongs(o, r, &r->points[r->n]);
		json_decref(json);
		if (!ok)
			break;
		if (!tune_point_find(r, r->points[r->n].coll, r->points[r->n].bytes))
			r->n++;
		end = ftell(f);
	}
	return end;
}

/*
 * Opens the file for this process only, until it closes the file or ends. Without a lock if the file system has no
 * locks. 0 or -errno.
 */
static int file_lock(const char *path, FILE **f_p)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), err;

	if (fd < 0)
		return -errno;
	if (!flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK) {
		*f_p = fdopen(fd, "r+");
		if (*f_p)
			return 0;
	}
	err = -errno;
	close(fd);
	return err;
}

int tune_partial_open(
    const struct tune_opts *o, const char *path, struct tune_results *r, struct tune_partial **partial_p)
{
	struct tune_partial *p = calloc(1, sizeof(*p));
	char *head = partial_header(o, r), line[1024];
	int err = -ENOMEM;

	if (!p || !head)
		goto err_free;
	if (snprintf(p->path, sizeof(p->path), "%s.partial", path) >= PATH_MAX) {
		err = -ENAMETOOLONG;
		goto err_say;
	}
	err = file_lock(p->path, &p->f);
	if (err == -EWOULDBLOCK) {
		tool_error("another shunt tune is writing %s: two at a time would measure each other", p->path);
		goto err_close;
	}
	if (err)
		goto err_say;
	if (!o->restart && fgets(line, sizeof(line), p->f)) {
		if (strcmp(line, head)) {
			tool_error("%s is of a run on another machine or of another command: give the same "
			           "collectives, sizes and "
			           "options, or --restart to begin anew",
			    p->path);
			err = -EEXIST;
			goto err_close;
		}
		long end = points_read(o, p->f, r);

		if (fseek(p->f, end, SEEK_SET) || ftruncate(fileno(p->f), end)) {
			err = -errno;
			goto err_say;
		}
		if (r->n)
			printf("# %zu points are there from a run that was stopped (%s)\n", r->n, p->path);
	} else {
		if (fseek(p->f, 0, SEEK_SET) || ftruncate(fileno(p->f), 0) || fputs(head, p->f) < 0 || fflush(p->f)) {
			err = -errno;
			goto err_say;
		}
	}
	free(head);
	*partial_p = p;
	return 0;
err_say:
	tool_error("cannot use %s.partial: %s", path, strerror(-err));
err_close:
	if (p->f)
		fclose(p->f);
err_free:
	free(head);
	free(p);
	return err;
}

int tune_partial_add(struct tune_partial *partial, const struct tune_point *p)
{
	json_t *json = point_json(p);
	char *text = json ? shunt_json_line(json) : NULL;
	int err = text ? 0 : -ENOMEM;

	if (!err && (fputs(text, partial->f) < 0 || fflush(partial->f)))
		err = -errno;
	if (err)
		tool_error("cannot write %s: %s", partial->path, strerror(-err));
	free(text);
	json_decref(json);
	return err;
}

void tune_partial_close(struct tune_partial *partial, bool done)
{
	if (!partial)
		return;
	fclose(partial->f);
	if (done)
		unlink(partial->path);
	free(partial);
}

/* ---- the tuning file ---- */

static json_t *row_json(const struct shunt_tuning_row *r)
{
	json_t *json = json_pack("{s:s}", "kind", shunt_kind_name(r->kind));

	if (r->upto != UINT64_MAX)
		json_object_set_new(json, "upto", json_integer((json_int_t)r->upto));
	json_object_set_new(json, "algorithm", json_string(r->algo->name));
	if (r->algo->plugin)
		json_object_set_new(json, "plugin", json_true());
	if (r->geometry.blocks || r->geometry.threads || r->geometry.channels) {
		json_object_set_new(json, "blocks", json_integer(r->geometry.blocks));
		json_object_set_new(json, "threads", json_integer(r->geometry.threads));
		json_object_set_new(json, "channels", json_integer(r->geometry.channels));
	}
	if (r->forward)
		json_object_set_new(json, "nccl", json_true());
	return json;
}

/* By collective, the size from which calls in windows are NCCL's; null: none. */
static json_t *windows_json(const struct tune_results *r)
{
	json_t *windows = json_object();
	uint64_t from;

	for (int i = 0; bench_colls[i].name; i++)
		if (tune_windows_from(r->points, r->n, (enum bench_coll_id)i, &from))
			json_object_set_new(windows, shunt_kind_name(tune_kind((enum bench_coll_id)i)),
			    from == UINT64_MAX ? json_null() : json_integer((json_int_t)from));
	return windows;
}

static json_t *results_json(const struct tune_results *r, const struct tool_lib *lib)
{
	const struct shunt_machine *m = &r->machine;
	json_t *root, *rows = json_array(), *points = json_array();
	struct shunt_tuning_row *list = calloc(2 * r->n + SHUNT_NKINDS, sizeof(*list));
	time_t now = time(NULL);
	struct tm day;
	char date[32];
	size_t n = list ? tune_rows(r->points, r->n, list) : 0;

	strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &day));
	for (size_t i = 0; i < n; i++)
		json_array_append_new(rows, row_json(&list[i]));
	for (size_t i = 0; i < r->n; i++)
		json_array_append_new(points, point_json(&r->points[i]));
	free(list);
	root = json_pack("{s:i, s:s, s:s, s:s, s:{s:s, s:i, s:i, s:i, s:b, s:b}}", "shunt_tuning", SHUNT_TUNING_FORMAT,
	    "shunt", SHUNT_VERSION, "date", date, "dtype", r->dtype, "machine", "gpu", m->gpu, "cc", (int)m->cc,
	    "driver", (int)m->driver, "ranks", m->nranks, "sim", m->sim, "nvls", m->nvls == 1);
	if (root && m->nhosts) {
		json_object_set_new(json_object_get(root, "machine"), "hosts", json_integer(m->nhosts));
		json_object_set_new(json_object_get(root, "machine"), "net", json_string(m->net));
	}
	if (root && m->link)
		json_object_set_new(json_object_get(root, "machine"), "link", json_string(shunt_link_names[m->link]));
	if (root && m->islands)
		json_object_set_new(json_object_get(root, "machine"), "islands", json_integer(m->islands));
	if (root && *r->nccl)
		json_object_set_new(root, "nccl", json_string(r->nccl));
	json_object_set_new(root, "where", tool_where_json(lib->build(), lib, true));
	json_object_set_new(root, "windows", windows_json(r));
	json_object_set_new(root, "rows", rows);
	json_object_set_new(root, "points", points);
	return root;
}

int tune_write(const struct tune_results *r, const struct tool_lib *lib, const char *path)
{
	char tmp[PATH_MAX + 32], reason[512];
	json_t *root = results_json(r, lib);
	struct shunt_tuning *t;
	int err;

	/* Not in place: a communicator never reads half a file. */
	snprintf(tmp, sizeof(tmp), "%s.tmp.%ld", path, (long)getpid());
	if (!root) {
		tool_error("out of memory");
		return -ENOMEM;
	}
	err = tool_file_json(tmp, root);
	json_decref(root);
	if (err)
		return err;
	err = shunt_tuning_read(tmp, &t, reason, sizeof(reason));
	if (err) {
		tool_error("what was written cannot be read: %s", reason);
	} else {
		shunt_tuning_free(t);
		if (rename(tmp, path)) {
			err = -errno;
			tool_error("cannot write %s: %s", path, strerror(errno));
		}
	}
	if (err)
		unlink(tmp);
	return err;
}

/* ---- table of before and after ---- */

const char *tune_geometry_text(const struct shunt_geometry *geometry, char text[16])
{
	if (geometry->blocks)
		snprintf(text, 16, "%ux%u", geometry->blocks, geometry->threads);
	else
		snprintf(text, 16, "own");
	return text;
}

void tune_print(const struct tune_results *r)
{
	const struct shunt_machine *m = &r->machine;
	double before = 0, nccl = 0;
	size_t nbefore = 0, nnccl = 0;

	if (m->nhosts)
		printf("# %d hosts by %s\n", m->nhosts, m->net);
	if (m->islands)
		printf("# by %s links between %d islands\n", shunt_link_names[m->link], m->islands);
	else if (m->link)
		printf("# by %s links\n", shunt_link_names[m->link]);
	printf("# %d ranks on %s, compute capability %u.%u, driver for CUDA %u.%u, NCCL %s%s, %s\n", m->nranks, m->gpu,
	    m->cc / 10, m->cc % 10, m->driver / 1000, m->driver % 1000 / 10, *r->nccl ? r->nccl : "not measured",
	    m->nvls == 1 ? " with NVLink multicast" : "", r->dtype);
	if (m->sim)
		puts("# the sim runs on CPU threads: its times say nothing about GPUs");
	puts("# us per call in graphs, on the slowest rank; before: the built-in table\n#");
	printf("# %-14s %7s | %-11s %9s | %-11s %-8s %9s | %9s | %12s %10s\n", "collective", "size", "before", "us",
	    "after", "launch", "us", "nccl us", "before/after", "nccl/after");
	for (size_t i = 0; i < r->n; i++) {
		const struct tune_point *p = &r->points[i];
		double after = p->forward ? p->nccl_us : p->us;
		char size[24], launch[16];

		printf("  %-14s %7s | %-11s %9.2f | %-11s %-8s %9.2f | ", bench_colls[p->coll].name,
		    tool_format_size(p->bytes, size), p->before, p->before_us, p->forward ? "nccl" : p->algo->name,
		    p->forward ? "-" : tune_geometry_text(&p->geometry, launch), after);
		if (p->nccl_us > 0)
			printf("%9.2f | %12.2f %10.2f\n", p->nccl_us, p->before_us / after, p->nccl_us / after);
		else
			printf("%9s | %12.2f %10s\n", "-", p->before_us / after, "-");
		if (after > 0 && p->before_us > 0) {
			before += log(p->before_us / after);
			nbefore++;
		}
		if (after > 0 && p->nccl_us > 0) {
			nccl += log(p->nccl_us / after);
			nnccl++;
		}
	}
	for (int i = 0; bench_colls[i].name; i++) {
		uint64_t from;
		char size[24];

		if (tune_windows_from(r->points, r->n, (enum bench_coll_id)i, &from))
			printf("# %s in windows: %s%s\n", bench_colls[i].name,
			    from == UINT64_MAX ? "as without" : "NCCL's from parts of ",
			    from == UINT64_MAX ? "" : tool_format_size(from, size));
	}
	if (nbefore)
		printf("# geometric mean of before / after: %.3f\n", exp(before / (double)nbefore));
	if (nnccl)
		printf("# geometric mean of nccl / after: %.3f\n", exp(nccl / (double)nnccl));
	fflush(stdout);
}

/* Reads the machine and the points of a tuning file. 0, or -errno with a line in reason. */
static int results_read(const char *path, struct tune_results *r, char *reason, size_t bytes)
{
	const char *dtype = "?", *nccl = "";
	struct shunt_tuning *t = NULL;
	json_t *root, *points;
	int err = shunt_tuning_read(path, &t, reason, bytes);

	if (err)
		return err;
	r->machine = t->machine;
	shunt_tuning_free(t);
	root = shunt_json_parse_file(
	    &(struct shunt_json_log){ .source = path, .reason = reason, .bytes = bytes }, path, SHUNT_TUNING_MAX_BYTES);
	points = json_object_get(root, "points");
	json_unpack(root, "{s?s, s?s}", "dtype", &dtype, "nccl", &nccl);
	printable_copy(r->dtype, sizeof(r->dtype), dtype);
	printable_copy(r->nccl, sizeof(r->nccl), nccl);
	for (size_t i = 0; i < json_array_size(points) && r->n < TUNE_MAX_POINTS; i++)
		r->n += point_read(json_array_get(points, i), &r->points[r->n]);
	json_decref(root);
	return 0;
}

static bool same_machine(const struct shunt_machine *a, const struct shunt_machine *b)
{
	return !strcmp(a->gpu, b->gpu) && a->cc == b->cc && a->driver == b->driver && a->nranks == b->nranks &&
	    a->nhosts == b->nhosts && !strcmp(a->net, b->net) && a->link == b->link && a->islands == b->islands &&
	    a->sim == b->sim && (a->nvls == 1) == (b->nvls == 1);
}

void tune_merge(const struct tune_opts *o, const char *path, struct tune_results *r)
{
	struct tune_results *old = calloc(1, sizeof(*old));
	char reason[512];
	size_t n = 0;

	if (old && !access(path, F_OK) && !results_read(path, old, reason, sizeof(reason)) &&
	    same_machine(&old->machine, &r->machine) && !strcmp(old->nccl, r->nccl) && !strcmp(old->dtype, r->dtype)) {
		for (size_t i = 0; i < old->n && r->n < TUNE_MAX_POINTS; i++)
			if (!(o->colls >> old->points[i].coll & 1)) {
				r->points[r->n++] = old->points[i];
				n++;
			}
		if (n)
			printf("# %zu points of other collectives stay as they were in %s\n", n, path);
	}
	free(old);
}

int tune_share(const char *path, const char *out)
{
	char reason[512], machine[160];
	struct shunt_json_log log = { .source = path, .reason = reason, .bytes = sizeof(reason) };
	struct shunt_tuning *t;
	json_t *root;
	int err;

	/* As the library reads it, so that nobody is given a file that is refused there. */
	if (shunt_tuning_read(path, &t, reason, sizeof(reason))) {
		tool_error("%s", reason);
		return TOOL_FAIL;
	}
	snprintf(machine, sizeof(machine), "%d ranks on %s, driver for CUDA %u.%u", t->machine.nranks, t->machine.gpu,
	    t->machine.driver / 1000, t->machine.driver % 1000 / 10);
	shunt_tuning_free(t);
	root = shunt_json_parse_file(&log, path, SHUNT_TUNING_MAX_BYTES);
	if (!root) {
		tool_error("%s", reason);
		return TOOL_FAIL;
	}
	if (json_is_object(json_object_get(root, "where")))
		json_object_set_new(json_object_get(root, "where"), "host", json_null());
	json_object_del(root, "points"); /* the library does not read them, and they are nine tenths of the file */
	err = tool_file_json(out, root);
	json_decref(root);
	if (err)
		return TOOL_FAIL;
	printf("# written to %s: for %s. It works from ~/.cache/shunt/tuning of another user, or named in "
	       "SHUNT_TUNING_FILE\n",
	    out, machine);
	return TOOL_OK;
}

int tune_show(const char *path)
{
	struct tune_results *r = calloc(1, sizeof(*r));
	int status = TOOL_FAIL;
	char reason[512];

	if (!r)
		return TOOL_FAIL;
	if (results_read(path, r, reason, sizeof(reason))) {
		tool_error("%s", reason);
	} else if (!r->n) {
		tool_error("%s: it can be used, but has no points to show, as files of --share", path);
	} else {
		tune_print(r);
		status = TOOL_OK;
	}
	free(r);
	return status;
}
