/* SPDX-License-Identifier: MIT */
/* The list of findings, and its output. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
	/* Names come from files and other processes: no terminal shall obey them. */
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	rows[f->n] = (struct finding){ level, topic, strdup(text), strdup(advice) };
	if (!rows[f->n].text || !rows[f->n].advice) {
		free(rows[f->n].text);
		free(rows[f->n].advice);
		f->failed = true;
		return;
	}
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

static int print_json(const struct findings *f)
{
	json_t *rows = json_array(), *all;
	int err = 0;

	for (size_t i = 0; i < f->n && !err; i++) {
		const struct finding *row = &f->rows[i];
		/* JSON takes only UTF-8. */
		json_t *text = json_string(row->text), *advice = json_string(row->advice);

		err = json_array_append_new(rows,
		    json_pack("{s:s, s:s, s:o, s:o}", "level", level_names[row->level], "topic", row->topic, "text",
		        text ? text : json_string("(not UTF-8)"), "advice", advice ? advice : json_string("")));
	}
	all =
	    json_pack("{s:s, s:s, s:o}", "version", SHUNT_VERSION, "worst", level_names[worst_of(f)], "findings", rows);
	if (!all || err || json_dumpf(all, stdout, JSON_INDENT(1)))
		err = -1;
	putchar('\n');
	json_decref(all);
	return err;
}

static void print_text(const struct findings *f)
{
	const char *topic = "";

	for (size_t i = 0; i < f->n; i++) {
		const struct finding *row = &f->rows[i];

		if (strcmp(topic, row->topic))
			printf("%s%s\n", i ? "\n" : "", topic = row->topic);
		printf("  %-8s %s\n", level_names[row->level], row->text);
		if (*row->advice)
			printf("           -> %s\n", row->advice);
	}
}

int findings_print(const struct findings *f, bool json)
{
	enum finding_level worst = worst_of(f);

	if (json) {
		if (print_json(f))
			worst = FINDING_ERROR;
	} else {
		print_text(f);
	}
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
