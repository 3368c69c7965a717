/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_INFO_INFO_H
#define SHUNT_TOOLS_INFO_INFO_H
#include "algos/select/nvls.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"

/* Prints the host's name and its interfaces (host.c). */
void info_host(void);
/* Prints the devices that could carry data between hosts, of each provider, or why there are none (host.c). */
void info_nics(void);

/* Of the library (info.c). The real NCCL's version, 22809 for 2.28.9; 0: there is none. */
int info_nccl_version(const struct tool_lib *lib);
/* Why NCCL has no NVLink multicast on the device; POSSIBLE: nothing is known that speaks against it. */
enum shunt_nvls info_nvls_obstacle(const struct tool_lib *lib, const struct shunt_device_identity *id);
bool info_first_device(const struct tool_lib *lib, struct shunt_device_identity *id);

/* shunt info select (select.c). Exit status. */
int info_select_main(int argc, char **argv);
extern const struct option_table info_select_options;
#endif
