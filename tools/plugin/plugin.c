/* SPDX-License-Identifier: MIT */
/* shunt plugin: finds the action. */
#include "tools/plugin/plugin.h"

static const struct tool_action actions[] = {
	{ "check", &plugin_check_options, plugin_check_main },
	{ "new", &plugin_new_options, plugin_new_main },
	{ 0 },
};

static const struct option_table options = {
	"usage: shunt plugin check [options] FILE.so...\n"
	"       shunt plugin new   NAME [-o DIRECTORY]\n\n"
	"Plug-ins: users' own kernels as algorithms. Programs use those of the files in SHUNT_PLUGINS where "
	"SHUNT_ALGO, a\n"
	"tuning file or a selector names them.\n\n"
	"  check   are they right? Runs them on the sim: types, operators, sizes, places, late and missing ranks\n"
	"  new     write a small all-reduce that works, with the lines that build and check it\n",
	NULL, "`shunt plugin ACTION --help` explains one of them. docs/plugins.md has the way from there to a kernel.\n"
};

const struct tool_cmd tool_cmd_plugin = {
	.name = "plugin", .summary = "check and write users' own kernels", .options = &options, .actions = actions
};
