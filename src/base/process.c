/* SPDX-License-Identifier: MIT */
#include "base/process.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>
#include "base/random.h"

uint64_t shunt_process_token(void)
{
	static atomic_ullong token;
	unsigned long long t = atomic_load(&token), mine = 0;

	if (!t) {
		if (shunt_random(&mine, sizeof(mine)) || !mine)
			mine = 1;
		if (atomic_compare_exchange_strong(&token, &t, mine))
			t = mine;
	}
	/* A forked child has its parent's token, but not its memory. */
	return t ^ (uint64_t)getpid() << 32;
}

void shunt_process_reserve_stdio(void)
{
	for (int std_fd = 0; std_fd <= STDERR_FILENO; std_fd++) {
		/* Open for the wrong direction: reads and writes fail with EBADF, as on a closed descriptor. */
		int fd = fcntl(std_fd, F_GETFD) < 0 ? open("/dev/null", std_fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) :
		                                      std_fd;

		if (fd > STDERR_FILENO)
			close(fd); /* another thread has taken the number */
	}
}
