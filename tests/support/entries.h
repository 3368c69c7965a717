/* SPDX-License-Identifier: MIT */
#pragma once
#include <dirent.h>

/* Entries of a directory, with "." and ".."; of /proc/self/fd, with the descriptor that reads it. */
static inline int entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}
