/* SPDX-License-Identifier: MIT */
#pragma once
/* Manual pages and what shells need to complete a command line, from the tables of the commands' options. */
#include "tools/common/tool.h"

/* Prints shunt-COMMAND(1), and shunt(1), as troff. */
void help_man(const struct tool_cmd *cmd);
void help_man_of_all(const struct tool_cmd *const *cmds, int n);
/* Prints the file for a shell: bash, zsh or fish. Exit status. */
int help_completion(const struct tool_cmd *const *cmds, int n, const char *shell);
