/* SPDX-License-Identifier: MIT */
/* Parses options by a command's table, and prints the table. */
#include "tools/common/options.h"
#include <getopt.h>
#include <sys/ioctl.h>
#include "tools/common/libc.h"
#include "base/nearest.h"
#include "tools/common/tool.h"

enum {
	MAX_ROWS = 48,
	MAX_WORDS = 32,    /* bits of an OPTION_WORDS */
	FIRST_VALUE = 256, /* getopt's value of row 0; below are letters */
	COLUMNS = 118,     /* of a line of the text */
	FULL = 100,        /* of a line whose sentence goes on in the next */
	NARROW = 8,        /* column of a text below its name */
	MAX_LEFT = 24,     /* columns for names; a longer name has a line of its own */
};

static size_t rows_count(const struct option_table *t)
{
	size_t n = 0;

	while (t->rows && t->rows[n].type != OPTION_END)
		n++;
	return n;
}

/* ---- values ---- */

const char *options_word(const struct option_row *row, int i)
{
	return row->name_at ? row->name_at(i) : row->names ? row->names[i] : NULL;
}

static int words_find(const struct option_row *row, const char *text)
{
	const char *names[MAX_WORDS];
	int n = 0;

	if (row->find)
		return row->find(text);
	while (n < MAX_WORDS && (names[n] = options_word(row, n)))
		n++;
	return tool_lookup(text, names, n);
}

static int number_apply(void *field, const struct option_row *row, const char *text)
{
	unsigned n;
	int err = tool_parse_uint(text, (unsigned)row->low, (unsigned)row->high, &n);

	if (!err)
		memcpy(field, &n, sizeof(n));
	return err;
}

/* Calls take() for each of the comma separated words. */
static int list_apply(void *field, const struct option_row *row, const char *text,
    int (*take)(void *field, const struct option_row *row, const char *word))
{
	char copy[256], *save = NULL;
	int err = -EINVAL;

	if (strlen(text) >= sizeof(copy))
		return tool_refuse(-EINVAL, text, "%.32s... is too long for a list", text);
	strcpy(copy, text);
	for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		err = take(field, row, word);
		if (err)
			return err;
	}
	return err ? tool_refuse(err, text, "\"%.64s\" is an empty list", text) : 0;
}

static int number_take(void *field, const struct option_row *row, const char *word)
{
	struct option_list *list = field;
	unsigned n;
	int err = tool_parse_uint(word, 1, (unsigned)row->high, &n);

	if (err)
		return err;
	if (row->step && n % row->step)
		return tool_refuse(-EINVAL, word, "%s is no multiple of %u", word, row->step);
	if (list->n == OPTION_MAX_LIST)
		return tool_refuse(-EINVAL, word, "%s is one too many; there may be %d", word, OPTION_MAX_LIST);
	list->at[list->n++] = n;
	return 0;
}

static int word_take(void *field, const struct option_row *row, const char *word)
{
	int i = words_find(row, word);

	if (i < 0)
		return -EINVAL;
	*(unsigned *)field |= 1u << i;
	return 0;
}

static int words_apply(void *field, const struct option_row *row, const char *text)
{
	unsigned set = (unsigned)row->high;
	int err = strcmp(text, "all") ? list_apply((set = 0, &set), row, text, word_take) : 0;

	if (!err)
		memcpy(field, &set, sizeof(set));
	return err;
}

static int text_apply(void *field, const struct option_row *row, const char *text)
{
	size_t n = strlen(text);

	if (n < row->low || (row->high && n > row->high))
		return row->high ? tool_refuse(-EINVAL, text, "\"%.32s%s\" has not %d to %d letters", text,
		                       n > 32 ? "..." : "", (int)row->low, (int)row->high) :
		                   tool_refuse(-EINVAL, text, "\"\" names nothing");
	memcpy(field, &text, sizeof(text));
	return 0;
}

static int size_apply(void *field, const struct option_row *row, const char *text)
{
	uint64_t bytes = row->without;
	int err = text ? tool_parse_size(text, row->low, row->high, &bytes) : 0;

	if (!err && row->step && bytes % row->step)
		err = tool_refuse(-EINVAL, text, "%.64s is no multiple of %u", text, row->step);
	if (!err)
		memcpy(field, &bytes, sizeof(bytes));
	return err;
}

