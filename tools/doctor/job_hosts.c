/* SPDX-License-Identifier: MIT */
/* `shunt doctor job` over hosts: what each host's processes answered, as one line of JSON, and all put together. */
#include "tools/common/libc.h"
#include "tools/doctor/doctor.h"

static void add_dumps(json_t *looks, const struct dumps *d)
{
	json_t *list = json_array();

	for (size_t i = 0; i < d->n; i++)
		json_array_append(list, d->processes[i]->json);
	json_array_append_new(looks, list);
}

/* The caller frees it; NULL: no memory. */
static char *look_write(const struct look *look)
{
	json_t *root = json_object(), *looks = json_array(), *findings = json_array();
	char *text;

	add_dumps(looks, &look->before);
	add_dumps(looks, &look->now);
	for (size_t i = 0; i < look->f->n; i++) {
		const struct finding *row = &look->f->rows[i];

		json_array_append_new(findings,
		    json_pack("[isoo]", row->level, row->topic, json_string_nocheck(row->text),
		        json_string_nocheck(row->advice)));
	}
	json_object_set_new(root, "looks", looks);
	json_object_set_new(root, "findings", findings);
	text = shunt_json_line(root);
	json_decref(root);
	return text;
}

/* Several processes of one host tell the same. */
static void finding_add_once(struct findings *f, enum finding_level level, const char *text, const char *advice)
{
	for (size_t i = 0; i < f->n; i++)
		if (!strcmp(f->rows[i].text, text))
			return;
	finding_add(f, level, "processes", advice, "%s", text);
}

/* The text may be anything. 0, or -errno after a message. */
static int look_read(struct look *look, const char *source, const char *text, size_t bytes)
{
	char reason[512] = "";
	struct shunt_json_log log = { .source = source, .reason = reason, .bytes = sizeof(reason) };
	json_t *root = shunt_json_parse(&log, text, bytes), *dump, *row;
	const json_t *looks = json_object_get(root, "looks");
	size_t which, i;
	int err = 0;

	if (root && json_array_size(looks) != 2)
		shunt_json_fail(&log, EINVAL, "it is no line of `shunt doctor job --answers`");
	if (log.err) {
		tool_error("%s", reason);
		json_decref(root);
		return -log.err;
	}
	for (which = 0; which < 2; which++)
		json_array_foreach(json_array_get(looks, which), i, dump) if (!err) err =
		    dumps_add_json(which ? &look->now : &look->before, &log, json_incref(dump));
	json_array_foreach(json_object_get(root, "findings"), i, row)
	{
		json_int_t level = json_integer_value(json_array_get(row, 0));
		const char *what = json_string_value(json_array_get(row, 2)),
		           *advice = json_string_value(json_array_get(row, 3));

		if (level >= FINDING_OK && level <= FINDING_ERROR && what && advice)
			finding_add_once(look->f, (enum finding_level)level, what, advice);
	}
	json_decref(root);
	return err;
}

int doctor_hosts_gather(struct ranks *ranks, const struct ranks_slot *slot, struct look *look)
{
	size_t n = (size_t)slot->shared->launch.nranks, most = 0;
	uint64_t sizes[RANKS_MAX] = { 0 }, mine;
	char *text = look_write(look), *part = calloc(n + 1, RANKS_SLOT_BYTES), *all[RANKS_MAX] = { 0 }, source[48];
	int err = text && part ? 0 : -ENOMEM;

	mine = err ? 0 : strlen(text) + 1;
	err = err ? err : ranks_allgather(ranks, &mine, sizeof(mine), sizes);
	for (size_t r = 0; r < n && !err; r++) {
		all[r] = sizes[r] && sizes[r] <= ASK_MAX_BYTES ? malloc(sizes[r]) : NULL;
		most = sizes[r] > most ? sizes[r] : most;
	}
	if (!err && most > ASK_MAX_BYTES)
		err = -EMSGSIZE;
	for (size_t at = 0; at < most && !err; at += RANKS_SLOT_BYTES) {
		char *own = part + n * RANKS_SLOT_BYTES;

		if (at < mine)
			memcpy(own, text + at, mine - at < RANKS_SLOT_BYTES ? mine - at : RANKS_SLOT_BYTES);
		err = ranks_allgather(ranks, own, RANKS_SLOT_BYTES, part);
		for (size_t r = 0; r < n && !err; r++)
			if (all[r] && at < sizes[r])
				memcpy(all[r] + at, part + r * RANKS_SLOT_BYTES,
				    sizes[r] - at < RANKS_SLOT_BYTES ? sizes[r] - at : RANKS_SLOT_BYTES);
	}
	for (size_t r = 0; r < n && !err && !slot->rank; r++) {
		snprintf(source, sizeof(source), "the process of rank %zu", r);
		if ((int)r != slot->rank && (!all[r] || look_read(look, source, all[r], sizes[r] - 1)))
			finding_add(
			    look->f, FINDING_ERROR, "hosts", "", "%s has sent no answers that can be read", source);
	}
	for (size_t r = 0; r < n; r++)
		free(all[r]);
	free(part);
	free(text);
	return err;
}

int doctor_answers_print(const struct look *look)
{
	char *text = look_write(look);

	if (text)
		fputs(text, stdout);
	free(text);
	return text ? TOOL_OK : TOOL_FAIL;
}

int doctor_answers_file(struct look *look, const char *path)
{
	char reason[512], *text;
	struct shunt_json_log log = { .source = path, .reason = reason, .bytes = sizeof(reason) };
	size_t bytes, n, lines = 0;
	int err = shunt_json_file(&log, path, ASK_MAX_BYTES, &text, &bytes);

	if (err) {
		tool_error("%s", reason);
		return err;
	}
	for (size_t at = 0; at < bytes && !err; at += n + 1) {
		n = strcspn(text + at, "\n");
		lines += n > 0;
		if (n)
			err = look_read(look, path, text + at, n);
	}
	if (!lines) {
		tool_error("%s: there is no line of `shunt doctor job --answers` in it", path);
		err = -ENODATA;
	}
	free(text);
	return err;
}
