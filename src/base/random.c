/* SPDX-License-Identifier: MIT */
#include "base/random.h"
#include <errno.h>
#include <stdint.h>
#include <sys/random.h>
#include "base/log.h"

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
