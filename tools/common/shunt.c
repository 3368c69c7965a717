/* SPDX-License-Identifier: MIT */
/* The `shunt` command: finds the subcommand and runs it. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "base/nearest.h"
#include "base/os.h"
#include "tools/common/help.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"

static const struct tool_cmd *const cmds[] = { &tool_cmd_run, &tool_cmd_info, &tool_cmd_doctor, &tool_cmd_top,
	&tool_cmd_watch, &tool_cmd_bench, &tool_cmd_conform, &tool_cmd_torture, &tool_cmd_plan, &tool_cmd_plugin,
	&tool_cmd_tune, &tool_cmd_path, &tool_cmd_ras };
enum { NCMDS = sizeof(cmds) / sizeof(cmds[0]) };
static const struct tool_cmd *current;
static const char *action;

static void error_print(const char *fmt, va_list args)
{
	char text[1024];

	vsnprintf(text, sizeof(text), fmt, args);
	tool_printable(text, "");
	/* One write: lines of several ranks do not mix. */
	fprintf(stderr, "shunt%s%s%s%s: %s\n", current ? " " : "", current ? current->name : "", action ? " " : "",
	    action ? action : "", text);
}

void tool_error(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	error_print(fmt, args);
	va_end(args);
}

int tool_usage_error(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	error_print(fmt, args);
	va_end(args);
	fprintf(stderr, "Try: shunt%s%s%s%s --help\n", current ? " " : "", current ? current->name : "",
	    action ? " " : "", action ? action : "");
	return TOOL_USAGE;
}

const char *tool_action(void)
{
	return action;
}

const char *tool_cmd_name(void)
{
	return current->name;
}

static void help_print(FILE *out)
{
	fputs("usage: shunt COMMAND [options]\n\n"
	      "Sends NCCL collectives onto the fastest correct path. Commands:\n",
	    out);
	for (int i = 0; i < NCMDS; i++)
		options_text_print(cmds[i]->name, cmds[i]->summary, 11, out);
	fputs("\n`shunt COMMAND --help` explains one of them. `shunt help --man [COMMAND]` prints a manual page,\n"
	      "`shunt help --completion bash|zsh|fish` what that shell needs to complete commands and options.\n",
	    out);
}

static int option_unknown(const char *name, const char *const *options)
{
	struct shunt_nearest nearest = { .text = name };
	char maybe[64];

	for (; *options; options++)
		shunt_nearest_try(&nearest, *options);
	return tool_usage_error("there is no option %s%s", name, tool_maybe(&nearest, maybe));
}

/* The command of this name, or NULL after a message. */
static const struct tool_cmd *cmd_find(const char *name)
{
	struct shunt_nearest nearest = { .text = name };
	char maybe[64];

	shunt_nearest_try(&nearest, "help");
	for (int i = 0; i < NCMDS; i++) {
		if (!strcmp(cmds[i]->name, name))
			return cmds[i];
		shunt_nearest_try(&nearest, cmds[i]->name);
	}
	tool_usage_error("there is no command \"%s\"%s", name, tool_maybe(&nearest, maybe));
	return NULL;
}

/* The action of this name; NULL: there is none. */
static const struct tool_action *action_find(const struct tool_cmd *cmd, const char *name)
{
	for (const struct tool_action *a = cmd->actions; a && a->name; a++)
		if (!strcmp(a->name, name))
			return a;
	return NULL;
}

static int action_missing(const struct tool_cmd *cmd, const char *name)
{
	struct shunt_nearest nearest = { .text = name };
	char list[128] = "", maybe[64];

	for (const struct tool_action *a = cmd->actions; a->name; a++) {
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s",
		    !*list        ? "" :
		        a[1].name ? ", " :
		                    " or ",
		    a->name);
		if (name)
			shunt_nearest_try(&nearest, a->name);
	}
	return name ? tool_usage_error("there is no action \"%s\"%s", name, tool_maybe(&nearest, maybe)) :
	              tool_usage_error("%s?", list);
}

static bool is_help(const char *arg)
{
	return !strcmp(arg, "--help") || !strcmp(arg, "-h");
}

/* shunt help [COMMAND [ACTION]], --man, --completion. */
static int help_run(int argc, char **argv)
{
	static const char *const options[] = { "--man", "--completion", "--help", NULL };
	const char *what = argc > 1 ? argv[1] : NULL;
	const struct tool_cmd *cmd;

	if (!what || is_help(what)) {
		help_print(stdout);
		return TOOL_OK;
	}
	if (!strcmp(what, "--completion"))
		return help_completion(cmds, NCMDS, argc > 2 ? argv[2] : "");
	if (!strcmp(what, "--man") && argc == 2) {
		help_man_of_all(cmds, NCMDS);
		return TOOL_OK;
	}
	if (*what == '-' && strcmp(what, "--man"))
		return option_unknown(what, options);
	argv += !strcmp(what, "--man");
	cmd = cmd_find(argv[1]);
	if (!cmd)
		return TOOL_USAGE;
	if (what != argv[1]) {
		help_man(cmd);
		return TOOL_OK;
	}
	const struct tool_action *a = argc > 2 ? action_find(cmd, argv[2]) : NULL;

	options_help_print(a ? a->options : cmd->options, stdout);
	return TOOL_OK;
}

/* Runs the subcommand, or an option of the command itself. */
static int command_run(int argc, char **argv)
{
	static const char *const options[] = { "--help", "--version", NULL };
	const char *name = argc > 1 ? argv[1] : NULL;

	shunt_process_reserve_stdio(); /* ranks share memory by a descriptor, too */
	/* A reader that has seen enough ends the command, whatever its parent ignores. A program keeps what it got. */
	if (name && strcmp(name, tool_cmd_run.name))
		signal(SIGPIPE, SIG_DFL);
	if (argc && !strcmp(basename(argv[0]), "ncclras")) { /* the folder with this name stands in PATH */
		current = &tool_cmd_ras;
		return current->run(argc, argv);
	}
	if (!name) {
		help_print(stderr);
		return TOOL_USAGE;
	}
	if (is_help(name)) {
		help_print(stdout);
		return TOOL_OK;
	}
	if (!strcmp(name, "help"))
		return help_run(argc - 1, argv + 1);
	if (!strcmp(name, "--version")) {
		printf("shunt %s\n", shunt_build());
		return TOOL_OK;
	}
	if (*name == '-')
		return option_unknown(name, options);
	const struct tool_cmd *cmd = cmd_find(name);
	const char *next = argc > 2 ? argv[2] : NULL;

	if (!cmd)
		return TOOL_USAGE;
	current = cmd;
	if (next && is_help(next) && cmd != &tool_cmd_ras) { /* whose -h is another */
		options_help_print(cmd->options, stdout);
		return TOOL_OK;
	}
	const struct tool_action *a = next ? action_find(cmd, next) : NULL;

	if (a) {
		action = a->name;
		return a->run(argc - 2, argv + 2);
	}
	return cmd->run ? cmd->run(argc - 1, argv + 1) : action_missing(cmd, next);
}

int main(int argc, char **argv)
{
	int status = command_run(argc, argv);

	if (fflush(stdout) || ferror(stdout)) {
		tool_error("cannot write the output: %s", strerror(errno));
		return status ? status : TOOL_FAIL;
	}
	return status;
}
