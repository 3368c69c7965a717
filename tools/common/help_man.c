/* SPDX-License-Identifier: MIT */
/* Manual pages, from the texts of --help. */
#include <ctype.h>
#include <string.h>
#include "tools/common/help.h"
#include "tools/common/options.h"

/* Text for troff; a line's first dot or quote is no request. */
static void man_put(const char *text, size_t bytes, bool line_begins)
{
	for (size_t i = 0; i < bytes; i++) {
		if (line_begins && (text[i] == '.' || text[i] == '\''))
			fputs("\\&", stdout);
		if (text[i] == '\\')
			fputs("\\e", stdout);
		else if (text[i] == '-')
			fputs("\\-", stdout);
		else
			putchar(text[i]);
		line_begins = text[i] == '\n';
	}
}

static void man_text(const char *text)
{
	man_put(text, strlen(text), true);
}

/* Lines with blanks in front are tables, and stay as they are; others are filled. */
static void man_block(const char *text)
{
	bool table = false;

	for (size_t n; *text; text += n + (text[n] == '\n')) {
		n = strcspn(text, "\n");
		if (table != (*text == ' ')) {
			table = !table;
			puts(table ? ".nf" : ".fi");
		}
		if (!n) {
			puts(".PP");
			continue;
		}
		man_put(text, n, true);
		puts(table || options_line_goes_on(text, n) ? "" : "\n.br");
	}
	if (table)
		puts(".fi");
}

static void options_put(const struct option_table *t)
{
	for (const struct option_row *row = t->rows; row && row->type != OPTION_END; row++) {
		if (!row->help)
			continue;
		if (row->type == OPTION_TITLE) {
			puts(".PP");
			man_text(row->help);
			putchar('\n');
			continue;
		}
		puts(".TP");
		if (row->letter)
			printf("\\fB\\-%c\\fR, ", row->letter);
		fputs("\\fB\\-\\-", stdout);
		man_put(row->name, strlen(row->name), false);
		fputs("\\fR", stdout);
		if (row->value)
			printf(row->without ? "[=\\fI%s\\fR]" : " \\fI%s\\fR", row->value);
		putchar('\n');
		man_text(row->help);
		putchar('\n');
	}
	puts(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nprint the text of help");
}

/* "usage: " and the lines up to the first empty one are the synopsis; what follows describes. */
static void table_put(const struct option_table *t, const char *synopsis, const char *description, const char *options)
{
	const char *usage = t->usage + (strncmp(t->usage, "usage: ", 7) ? 0 : 7), *rest = strstr(usage, "\n\n");
	size_t bytes = rest ? (size_t)(rest - usage) : strlen(usage);

	printf("%s\n", synopsis);
	while (bytes) {
		size_t line = strcspn(usage, "\n");

		puts(".br");
		man_put(usage, line, true);
		putchar('\n');
		usage += line;
		bytes -= line;
		/* The further lines stand below "usage: ". */
		for (int i = 0; bytes && i < 8 && (*usage == '\n' || *usage == ' '); i++, usage++)
			bytes--;
	}
	if (rest || t->notes)
		printf("%s\n", description);
	if (rest)
		man_block(rest + 2);
	if (t->notes) {
		puts(".PP");
		man_block(t->notes);
	}
	printf("%s\n", options);
	options_put(t);
}

static void head_put(const char *name)
{
	char title[64];
	size_t i = 0;

	for (; name[i] && i + 1 < sizeof(title); i++)
		title[i] = (char)toupper((unsigned char)name[i]);
	title[i] = '\0';
	fputs(".TH ", stdout);
	man_text(title);
	printf(" 1 \"\" \"Shunt %s\" \"Shunt\"\n.SH NAME\n", SHUNT_VERSION);
}

void help_man(const struct tool_cmd *cmd)
{
	char name[64];

	snprintf(name, sizeof(name), "shunt-%s", cmd->name);
	head_put(name);
	man_text(name);
	printf(" \\- %s\n", cmd->summary);
	table_put(cmd->options, ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS");
	for (const struct tool_action *a = cmd->actions; a && a->name; a++) {
		printf(".SH SHUNT %s %s\n", cmd->name, a->name);
		table_put(a->options, ".SS Synopsis", ".SS Description", ".SS Options");
	}
	puts(".SH SEE ALSO\n.BR shunt (1)");
}

void help_man_of_all(const struct tool_cmd *const *cmds, int n)
{
	head_put("shunt");
	puts("shunt \\- send NCCL collectives onto the fastest correct path\n.SH SYNOPSIS\n\\fBshunt\\fR "
	     "\\fICOMMAND\\fR [\\fIoptions\\fR]\n.br\n\\fBshunt \\-\\-version\\fR\n.SH COMMANDS");
	for (int i = 0; i < n; i++)
		printf(".TP\n.BR shunt\\-%s (1)\n%s\n", cmds[i]->name, cmds[i]->summary);
}
