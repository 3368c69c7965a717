/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_INFO_INFO_H
#define SHUNT_TOOLS_INFO_INFO_H

/* Prints the host's name and its interfaces (host.c). */
void info_host(void);
/* Prints the devices that could carry data between hosts, of each provider, or why there are none (host.c). */
void info_nics(void);
#endif
