/* SPDX-License-Identifier: MIT */
/* Reads what another program prints. */
#include <spawn.h>
#include "tools/common/libc.h"
#include "tools/common/tool.h"

FILE *tool_output_of(const char *const argv[], pid_t *pid_p)
{
	posix_spawn_file_actions_t actions;
	int fds[2], err;

	if (pipe2(fds, O_CLOEXEC))
		return NULL;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
	posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", 0, 0);
	err = posix_spawnp(pid_p, argv[0], &actions, NULL, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	if (err) {
		close(fds[0]);
		return NULL;
	}
	return fdopen(fds[0], "r");
}
