/* SPDX-License-Identifier: MIT */
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"

#define SAFE_STACK_BYTES ((size_t)8 << 20) /* as NCCL's */

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

int shunt_random(void *buf, size_t bytes)
{
	uint8_t *p = buf;

	while (bytes) {
		ssize_t n = getrandom(p, bytes, 0);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			shunt_error("the system gives no random bytes (getrandom): %m");
			return -errno;
		}
		p += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int shunt_thread_start(pthread_t *thread_p, size_t stack_bytes, void *(*fn)(void *arg), void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, before;
	size_t usual;
	int err;

	pthread_attr_init(&attr);
	if (!thread_p)
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	/*
	 * The stack also holds the thread-local variables of the program's libraries, which may need more than fn, and
	 * threads of ours call the driver and the program's functions. The default has room for them unless ulimit -s
	 * made it small.
	 */
	if (!pthread_attr_getstacksize(&attr, &usual))
		pthread_attr_setstacksize(&attr, (usual < SAFE_STACK_BYTES ? SAFE_STACK_BYTES : usual) + stack_bytes);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = -pthread_create(thread_p ? thread_p : &thread, &attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

int shunt_usable_cpus(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
	FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
	long quota, period;

	if (file && fscanf(file, "%ld %ld", &quota, &period) == 2 && period > 0 && quota / period < n)
		n = (int)(quota / period);
	if (file)
		fclose(file);
	return n;
}
