/* SPDX-License-Identifier: MIT */
/* The list of findings, and its output. */
#include "tools/common/libc.h"
#include "base/json.h"
#include "tools/common/where.h"
#include "tools/doctor/doctor.h"

static const char *const level_names[] = { "ok", "info", "warning", "error" };

void finding_add(
    struct findings *f, enum finding_level level, const char *topic, const char *advice, const char *fmt, ...)
{
	struct finding *rows = realloc(f->rows, (f->n + 1) * sizeof(*rows));
	char text[2048];
	va_list args;

	if (!rows) {
		f->failed = true;
		return;
	}
	f->rows = rows;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	tool_printable(text, "");
	rows[f->n] = (struct finding){ level, topic, strdup(text), strdup(advice) };
	if (!rows[f->n].text || !rows[f->n].advice) {
		free(rows[f->n].text);
		free(rows[f->n].advice);
		f->failed = true;
		return;
	}
	tool_printable(rows[f->n].advice, "");
	f->n++;
}

static enum finding_level worst_of(const struct findings *f)
{
	enum finding_level worst = f->failed ? FINDING_ERROR : FINDING_OK;

	for (size_t i = 0; i < f->n; i++)
		if (f->rows[i].level > worst)
			worst = f->rows[i].level;
	return worst;
}

static void print_json(const struct findings *f)
{
	struct shunt_json_writer w = { .out = stdout, .lines = 2 };
	json_t *where = tool_where_json(shunt_build(), NULL, true);

	shunt_json_write_object(&w, NULL);
	shunt_json_write_text(&w, "version", SHUNT_VERSION);
	shunt_json_write_value(&w, "where", where);
	json_decref(where);
	shunt_json_write_text(&w, "worst", level_names[worst_of(f)]);
	shunt_json_write_array(&w, "findings");
	for (size_t i = 0; i < f->n; i++) {
		shunt_json_write_object(&w, NULL);
		shunt_json_write_text(&w, "level", level_names[f->rows[i].level]);
		shunt_json_write_text(&w, "topic", f->rows[i].topic);
		shunt_json_write_text(&w, "text", f->rows[i].text);
		shunt_json_write_text(&w, "advice", f->rows[i].advice);
		shunt_json_write_object_end(&w);
	}
	shunt_json_write_array_end(&w);
	shunt_json_write_object_end(&w);
}

static void print_text(const struct findings *f)
{
	const char *topic = "";
	char advice[2052];

	for (size_t i = 0; i < f->n; i++) {
		const struct finding *row = &f->rows[i];

		if (strcmp(topic, row->topic))
			printf("%s%s\n", i ? "\n" : "", topic = row->topic);
		options_text_print(level_names[row->level], row->text, 11, stdout);
		if (*row->advice) {
			snprintf(advice, sizeof(advice), "-> %s", row->advice);
			options_text_print("", advice, 11, stdout);
		}
	}
}

int findings_print(const struct findings *f, bool json)
{
	enum finding_level worst = worst_of(f);

	if (json)
		print_json(f);
	else
		print_text(f);
	if (f->failed)
		tool_error("no memory: some findings are missing");
	return worst == FINDING_ERROR ? 2 : worst == FINDING_WARN ? 1 : 0;
}

void findings_finish(struct findings *f)
{
	for (size_t i = 0; i < f->n; i++) {
		free(f->rows[i].text);
		free(f->rows[i].advice);
	}
	free(f->rows);
	*f = (struct findings){ 0 };
}
