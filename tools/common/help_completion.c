/* SPDX-License-Identifier: MIT */
/* What bash, zsh and fish need to complete commands, actions, options and the words that options take. */
#include <string.h>
#include "tools/common/help.h"
#include "tools/common/options.h"

/* Where an option may stand: a command, or one of its actions. */
struct place {
	const struct tool_cmd *cmd;
	const struct tool_action *action; /* NULL: without one */
	const struct option_table *options;
};

static bool is_option(const struct option_row *row)
{
	return row->type != OPTION_TITLE && row->help;
}

/* Calls each() for every place. */
static void places_walk(const struct tool_cmd *const *cmds, int n, void (*each)(const struct place *p))
{
	for (int i = 0; i < n; i++) {
		each(&(struct place){ cmds[i], NULL, cmds[i]->options });
		for (const struct tool_action *a = cmds[i]->actions; a && a->name; a++)
			each(&(struct place){ cmds[i], a, a->options });
	}
}

static void place_put(const struct place *p)
{
	printf("%s%s%s", p->cmd->name, p->action ? " " : "", p->action ? p->action->name : "");
}

static void words_put(const struct option_row *row)
{
	for (int i = 0; options_word(row, i); i++)
		printf("%s%s", i ? " " : "", options_word(row, i));
	if (row->type == OPTION_WORDS)
		fputs(" all", stdout);
}

/* Text inside single quotes of a shell, with a backslash before each letter of `escaped`. */
static void quoted_put(const char *text, const char *quote, const char *escaped)
{
	for (; *text; text++) {
		if (*text == '\'')
			fputs(quote, stdout);
		else if (strchr(escaped, *text))
			printf("\\%c", *text);
		else
			putchar(*text);
	}
}

/* ---- bash ---- */

static void bash_words(const struct place *p)
{
	for (const struct option_row *row = p->options->rows; row && row->type != OPTION_END; row++) {
		if (!is_option(row) || !options_word(row, 0))
			continue;
		fputs("\t'", stdout);
		place_put(p);
		printf(" --%s'", row->name);
		if (row->letter) {
			fputs(" | '", stdout);
			place_put(p);
			printf(" -%c'", row->letter);
		}
		fputs(") words='", stdout);
		words_put(row);
		fputs("' ;;\n", stdout);
	}
}

static void bash_options(const struct place *p)
{
	fputs("\t'", stdout);
	place_put(p);
	fputs("') words='", stdout);
	for (const struct tool_action *a = p->action ? NULL : p->cmd->actions; a && a->name; a++)
		printf("%s ", a->name);
	for (const struct option_row *row = p->options->rows; row && row->type != OPTION_END; row++)
		if (is_option(row))
			printf("--%s ", row->name);
	puts("--help' ;;");
}

static void bash_actions(const struct place *p)
{
	if (!p->action)
		return;
	fputs("\t'", stdout);
	place_put(p);
	puts("') place=$place\\ ${COMP_WORDS[2]} ;;");
}

static void bash_print(const struct tool_cmd *const *cmds, int n)
{
	puts("# bash completion for shunt\n_shunt()\n{\n"
	     "\tlocal place=${COMP_WORDS[1]-} before=${COMP_WORDS[COMP_CWORD-1]} words=\n"
	     "\tif [ \"$COMP_CWORD\" -gt 2 ]; then\n\tcase \"$place ${COMP_WORDS[2]-}\" in");
	places_walk(cmds, n, bash_actions);
	puts("\tesac\n\tfi\n\tcase \"$place $before\" in");
	places_walk(cmds, n, bash_words);
	puts("\t*)\n\tif [ \"$COMP_CWORD\" = 1 ]; then place=; fi\n\tcase $place in");
	fputs("\t'' | help) words='", stdout);
	for (int i = 0; i < n; i++)
		printf("%s ", cmds[i]->name);
	puts("help --help --version' ;;");
	places_walk(cmds, n, bash_options);
	puts("\tesac ;;\n\tesac\n"
	     "\tCOMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
	     "}\ncomplete -o default -F _shunt shunt");
}

/* ---- zsh ---- */

