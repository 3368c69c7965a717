/* SPDX-License-Identifier: MIT */
#pragma once
#include "algos/select/tuning.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"

/* Prints the host's name and its interfaces (host.c). */
void info_host(void);
/* Prints the devices that could carry data between hosts, of each provider, or why there are none (host.c). */
void info_nics(void);

/* Of the library (info.c). The real NCCL's version, 22809 for 2.28.9; 0: there is none. */
int info_nccl_version(const struct tool_lib *lib);
/* Sets all of *m but its ranks and hosts, by the first device. False: there is no device. */
bool info_machine(const struct tool_lib *lib, struct shunt_machine *m);

/* shunt info select (select.c). Exit status. */
int info_select_main(int argc, char **argv);
extern const struct option_table info_select_options;
