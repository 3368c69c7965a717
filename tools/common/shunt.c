/* SPDX-License-Identifier: MIT */
/* The `shunt` command: finds the subcommand and runs it. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/nearest.h"
#include "base/os.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"

static const struct tool_cmd *const cmds[] = { &tool_cmd_run, &tool_cmd_info, &tool_cmd_doctor, &tool_cmd_bench,
	&tool_cmd_conform, &tool_cmd_torture, &tool_cmd_plan, &tool_cmd_tune, &tool_cmd_path };
enum { NCMDS = sizeof(cmds) / sizeof(cmds[0]) };
static const struct tool_cmd *current;
static const char *action;

static void error_print(const char *fmt, va_list args)
{
	char text[1024];

	vsnprintf(text, sizeof(text), fmt, args);
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

void tool_action_set(const char *name)
{
	action = name;
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
		fprintf(out, "  %-8s %s\n", cmds[i]->name, cmds[i]->summary);
	fputs("\n`shunt COMMAND --help` explains one of them.\n", out);
}

static const struct tool_cmd *cmd_find(const char *name)
{
	for (int i = 0; i < NCMDS; i++)
		if (!strcmp(cmds[i]->name, name))
			return cmds[i];
	return NULL;
}

static int unknown_command(const char *name)
{
	struct shunt_nearest nearest = { .text = name };
	char maybe[64];

	if (*name == '-') {
		shunt_nearest_try(&nearest, "--help");
		shunt_nearest_try(&nearest, "--version");
		return tool_usage_error("there is no option %s%s", name, tool_maybe(&nearest, maybe));
	}
	shunt_nearest_try(&nearest, "help");
	for (int i = 0; i < NCMDS; i++)
		shunt_nearest_try(&nearest, cmds[i]->name);
	return tool_usage_error("there is no command \"%s\"%s", name, tool_maybe(&nearest, maybe));
}

static bool is_help(const char *arg)
{
	return !strcmp(arg, "--help") || !strcmp(arg, "-h");
}

/* Runs the subcommand, or an option of the command itself. */
static int command_run(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;

	shunt_process_reserve_stdio(); /* ranks share memory by a descriptor, too */
	if (!name) {
		help_print(stderr);
		return TOOL_USAGE;
	}
	if (is_help(name) || (!strcmp(name, "help") && argc == 2)) {
		help_print(stdout);
		return TOOL_OK;
	}
	if (!strcmp(name, "--version")) {
		printf("shunt %s\n", shunt_build());
		return TOOL_OK;
	}
	bool help = !strcmp(name, "help");
	const struct tool_cmd *cmd = cmd_find(help ? argv[2] : name);

	if (!cmd)
		return unknown_command(help ? argv[2] : name);
	current = cmd;
	if (cmd != &tool_cmd_run)
		signal(
		    SIGPIPE, SIG_DFL); /* a reader that has seen enough ends the command, whatever its parent ignores */
	if (help || (argc > 2 && is_help(argv[2]))) {
		options_help_print(cmd->options, stdout);
		return TOOL_OK;
	}
	return cmd->run(argc - 1, argv + 1);
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