static void zsh_place(const struct place *p)
{
	fputs("\t'", stdout);
	place_put(p);
	fputs("')\n\t_arguments -s", stdout);
	for (const struct option_row *row = p->options->rows; row && row->type != OPTION_END; row++) {
		if (!is_option(row))
			continue;
		for (int letter = row->letter ? 1 : 0; letter >= 0; letter--) {
			fputs(" \\\n\t\t'", stdout);
			if (letter)
				printf("-%c", row->letter);
			else
				printf("--%s%s", row->name, row->value ? "=" : "");
			putchar('[');
			quoted_put(row->help, "'\\''", "[]:\\");
			putchar(']');
			if (row->value) {
				fputs(row->without ? "::" : ":", stdout);
				quoted_put(row->value, "'\\''", "[]:\\");
				putchar(':');
				if (options_word(row, 0)) {
					putchar('(');
					words_put(row);
					putchar(')');
				} else {
					fputs("_files", stdout);
				}
			}
			putchar('\'');
		}
	}
	if (!p->action && p->cmd->actions) {
		fputs(" \\\n\t\t'1:action:_alternative \"action:action:(", stdout);
		for (const struct tool_action *a = p->cmd->actions; a->name; a++)
			printf("%s%s", a == p->cmd->actions ? "" : " ", a->name);
		fputs(")\" \"file:file:_files\"'", stdout);
	}
	fputs(" \\\n\t\t'(-h --help)'{-h,--help}'[print the text of help]' '*:file:_files' ;;\n", stdout);
}

static void zsh_action(const struct place *p)
{
	if (p->action)
		printf("\t\t'%s %s') place=$place\\ ${words[3]}; (( CURRENT-- )); shift words ;;\n", p->cmd->name,
		    p->action->name);
}

static void zsh_print(const struct tool_cmd *const *cmds, int n)
{
	puts("#compdef shunt\n_shunt() {\n\tlocal place=${words[2]}\n\tif (( CURRENT == 2 )); then\n\t\tlocal -a "
	     "commands=(");
	for (int i = 0; i < n; i++) {
		printf("\t\t\t'%s:", cmds[i]->name);
		quoted_put(cmds[i]->summary, "'\\''", ":\\");
		puts("'");
	}
	puts("\t\t\t'help:explain a command')\n\t\t_describe command commands\n\t\treturn\n\tfi\n"
	     "\tif (( CURRENT > 3 )); then\n\t\tcase \"$place ${words[3]}\" in");
	places_walk(cmds, n, zsh_action);
	puts("\t\tesac\n\tfi\n\t(( CURRENT-- )); shift words\n\tcase $place in");
	places_walk(cmds, n, zsh_place);
	puts("\tesac\n}\n_shunt \"$@\"");
}

/* ---- fish ---- */

static void fish_condition(const struct place *p)
{
	printf("complete -c shunt -n '__fish_seen_subcommand_from %s", p->cmd->name);
	if (p->action)
		printf("; and __fish_seen_subcommand_from %s", p->action->name);
	putchar('\'');
}

static void fish_place(const struct place *p)
{
	for (const struct tool_action *a = p->action ? NULL : p->cmd->actions; a && a->name; a++) {
		fish_condition(p);
		printf(" -a %s\n", a->name);
	}
	for (const struct option_row *row = p->options->rows; row && row->type != OPTION_END; row++) {
		if (!is_option(row))
			continue;
		fish_condition(p);
		printf(" -l %s", row->name);
		if (row->letter)
			printf(" -s %c", row->letter);
		if (row->value && !row->without)
			fputs(" -r", stdout);
		if (options_word(row, 0)) {
			fputs(" -f -a '", stdout);
			words_put(row);
			putchar('\'');
		}
		fputs(" -d '", stdout);
		quoted_put(row->help, "\\'", "\\");
		puts("'");
	}
	fish_condition(p);
	puts(" -l help -s h -d 'print the text of help'");
}

static void fish_print(const struct tool_cmd *const *cmds, int n)
{
	puts("# fish completion for shunt");
	for (int i = 0; i < n; i++) {
		printf("complete -c shunt -n __fish_use_subcommand -f -a %s -d '", cmds[i]->name);
		quoted_put(cmds[i]->summary, "\\'", "\\");
		puts("'");
	}
	puts("complete -c shunt -n __fish_use_subcommand -f -a help -d 'explain a command'\n"
	     "complete -c shunt -n __fish_use_subcommand -l version -d 'print the version'");
	places_walk(cmds, n, fish_place);
}

int help_completion(const struct tool_cmd *const *cmds, int n, const char *shell)
{
	static const struct {
		const char *name;
		void (*print)(const struct tool_cmd *const *cmds, int n);
	} shells[] = { { "bash", bash_print }, { "zsh", zsh_print }, { "fish", fish_print } };

	for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++)
		if (!strcmp(shell, shells[i].name)) {
			shells[i].print(cmds, n);
			return TOOL_OK;
		}
	return tool_usage_error("--completion: there is no \"%.64s\"; it takes bash, zsh, fish", shell);
}
