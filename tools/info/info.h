/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_INFO_INFO_H
#define SHUNT_TOOLS_INFO_INFO_H

/* Prints the host's name and its interfaces (host.c). */
void info_host(void);
#endif