static int row_apply(const struct option_row *row, void *opts, const char *text)
{
	void *field = (char *)opts + row->at;
	int i;

	if (row->given)
		*(bool *)((char *)opts + row->given) = true;
	switch (row->type) {
	case OPTION_END:
	case OPTION_TITLE:
		return 0;
	case OPTION_FLAG:
		*(bool *)field = !row->clear;
		return 0;
	case OPTION_NUMBER:
		return number_apply(field, row, text);
	case OPTION_NUMBERS:
		((struct option_list *)field)->n = 0;
		return list_apply(field, row, text, number_take);
	case OPTION_SIZE:
		return size_apply(field, row, text);
	case OPTION_MINUTES:
		return tool_parse_minutes(text, field);
	case OPTION_TEXT:
		return text_apply(field, row, text);
	case OPTION_WORD:
		i = words_find(row, text);
		if (i >= 0)
			memcpy(field, &i, sizeof(i));
		return i < 0 ? -EINVAL : 0;
	case OPTION_WORDS:
		return words_apply(field, row, text);
	case OPTION_CALL:
		return row->call(opts, row, text);
	}
	return -EINVAL;
}

/* ---- the command line ---- */

/* The table for getopt_long(). letters: 3 bytes for each row, and 8. */
static void getopt_fill(const struct option_table *t, size_t n, struct option *rows, char *letters)
{
	size_t used = 0;

	if (t->stops)
		*letters++ = '+';
	*letters++ = ':';
	*letters++ = 'h';
	for (size_t i = 0; i < n; i++) {
		const struct option_row *row = &t->rows[i];

		if (row->type == OPTION_TITLE)
			continue;
		rows[used++] = (struct option){ row->name,
			!row->value      ? no_argument :
			    row->without ? optional_argument :
			                   required_argument,
			NULL, FIRST_VALUE + (int)i };
		if (!row->letter)
			continue;
		*letters++ = row->letter;
		if (row->value)
			*letters++ = ':';
	}
	*letters = 0;
	rows[used] = (struct option){ "help", no_argument, NULL, 'h' };
	rows[used + 1] = (struct option){ 0 };
}

static const struct option_row *row_of(const struct option_table *t, size_t n, int opt)
{
	if (opt >= FIRST_VALUE)
		return &t->rows[opt - FIRST_VALUE];
	for (size_t i = 0; i < n; i++)
		if (t->rows[i].letter == opt)
			return &t->rows[i];
	return NULL;
}

static int value_error(const struct option_row *row, const char *text, int err)
{
	const char *reason = tool_refused(text ? text : "");

	if (reason)
		return tool_usage_error("--%s: %s", row->name, reason);
	return tool_usage_error("--%s: \"%s\" is %s", row->name, text ? text : "",
	    err == -ERANGE ? "out of range" : "not one of its values");
}

static int unknown_option(const struct option_table *t, size_t n, const char *arg)
{
	char text[64], names[MAX_ROWS + 1][32] = { "--help" }, maybe[64];
	struct shunt_nearest nearest = { .text = text };

	snprintf(text, sizeof(text), "%.*s", (int)strcspn(arg, "="), arg);
	for (size_t i = 0; i < n; i++)
		if (t->rows[i].name)
			snprintf(names[i + 1], sizeof(names[0]), "--%s", t->rows[i].name);
	for (size_t i = 0; i <= n && !strncmp(arg, "--", 2); i++)
		if (*names[i])
			shunt_nearest_try(&nearest, names[i]);
	return tool_usage_error("there is no option %s%s", arg, tool_maybe(&nearest, maybe));
}

int options_parse(const struct option_table *t, void *opts, int argc, char **argv, int *first_p)
{
	struct option rows[MAX_ROWS + 2];
	char letters[2 * MAX_ROWS + 8];
	size_t n = rows_count(t);
	int opt, err;

	if (n > MAX_ROWS)
		return tool_usage_error("more than %d rows", MAX_ROWS);
	getopt_fill(t, n, rows, letters);
	opterr = 0;
	optind = 1;
	while ((opt = getopt_long(argc, argv, letters, rows, NULL)) != -1) {
		const struct option_row *row;

		if (opt == 'h') {
			options_help_print(t, stdout);
			return TOOL_OK;
		}
		if (opt == ':')
			return tool_usage_error("%s needs a value", argv[optind - 1]);
		row = opt == '?' ? NULL : row_of(t, n, opt);
		if (!row)
			return unknown_option(t, n, argv[optind - 1]);
		err = row_apply(row, opts, optarg);
		if (err)
			return value_error(row, optarg, err);
	}
	if (!first_p && optind < argc)
		return tool_usage_error("\"%s\" is not an option", argv[optind]);
	if (first_p)
		*first_p = optind;
	return -1;
}

