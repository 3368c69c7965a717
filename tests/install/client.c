/* SPDX-License-Identifier: MIT */
/* A program of a user: built with what pkg-config says, against the installed headers only. */
#include <stdio.h>
#include <shunt/device.h>
#include <shunt/shunt.h>

int main(void)
{
	struct shunt_counter row = { 0 };
	size_t n = 1;
	int count = 0;

	if (shunt_counters(&row, &row, 1, &n) == 0) {
		fprintf(stderr, "a communicator that nobody made is known\n");
		return 1;
	}
	if (shunt_device_count(&count) || count != 3) {
		fprintf(stderr, "%d devices, SHUNT_SIM_DEVICES is 3\n", count);
		return 1;
	}
	printf("%s %s\n", shunt_version(), shunt_device_kind());
	return 0;
}
