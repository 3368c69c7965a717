/* SPDX-License-Identifier: MIT */
#include "core/process.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>
#include "core/random.h"

uint64_t shunt_process(void)
{
	static atomic_ullong token;
	unsigned long long t = atomic_load(&token), mine = 0;

	if (!t) {
		if (shunt_random(&mine, sizeof(mine)) || !mine)
			mine = 1;
		if (atomic_compare_exchange_strong(&token, &t, mine))
			t = mine;
	}
	/* A child of fork() has its parent's token, but not its memory. */
	return t ^ (uint64_t)getpid() << 32;
}

void shunt_process_keep_places(void)
{
	for (int place = 0; place <= STDERR_FILENO; place++) {
		/* Not for what it is there for: who prints is told the same as before. */
		int fd =
		    fcntl(place, F_GETFD) < 0 ? open("/dev/null", place == STDIN_FILENO ? O_WRONLY : O_RDONLY) : place;

		if (fd > STDERR_FILENO)
			close(fd); /* somebody was faster */
	}
}