/* ---- the text ---- */

/* "-n, --ranks N" */
static void left_write(const struct option_row *row, char text[80])
{
	const char *open = row->without ? "[=" : " ", *close = row->without ? "]" : "";

	snprintf(text, 80, "%c%c%s--%s%s%s%s", row->letter ? '-' : ' ', row->letter ? row->letter : ' ',
	    row->letter ? ", " : "  ", row->name, row->value ? open : "", row->value ? row->value : "",
	    row->value ? close : "");
}

/* Columns of a terminal; otherwise: where it is none. */
static int columns_of(FILE *out, int otherwise)
{
	struct winsize size;

	if (ioctl(fileno(out), TIOCGWINSZ, &size) || !size.ws_col)
		return otherwise;
	return size.ws_col < COLUMNS ? size.ws_col : COLUMNS;
}

/* The words of a line of text, wrapped; at: columns that are used, on: by words before these. Returns those used then.
 */
static int words_print(int at, bool on, const char *text, int column, int columns, FILE *out)
{
	while (*text && *text != '\n') {
		int word = (int)strcspn(text, " \n");

		if (on && at + 1 + word > columns) {
			at = fprintf(out, "\n%*s", column, "") - 1;
			on = false;
		}
		at += fprintf(out, "%s%.*s", on ? " " : "", word, text);
		text += word;
		text += strspn(text, " ");
		on = true;
	}
	return at;
}

static void row_print(const char *left, const char *help, int column, int columns, FILE *out)
{
	int at = fprintf(out, "  %s", left);

	/* A narrow terminal has the text below. */
	if (column > columns / 2)
		column = NARROW;
	if (at > column - 2) {
		fputc('\n', out);
		at = 0;
	}
	at += fprintf(out, "%*s", column - at, "");
	words_print(at, false, help, column, columns, out);
	fputc('\n', out);
}

bool options_line_goes_on(const char *text, size_t n)
{
	const char *next = text + n + (text[n] == '\n');

	return *text != ' ' && *next && *next != ' ' && *next != '\n' && n + 1 + strcspn(next, " \n") > FULL;
}

/* Lines of text. Where they are too long for the terminal, paragraphs are filled, and other lines go on below. */
static void lines_print(const char *text, FILE *out)
{
	int columns = columns_of(out, COLUMNS), at = 0;

	for (size_t n; columns < COLUMNS && *text; text += n + (text[n] == '\n')) {
		int blanks = (int)strspn(text, " ");

		n = strcspn(text, "\n");
		if (!blanks && strncmp(text, "usage:", 6))
			at = words_print(at, at, text, 0, columns, out);
		else if ((int)n <= columns)
			fprintf(out, "%.*s", (int)n, text);
		else
			words_print(fprintf(out, "%*s", blanks, ""), false, text + blanks, 9, columns, out);
		if (!at || !options_line_goes_on(text, n)) {
			fputc('\n', out);
			at = 0;
		}
	}
	fputs(text, out);
}

void options_text_print(const char *left, const char *text, int column, FILE *out)
{
	row_print(left, text, column, columns_of(out, INT_MAX), out);
}

void options_help_print(const struct option_table *t, FILE *out)
{
	size_t n = rows_count(t), longest = strlen("    --help");
	int columns = columns_of(out, COLUMNS);
	char left[80];

	lines_print(t->usage, out);
	for (size_t i = 0; i < n; i++)
		if (t->rows[i].type != OPTION_TITLE && t->rows[i].help) {
			left_write(&t->rows[i], left);
			if (strlen(left) > longest && strlen(left) <= MAX_LEFT)
				longest = strlen(left);
		}
	for (size_t i = 0; i < n; i++) {
		if (!t->rows[i].help)
			continue;
		if (t->rows[i].type == OPTION_TITLE) {
			fprintf(out, "%s\n", t->rows[i].help);
			continue;
		}
		left_write(&t->rows[i], left);
		row_print(left, t->rows[i].help, (int)longest + 4, columns, out);
	}
	row_print("-h, --help", "print this text", (int)longest + 4, columns, out);
	if (t->notes) {
		fputc('\n', out);
		lines_print(t->notes, out);
	}
}
