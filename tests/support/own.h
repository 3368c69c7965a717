/* SPDX-License-Identifier: MIT */
#pragma once
#include <arpa/inet.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

/*
 * What a test must not get from who runs it: its files, and its addresses, which others may reach. To be called first.
 */
static inline void own_environment(void)
{
	static const char *const theirs[] = { "SHUNT_CACHE_DIR", "SHUNT_PLAN_DIR", "SHUNT_TUNING_FILE",
		"MSCCLPP_CACHE_DIR", "NCCL_CONF_FILE", "NCCL_COMM_ID", "NCCL_SOCKET_FAMILY" };

	for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++)
		unsetenv(theirs[i]);
	setenv("HOME", "/nonexistent", 1);
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

/* The same, and Shunt without NCCL, on the sim. */
static inline void own_standalone(void)
{
	own_environment();
	setenv("SHUNT_NCCL_LIB", "none", 1);
	setenv("SHUNT_DEVICE", "sim", 1);
}

/*
 * Sets NCCL_COMM_ID to a port that is free, and stays so, as nobody else uses this address of the loopback interface.
 */
static inline bool own_comm_id(void)
{
	unsigned pid = (unsigned)getpid();
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr = { htonl(0x7f010000 + pid % 0xfe0000) } };
	socklen_t len = sizeof(sin);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	bool bound = !bind(fd, (struct sockaddr *)&sin, sizeof(sin)) && !getsockname(fd, (struct sockaddr *)&sin, &len);
	char text[64];

	close(fd);
	snprintf(text, sizeof(text), "%s:%d", inet_ntoa(sin.sin_addr), ntohs(sin.sin_port));
	return bound && !setenv("NCCL_COMM_ID", text, 1);
}

/* A folder in memory for files whose names processes share; path gets its name. False: there is none. */
static inline bool own_folder(char path[64])
{
	snprintf(path, 64, "/dev/shm/shunt-test-XXXXXX");
	return mkdtemp(path) != NULL;
}

/* Removes it with the files in it. */
static inline void own_folder_end(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}
