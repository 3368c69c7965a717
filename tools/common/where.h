/* SPDX-License-Identifier: MIT */
#pragma once
/* Where and when a command ran: in everything that it measures, so that two results can be told apart later. */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Version of NVIDIA's kernel module, such as "580.95.05", or "". */
void tool_driver_version(char *text, size_t bytes);

struct tool_lib;
/*
 * {"time", "host", "shunt", "commit", "build", "driver", "kernel", "cpus", "devices"}: docs/guide.md. build:
 * shunt_build() of the library. lib names the devices, and may be NULL. with_host: tells the host's name. What is not
 * known is null. NULL: no memory.
 */
json_t *tool_where_json(const char *build, const struct tool_lib *lib, bool with_host);
/* NULL and "" are null. The text may be any bytes: tool_file_json() makes text of them. */
json_t *tool_json_text(const char *text);
/* One line, without an end: "2026-11-26T15:49:20Z, node7, commit 12ef02d, driver 580.95.05, Linux 6.8.0, 64 CPUs". */
void tool_where_show(json_t *where, char *text, size_t bytes);
